"""Several profiles as one: the same frame, stack, thread, call and process once, their times added. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np

from unidle.errors import BadInput
from unidle.scope.model import Call, Frame, Moment, Process, Profile, Quality, Sample, StackMemory, Thread
from unidle.scope.samples import STATE_ORDER, joined, rows_of

_Row = TypeVar("_Row", Sample, Thread, Process, Call, StackMemory, Moment)


@dataclass(slots=True)
class Interned:
    """Frames and stacks of several profiles under common numbers, in the order in which they were first seen."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self, profile: Profile) -> list[int]:
        """The common number of each of the profile's stacks."""
        frames = [self.frames.setdefault(frame, len(self.frames)) for frame in profile.frames]
        return [
            self.stacks.setdefault(tuple([frames[n] for n in stack]), len(self.stacks))
            for stack in profile.stacks
        ]


def merge(profiles: Sequence[Profile]) -> Profile:
    """One profile of all, given in the order of time. Raises :class:`BadInput` if none is given.

    The same process number is the same process: profiles of several machines go through :func:`renumbered` first.
    Counts, times and bytes are added, windows united. Of the quality, samples and drops are added, shares are means
    weighted by samples, overhead and time to the first sample are the highest of any, and the tier is the poorest.
    Merging merged profiles gives the same as merging all at once (shares to the precision of their floats).
    """
    if not profiles:
        raise BadInput("is empty", field="profiles", remedy="name at least one profile")
    interned = Interned()
    moved = [_Moved(profile, interned.add(profile)) for profile in profiles]
    return Profile(
        tier=max(p.tier for p in profiles),
        start_ns=min(p.start_ns for p in profiles),
        end_ns=max(p.end_ns for p in profiles),
        frames=tuple(interned.frames),
        stacks=tuple(interned.stacks),
        samples=_samples(moved),
        threads=_united((thread for p in profiles for thread in p.threads), _thread_key, _thread),
        processes=_united((process for p in profiles for process in p.processes), _process_key, _process),
        calls=_united((call for m in moved for call in m.calls()), _call_key, _call),
        spans=tuple(span for p in profiles for span in p.spans),
        memory=_memory(moved),
        moments=_moments(moved),
        cuts=tuple(dict.fromkeys(cut for p in profiles for cut in p.cuts)),
        quality=_quality([p.quality for p in profiles]),
        misses=_once(p.misses for p in profiles),
        hz=profiles[0].hz,
        wall_start_ns=min((p.wall_start_ns for p in profiles if p.wall_start_ns), default=0),
    )


def renumbered(profile: Profile, pids: Mapping[int, int]) -> Profile:
    """The profile with other process numbers, for machines whose numbers collide. Numbers not named stay."""

    def moved(rows: Iterable[_Row]) -> tuple[_Row, ...]:
        return tuple(replace(row, pid=pids.get(row.pid, row.pid)) for row in rows)

    processes = tuple(replace(p, parent=pids.get(p.parent, p.parent)) for p in moved(profile.processes))
    return replace(
        profile,
        samples=moved(profile.samples),
        threads=moved(profile.threads),
        processes=processes,
        calls=moved(profile.calls),
        spans=tuple(replace(span, pid=pids.get(span.pid, span.pid)) for span in profile.spans),
        memory=moved(profile.memory),
        moments=moved(profile.moments),
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    """A profile, and the common numbers of its stacks."""

    profile: Profile
    stacks: list[int]

    def calls(self) -> Iterable[Call]:
        for call in self.profile.calls:
            yield call if call.stack is None else replace(call, stack=self.stacks[call.stack])

    def memory(self) -> Iterable[StackMemory]:
        return (replace(held, stack=self.stacks[held.stack]) for held in self.profile.memory)

    def moments(self) -> Iterable[Moment]:
        return (replace(row, stack=self.stacks[row.stack]) for row in self.profile.moments)


def _memory(moved: Sequence[_Moved]) -> tuple[StackMemory, ...]:
    """Allocations are added; what is live is taken from the last profile that has the process."""
    sums: dict[tuple[int, int, str], StackMemory] = {}
    last: dict[int, int] = {}
    for number, m in enumerate(moved):
        for pid in {held.pid for held in m.profile.memory} | {process.pid for process in m.profile.processes}:
            last[pid] = number
    for number, m in enumerate(moved):
        for row in m.memory():
            before = sums.get((row.pid, row.stack, row.device))
            is_last = number == last[row.pid]
            live = (row.live_bytes, row.live) if is_last else (0, 0)
            sums[row.pid, row.stack, row.device] = replace(
                row,
                allocated_bytes=row.allocated_bytes + (before.allocated_bytes if before else 0),
                allocations=row.allocations + (before.allocations if before else 0),
                live_bytes=live[0] + (before.live_bytes if before else 0),
                live=live[1] + (before.live if before else 0),
            )
    return tuple(sums.values())


def _moments(moved: Iterable[_Moved]) -> tuple[Moment, ...]:
    """What lived at a moment is no sum: the rows of all windows, in the order of time."""
    every = {(m.pid, m.stack, m.device, m.time_ns): m for one in moved for m in one.moments()}
    return tuple(row for _, row in sorted(every.items()))


def _samples(moved: Iterable[_Moved]) -> tuple[Sample, ...]:
    parts = []
    for m in moved:
        rows = rows_of(m.profile.samples)
        parts.append(replace(rows, stack=np.asarray(m.stacks, np.int64)[rows.stack]))
    return tuple(
        Sample(pid, tid, stack, STATE_ORDER[state], count, ns)
        for pid, tid, stack, state, count, ns in joined(parts).summed()
    )


def _united(
    rows: Iterable[_Row], key: Callable[[_Row], object], add: Callable[[_Row, _Row], _Row]
) -> tuple[_Row, ...]:
    found: dict[object, _Row] = {}
    for row in rows:
        name = key(row)
        found[name] = add(found[name], row) if name in found else row
    return tuple(found.values())


def _thread_key(row: Thread) -> object:
    return row.pid, row.tid


def _thread(a: Thread, b: Thread) -> Thread:
    return Thread(
        a.pid, a.tid, a.name or b.name, a.on_ns + b.on_ns, a.off_ns + b.off_ns, a.runq_ns + b.runq_ns,
        min(a.first_ns, b.first_ns), max(a.last_ns, b.last_ns),
    )  # fmt: skip


def _process_key(row: Process) -> object:
    return row.pid


def _process(a: Process, b: Process) -> Process:
    return Process(
        a.pid, a.command or b.command, a.parent or b.parent, a.python or b.python,
        b.rank if a.rank is None else a.rank, a.job or b.job, a.ended or b.ended,
    )  # fmt: skip


def _call_key(row: Call) -> object:
    return row.pid, row.tid, row.name, row.kind, row.stack


def _call(a: Call, b: Call) -> Call:
    ns = None if a.ns is None and b.ns is None else (a.ns or 0) + (b.ns or 0)
    return replace(a, count=a.count + b.count, ns=ns, n_bytes=a.n_bytes + b.n_bytes)


def _quality(told: Sequence[Quality]) -> Quality:
    samples = sum(q.samples for q in told)

    def mean(name: str) -> float:
        if samples == 0:
            return float(getattr(told[0], name))
        return sum(float(getattr(q, name)) * q.samples for q in told) / samples

    return Quality(
        samples=samples,
        drops=sum(q.drops for q in told),
        rooted_pct=mean("rooted_pct"),
        symbolised_pct=mean("symbolised_pct"),
        merge_mismatch_pct=mean("merge_mismatch_pct"),
        bpf_cpu_pct=max((q.bpf_cpu_pct for q in told if q.bpf_cpu_pct is not None), default=None),
        agent_cpu_pct=max((q.agent_cpu_pct for q in told if q.agent_cpu_pct is not None), default=None),
        attach_cpu_s=max((q.attach_cpu_s for q in told if q.attach_cpu_s is not None), default=None),
        spans_dropped=sum(q.spans_dropped for q in told),
        first_sample_ns=max((q.first_sample_ns for q in told if q.first_sample_ns is not None), default=None),
        notes=_once(q.notes for q in told),
    )


def _once(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(groups)))
