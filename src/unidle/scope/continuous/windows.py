"""What is kept of a look: one rank's part of a profile, made small; and several of them as one. Pure.

A profile that is kept has no gaps: put together, each window begins where the one before it ends, so that the time
between windows does not exist in it. The real time of a window is reported with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from unidle.errors import BadInput
from unidle.scope.merge import merge, renumbered
from unidle.scope.model import Call, Frame, Profile, Sample, Span
from unidle.words import counted

STACKS_MOST: Final = 400
SPANS_MOST: Final = 256
CALLS_MOST: Final = 400
REST: Final = Frame("native", "(stacks that took little time)")
APART: Final = 10_000_000
"""More than any process number: those of a host are moved by a multiple of it."""
_BODY_MOST: Final = 256 << 20  # bytes of JSON of one window
_LEVEL: Final = 6


def part_of(
    profile: Profile, pids: Collection[int], *, rank: int | None = None, job: str = "", root: int = 0
) -> Profile:
    """The rows of some processes. The one of them that is ``root`` gets the rank and the job."""
    part = profile.of_processes(pids)
    processes = tuple(
        replace(p, rank=rank, job=job) if p.pid == root else replace(p, job=job) if job else p
        for p in part.processes
    )
    return compact(replace(part, processes=processes))


def compact(profile: Profile) -> Profile:
    """The same rows with no stack and frame that none of them names."""
    named = {s.stack for s in profile.samples} | {h.stack for h in profile.memory}
    named |= {m.stack for m in profile.moments}
    named |= {c.stack for c in profile.calls if c.stack is not None}
    stacks = {old: new for new, old in enumerate(sorted(named))}
    used = sorted({n for old in stacks for n in profile.stacks[old]})
    frames = {old: new for new, old in enumerate(used)}
    return replace(
        profile,
        frames=tuple(profile.frames[n] for n in used),
        stacks=tuple(tuple(frames[n] for n in profile.stacks[old]) for old in stacks),
        samples=tuple(replace(s, stack=stacks[s.stack]) for s in profile.samples),
        memory=tuple(replace(h, stack=stacks[h.stack]) for h in profile.memory),
        moments=tuple(replace(m, stack=stacks[m.stack]) for m in profile.moments),
        calls=tuple(c if c.stack is None else replace(c, stack=stacks[c.stack]) for c in profile.calls),
    )


def small(profile: Profile, *, stacks_most: int = STACKS_MOST) -> Profile:
    """A profile for the store: memory left out, the stacks with the least time put together for each thread and state.

    Times and counts stay exact. Of spans the latest are kept, of calls those that took longest; what is left out is
    counted in ``Quality.spans_dropped``.
    """
    spans = sorted(profile.spans, key=lambda s: (s.end_ns, s.start_ns))[-SPANS_MOST:]
    spans_dropped = profile.quality.spans_dropped + len(profile.spans) - len(spans)
    calls = _fewer_calls(profile.calls)
    weights: dict[int, int] = {}
    for s in profile.samples:
        weights[s.stack] = weights.get(s.stack, 0) + s.ns
    made = replace(
        profile,
        memory=(),
        moments=(),
        cuts=(),
        calls=calls,
        spans=tuple(spans),
        quality=replace(profile.quality, spans_dropped=spans_dropped),
    )
    if len(weights) <= stacks_most:
        return compact(made)
    kept = set(sorted(weights, key=lambda n: (-weights[n], n))[: max(stacks_most - 1, 0)])
    rest = len(profile.stacks)
    sums: dict[tuple[int, int, int, Any], tuple[int, int]] = {}
    for s in profile.samples:
        key = (s.pid, s.tid, s.stack if s.stack in kept else rest, s.state)
        count, ns = sums.get(key, (0, 0))
        sums[key] = (count + s.count, ns + s.ns)
    samples = tuple(Sample(*key, count, ns) for key, (count, ns) in sums.items())
    return compact(
        replace(
            made,
            frames=(*made.frames, REST), stacks=(*made.stacks, (len(made.frames),)), samples=samples,
        )
    )  # fmt: skip


def _fewer_calls(calls: Sequence[Call]) -> tuple[Call, ...]:
    """By thread and name, without their places; those that took longest, else came most often."""
    sums: dict[tuple[int, int, str, str], Call] = {}
    for c in calls:
        key = (c.pid, c.tid, c.name, c.kind)
        before = sums.get(key)
        if before is None:
            sums[key] = replace(c, stack=None)
            continue
        ns = None if before.ns is None and c.ns is None else (before.ns or 0) + (c.ns or 0)
        sums[key] = replace(before, count=before.count + c.count, ns=ns, n_bytes=before.n_bytes + c.n_bytes)
    return tuple(sorted(sums.values(), key=lambda c: (-(c.ns or 0), -c.count, c.name))[:CALLS_MOST])


def together(parts: Sequence[Sequence[Profile]]) -> Profile:
    """One profile of several windows in order, each of them one profile per rank of the same look.

    The windows are put end to end. Raises :class:`BadInput` if all are empty.
    """
    moved: list[Profile] = []
    at_ns: int | None = None
    for window in parts:
        if not window:
            continue
        begin_ns = min(p.start_ns for p in window)
        at_ns = begin_ns if at_ns is None else at_ns
        moved += [shifted(p, at_ns - begin_ns) for p in window]
        at_ns += max(p.end_ns for p in window) - begin_ns
    return merge(moved)


def shifted(profile: Profile, by_ns: int) -> Profile:
    """The same profile at another time; ``wall_start_ns`` stays."""
    if not by_ns:
        return profile
    return replace(
        profile,
        start_ns=profile.start_ns + by_ns,
        end_ns=profile.end_ns + by_ns,
        threads=tuple(
            replace(t, first_ns=t.first_ns + by_ns, last_ns=t.last_ns + by_ns) for t in profile.threads
        ),
        spans=tuple(
            Span(s.pid, s.tid, s.name, s.kind, s.start_ns + by_ns, s.end_ns + by_ns, s.n_bytes)
            for s in profile.spans
        ),
    )


def apart(profiles: Mapping[Any, Sequence[Profile]]) -> list[Profile]:
    """The profiles of several attempts with process numbers of their own: the kernel may have used one twice."""
    taken: set[int] = set()
    made: list[Profile] = []
    for group in profiles.values():
        pids = {p.pid for one in group for p in one.processes} | {s.pid for one in group for s in one.samples}
        free = max([0, *taken, *pids]) + 1
        moved = {pid: free + k for k, pid in enumerate(sorted(pids & taken))}
        made += [renumbered(one, moved) if moved else one for one in group]
        taken |= pids - moved.keys() | set(moved.values())
    return made


def host_of(profile: Profile) -> int:
    """The number of the host of a window: its process numbers are moved by so many times :data:`APART`."""
    return min((p.pid for p in profile.processes), default=0) // APART


def packed(profile: Profile) -> bytes:
    """A profile as the store keeps it: its JSON, compressed."""
    return zlib.compress(msgspec.json.encode(profile.to_json()), _LEVEL)


def unpacked(body: bytes) -> Profile:
    """The profile of :func:`packed`. Raises :class:`BadInput`."""
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, _BODY_MOST)
        if inflate.unconsumed_tail or not inflate.eof:
            raise BadInput("is torn or too large", field="profile", value=counted(len(body), "byte"))
        told = msgspec.json.decode(plain)
    except (zlib.error, msgspec.DecodeError) as error:
        raise BadInput(f"cannot be read: {error}", field="profile") from None
    if not isinstance(told, dict):
        raise BadInput("is no profile of unidle", field="profile")
    return Profile.from_json(told)
