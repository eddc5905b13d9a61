"""Perfetto's native trace: a track per process and thread with its spans, steps, and memory as heap profiles.

Samples of a :class:`Profile` are sums and have no moments. A callstack sample in this format (``PerfSample``,
``StreamingProfilePacket``) has one, so writing them would invent it: their flame graph is in the formats that hold
sums. Memory needs no moments (``ProfilePacket``), and is here.

Source: ``perfetto_trace.proto``; the numbers of its fields stand next to their use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from unidle.scope.export import names, timeline
from unidle.scope.export.protobuf import RowTable, double, message, number, number_always, text
from unidle.scope.model import Profile, Span, StackMemory

_MONOTONIC: Final = 3
_CLOCKS: Final = (_MONOTONIC, 4, 6)  # ours, its coarse form (heap profiles), and the viewer's own (boot time)
_REALTIME: Final = 1
_SEQUENCE: Final = 1
_BEGIN, _END, _INSTANT = 1, 2, 3


def write(profile: Profile, *, steps: Sequence[Span] = ()) -> bytes:
    """The trace as protocol buffer. ``steps`` get a track per process. The track ``quality`` carries the header."""
    return b"".join(message(1, packet) for packet in _packets(profile, steps))


def _packet(*parts: bytes) -> bytes:
    return b"".join((*parts, number(10, _SEQUENCE)))


class _Tracks:
    """Numbers of tracks, in the order of their making."""

    def __init__(self) -> None:
        self._last = 0
        self.of_process: dict[int, int] = {}
        self.of_thread: dict[tuple[int, int], int] = {}

    def new(self) -> int:
        self._last += 1
        return self._last


def _packets(profile: Profile, steps: Sequence[Span]) -> Iterator[bytes]:
    yield _first(profile)
    tracks = _Tracks()
    yield from _descriptors(profile, steps, tracks)
    for pid, of_steps in timeline.steps_by_process(steps).items():
        for lane in timeline.lanes(of_steps):
            uuid = tracks.new()
            yield _track(uuid, number(5, tracks.of_process[pid]) + text(2, "steps"))
            yield from _slices(uuid, lane)
    for (pid, tid), spans in timeline.by_thread(profile.spans).items():
        for k, lane in enumerate(timeline.lanes(spans)):
            uuid = tracks.of_thread[pid, tid]
            if k:
                uuid = tracks.new()
                yield _track(uuid, number(5, tracks.of_thread[pid, tid]) + text(2, "calls that overlap"))
            yield from _slices(uuid, lane)
    for key, facts in timeline.thread_facts(profile).items():
        if facts:
            yield _event(profile.end_ns, _INSTANT, tracks.of_thread[key], "thread totals", "scope", facts)
    quality = tracks.new()
    yield _track(quality, text(2, "quality"))
    yield _event(profile.start_ns, _BEGIN, quality, "quality of this trace", "scope", names.quality(profile))
    yield _event(profile.end_ns, _END, quality)
    if profile.memory:
        yield _memory(profile)


def _first(profile: Profile) -> bytes:
    """Starts the sequence, and defines the clock of all times."""
    clocks = [(clock, profile.start_ns) for clock in _CLOCKS]
    if profile.wall_start_ns:
        clocks.append((_REALTIME, profile.wall_start_ns))
    rows = b"".join(message(1, number(1, clock) + number_always(2, at)) for clock, at in clocks)
    snapshot = message(6, rows + number(2, _MONOTONIC))
    defaults = message(59, number(58, _MONOTONIC))
    return _packet(number_always(8, profile.start_ns), snapshot, defaults, number(13, 1))


def _track(uuid: int, content: bytes) -> bytes:
    return _packet(message(60, number(1, uuid) + content))


def _descriptors(profile: Profile, steps: Sequence[Span], tracks: _Tracks) -> Iterator[bytes]:
    processes = {process.pid: process for process in profile.processes}
    ranks, labels, threads = (
        names.ranks_of(profile),
        names.process_labels(profile),
        names.threads_of(profile),
    )
    for pid in {**labels, **{step.pid: "" for step in steps}}:
        uuid = tracks.of_process[pid] = tracks.new()
        label = labels.get(pid, f"process {pid}")
        told = number(1, pid) + text(6, label)
        if pid in processes:
            told += text(2, names.visible(processes[pid].command))
        if pid in ranks:
            told += text(8, f"rank {ranks[pid]}")
        yield _track(uuid, message(3, told))
        for tid, name in threads.get(pid, {}).items():
            uuid = tracks.of_thread[pid, tid] = tracks.new()
            told = number(1, pid) + number(2, tid) + text(5, name or names.thread_label(tid, ""))
            yield _track(uuid, number(5, tracks.of_process[pid]) + message(4, told))


def _slices(uuid: int, lane: Iterable[Span]) -> Iterator[bytes]:
    """Begin and end events of nested spans in the order of time: an end before a begin of the same moment."""
    ends: list[int] = []
    for span in lane:
        while ends and ends[-1] <= span.start_ns:
            yield _event(ends.pop(), _END, uuid)
        yield _event(span.start_ns, _BEGIN, uuid, span.name, span.kind, timeline.span_facts(span))
        ends.append(max(span.start_ns, span.end_ns))
    while ends:
        yield _event(ends.pop(), _END, uuid)


def _event(
    at_ns: int,
    kind: int,
    uuid: int,
    name: str = "",
    category: str = "",
    facts: Mapping[str, Any] | None = None,
) -> bytes:
    told = number(9, kind) + number(11, uuid)
    if kind != _END:
        told += text(23, names.visible(name) or "[unknown]") + text(22, names.visible(category) or "span")
    told += b"".join(message(4, _annotation(key, value)) for key, value in (facts or {}).items())
    return _packet(number_always(8, at_ns), message(11, told))


def _annotation(key: str, value: object) -> bytes:
    if isinstance(value, int):
        return text(10, key) + number_always(4, value)
    if isinstance(value, float):
        return text(10, key) + double(5, value)
    return text(10, key) + message(6, str(value).encode("utf-8", "backslashreplace"))


def _memory(profile: Profile) -> bytes:
    """One packet: interned frames and stacks, and a heap profile per process and device."""
    functions, paths, mappings, frames = RowTable(1), RowTable(1), RowTable(1), RowTable(1)
    numbers = [
        frames.place(
            (
                functions.place(names.function_name(frame)),
                mappings.place(paths.place(names.visible(frame.module) or f"[{frame.kind}]")),
                paths.place(names.visible(frame.file)) if frame.file else 0,
                frame.line,
            )
        )
        for frame in profile.frames
    ]
    stacks = sorted({held.stack for held in profile.memory})
    callstacks = {n: k for k, n in enumerate(stacks, 1)}
    rows: list[Any] = frames.rows
    interned = _interned(functions, paths, mappings, rows)
    interned += [
        # Repeated numbers are not packed in this format: its readers would skip them.
        message(7, number(1, n) + b"".join(number(2, numbers[frame]) for frame in profile.stacks[stack]))
        for stack, n in callstacks.items()
    ]
    places: dict[tuple[int, str], list[StackMemory]] = {}
    for held in profile.memory:
        places.setdefault((held.pid, held.device), []).append(held)
    dumps = b"".join(
        message(5, _dump(profile, pid, device, rows, callstacks)) for (pid, device), rows in places.items()
    )
    return _packet(number_always(8, profile.end_ns), message(12, b"".join(interned)), message(37, dumps))


def _interned(functions: RowTable, paths: RowTable, mappings: RowTable, frames: Sequence[Any]) -> list[bytes]:
    """The rows of all tables, each of which is named by its number."""
    interned = [message(5, number(1, n) + text(2, str(row))) for n, row in enumerate(functions.rows, 1)]
    # Module paths and source paths are two name spaces; both find theirs in this table.
    for field in (17, 18):
        interned += [message(field, number(1, n) + text(2, str(row))) for n, row in enumerate(paths.rows, 1)]
    interned += [
        message(19, number(1, n) + number(7, int(str(path)))) for n, path in enumerate(mappings.rows, 1)
    ]
    interned += [
        message(6, number(1, n) + number(2, name) + number(3, module) + number(5, file) + number(6, line))
        for n, (name, module, file, line) in enumerate(frames, 1)
    ]
    return interned


def _dump(
    profile: Profile, pid: int, device: str, rows: Iterable[StackMemory], callstacks: Mapping[int, int]
) -> bytes:
    samples = b"".join(
        message(
            2,
            number(1, callstacks[held.stack])
            + number(2, held.allocated_bytes)
            + number(3, max(0, held.allocated_bytes - held.live_bytes))
            + number(4, profile.end_ns)
            + number(5, held.allocations)
            + number(6, max(0, held.allocations - held.live)),
        )
        for held in rows
    )
    return (
        number(1, pid) + samples + number(9, profile.end_ns) + text(11, f"memory of {names.visible(device)}")
    )
