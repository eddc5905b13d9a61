"""Tier T3: files of other profilers as profiles, and what a device did on the time line of a profile of ours.

A file's form is found from its content, never from its name; any form may be compressed with gzip.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from unidle.errors import BadInput
from unidle.scope.model import Process, Profile
from unidle.scope.tiers.foreign import cupti, folded, inspector, kernels, kineto, perf_script, speedscope
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.json_stream import JsonStream
from unidle.scope.tiers.foreign.source import Stream, damaged, opened

__all__ = ["merge", "merge_profile", "read"]

_HEAD: Final = 64 << 10
_KNOWN: Final = (
    "known are traces of Kineto or torch.profiler, nsys exports (SQLite), logs of NCCL Inspector, py-spy (raw or "
    "speedscope), austin 3, the text of perf script, kernel records of unidle, and profiles of unidle (JSON)"
)


def read(path: str | os.PathLike[str], within: tuple[int, int] | None = None) -> Profile:
    """The file as a profile of tier T3 (one of unidle's own as it is).

    ``within`` (UTC, nanoseconds): of devices only what lies in it is counted, if the file has a clock.
    Raises :class:`BadInput` for a file that cannot be read, is of no known form, is damaged or beyond a limit.
    """
    found = _read(path, within)
    if isinstance(found, Profile):
        return found
    if within is None and not found.samples and not found.calls:
        raise BadInput("holds no samples", field=str(path))
    return found.profile()


def _read(path: str | os.PathLike[str], within: tuple[int, int] | None) -> Builder | Profile:
    with opened(path) as stream:
        head = _Peeked(stream)
        if head.start.startswith(cupti.MAGIC):
            if _is_gzip(path):
                raise BadInput("is a compressed database", field=str(path), remedy="unpack it with gunzip")
            return cupti.read_sqlite(path, within)
        if head.start.startswith(kernels.MAGIC):
            return kernels.read_log(head, within)
        text = head.start.lstrip()
        if not text:
            raise BadInput("is empty", field=str(path))
        if text[:1] in b"{[":
            return _read_json(head, within)
        return _read_text(head)


class _Peeked(Stream):
    """A stream whose beginning was already read."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self._inner = stream
        self.start = self._pending = stream.read()

    def read(self, n: int = 0) -> bytes:
        pending, self._pending = self._pending, b""
        return pending or (self._inner.read(n) if n else self._inner.read())

    def whole(self, limit: int = 0) -> bytes:
        pending, self._pending = self._pending, b""
        return pending + (self._inner.whole(limit) if limit else self._inner.whole())


def _is_gzip(path: str | os.PathLike[str]) -> bool:
    with Path(path).open("rb") as raw:
        return raw.read(2) == b"\x1f\x8b"


def _read_json(stream: _Peeked, within: tuple[int, int] | None) -> Builder | Profile:
    """Read JSON of the form that its outermost keys show, in any order."""
    start = stream.start
    if start.lstrip()[:1] == b"[":
        return kineto.read_json(JsonStream(stream), stream, within)
    keys = _keys(start)
    if {"shared", "profiles"} & keys and "traceEvents" not in keys:
        return speedscope.read_speedscope(stream.whole(), stream)
    if "header" in keys and {"coll_perf", "p2p_perf"} & keys:
        return inspector.read_lines(stream)
    if {"form", "tier"} <= keys:
        return _own(stream)
    if "traceEvents" in keys or _whole_object_is_open(start):
        return kineto.read_json(JsonStream(stream), stream, within)
    raise BadInput("is JSON of no known form", field=stream.name, remedy=_KNOWN)


def _keys(start: bytes) -> set[str]:
    """The outermost keys as far as the first piece shows them."""

    class _Once(Stream):
        def __init__(self) -> None:
            self.name, self._left = "", start

        def read(self, n: int = 0) -> bytes:  # noqa: ARG002
            left, self._left = self._left, b""
            return left

    cursor, found = JsonStream(_Once()), set()
    try:
        for key in cursor.members():
            found.add(key)
            if key == "traceEvents":
                break
            cursor.value()
    except BadInput:
        pass
    return found


def _whole_object_is_open(start: bytes) -> bool:
    """Whether a trace's usual keys came, but its events lie behind the first piece."""
    return b'"schemaVersion"' in start[:_HEAD] or b'"deviceProperties"' in start[:_HEAD]


def _own(stream: _Peeked) -> Profile:
    import msgspec

    try:
        told = msgspec.json.decode(stream.whole())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(stream.name, f"is no profile of unidle: {error}") from None
    if not isinstance(told, Mapping):
        raise damaged(stream.name, "is no profile of unidle")
    return Profile.from_json(told)


def _read_text(stream: _Peeked) -> Builder:
    head = stream.start[:_HEAD]
    if head.startswith(b"MOJ"):
        raise BadInput(
            "is austin's binary form (MOJO)",
            field=stream.name,
            remedy="convert it with mojo2austin, or run austin 3 without -b",
        )
    if head.startswith(b"PERFILE2"):
        raise BadInput(
            "is perf's data file", field=stream.name, remedy="give the text: perf script --header > FILE"
        )
    if folded.is_austin(head):
        return folded.read_austin(stream)
    if perf_script.is_perf_script(head):
        return perf_script.read_perf_script(stream)
    if b"\0" not in head and folded.is_folded(head):
        return folded.read_folded(stream)
    raise BadInput("is of no known form", field=stream.name, remedy=_KNOWN)


def merge(profile: Profile, path: str | os.PathLike[str]) -> Profile:
    """``profile`` with the devices and collectives of the file, on the profile's own clock.

    Threads' samples are not taken over: the profile has its own of the same time, which are better. A file without a
    clock, or of another time, adds nothing but a note. Raises :class:`BadInput` as :func:`read` does.
    """
    told = read(path, _window(profile) if profile.wall_start_ns else None)
    return merge_profile(profile, told, Path(path).name)


def merge_profile(profile: Profile, told: Profile, name: str) -> Profile:
    """The same with what was read of ``name`` already."""
    window = _window(profile)
    if told.tier != "T3":
        return _noted(profile, f"{name}: is a profile of unidle, which is not merged with another")
    form = told.quality.notes[0].removeprefix("imported from ").removesuffix(", not measured by unidle")
    reason = _why_not(profile, told, window)
    if reason:
        return _noted(profile, f"{name} ({form}) was not merged: {reason}")
    merged = _joined(profile, told, profile.start_ns - profile.wall_start_ns)
    spans = len(merged.spans) - len(profile.spans)
    note = f"{name}: {spans} spans of devices and collectives come from {form}, not measured by unidle (T3)"
    return _noted(merged, note, *told.quality.notes[1:])


def _window(profile: Profile) -> tuple[int, int]:
    return profile.wall_start_ns, profile.wall_start_ns + profile.end_ns - profile.start_ns


def _why_not(profile: Profile, told: Profile, window: tuple[int, int]) -> str:
    if not profile.wall_start_ns:
        return "the profile has no start time"
    devices = any(thread.tid < 0 for thread in told.threads)
    gap = max(told.start_ns - window[1], window[0] - told.end_ns)
    if told.wall_start_ns and gap > 0:
        when = "after" if told.start_ns > window[1] else "before"
        return f"its time lies {gap / 1e9:.1f} s {when} the profile's"
    if not devices:
        return "it holds no device's time of this window; unidle profile --from shows it by itself"
    if not told.wall_start_ns:
        return "it has no clock that can be aligned"
    return ""


def _noted(profile: Profile, *notes: str) -> Profile:
    quality = replace(profile.quality, notes=(*profile.quality.notes, *notes))
    return replace(profile, quality=quality)


def _same_process(profile: Profile, told: Profile) -> dict[int, int]:
    """Pids of the file to pids of the profile: the same, or, seen from another namespace, the only ones or by rank."""
    ours = [process.pid for process in profile.processes] or sorted({s.pid for s in profile.samples})
    theirs = [process.pid for process in told.processes]
    same = {pid: pid for pid in theirs if pid in ours}
    if same:
        return same
    if len(ours) == len(theirs) == 1:
        return {theirs[0]: ours[0]}
    ranks = {process.rank: process.pid for process in profile.processes if process.rank is not None}
    return {p.pid: ranks[p.rank] for p in told.processes if p.rank in ranks}


def _joined(profile: Profile, told: Profile, shift: int) -> Profile:
    devices = _devices(profile, told, shift)
    frames = {frame: n for n, frame in enumerate(profile.frames)}
    stacks = {stack: n for n, stack in enumerate(profile.stacks)}

    def stack(number: int) -> int:
        row = tuple(frames.setdefault(frame, len(frames)) for frame in told.stack(number))
        return stacks.setdefault(row, len(stacks))

    samples = [replace(s, stack=stack(s.stack)) for s in devices.samples]
    present = {process.pid for process in profile.processes}
    needed = {thread.pid for thread in devices.threads} - present
    dropped = profile.quality.spans_dropped + told.quality.spans_dropped
    return replace(
        profile,
        frames=tuple(frames),
        stacks=tuple(stacks),
        samples=(*profile.samples, *samples),
        threads=profile.threads + devices.threads,
        processes=(*profile.processes, *(p for p in devices.processes if p.pid in needed)),
        calls=profile.calls + devices.calls,
        spans=profile.spans + devices.spans,
        quality=replace(profile.quality, spans_dropped=dropped),
    )


def _devices(profile: Profile, told: Profile, shift: int) -> Profile:
    """What the file has of devices, with the processes and the clock of ``profile``; only spans within its time."""
    pids = _same_process(profile, told)
    start, end = profile.start_ns, profile.end_ns
    # streams of a file merged earlier keep their numbers
    below = min((thread.tid for thread in profile.threads if thread.tid < 0), default=0)

    def pid(number: int) -> int:
        return pids.get(number, number)

    spans = [
        replace(s, pid=pid(s.pid), tid=s.tid + below, start_ns=s.start_ns + shift, end_ns=s.end_ns + shift)
        for s in told.spans
        if s.tid < 0
    ]
    threads = [
        replace(
            t, pid=pid(t.pid), tid=t.tid + below,
            first_ns=max(start, t.first_ns + shift), last_ns=min(end, t.last_ns + shift),
        )
        for t in told.threads
        if t.tid < 0
    ]  # fmt: skip
    return replace(
        told,
        samples=tuple(replace(s, pid=pid(s.pid), tid=s.tid + below) for s in told.samples if s.tid < 0),
        spans=tuple(s for s in spans if s.end_ns >= start and s.start_ns <= end),
        threads=tuple(threads),
        calls=tuple(replace(c, pid=pid(c.pid), tid=c.tid + below) for c in told.calls if c.tid < 0),
        processes=tuple(Process(pid(p.pid), p.command, rank=p.rank) for p in told.processes),
    )
