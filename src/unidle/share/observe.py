"""What the ledger saw of work that shares a GPU: how long steps took alone, and beside one other.

Only steps that were seen count (rows with a step number). A step was *alone* when no other job worked on the
device meanwhile, and *shared* when exactly one other did, all the time. Where marks skip steps, a row's time is
divided by the steps that it covers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import Final, NamedTuple

from unidle.ledger.columns import LEAVES, RowColumns
from unidle.ledger.taxonomy import GROUP_OF
from unidle.share.loads import Interference
from unidle.share.modes import Mode

LEAST_STEPS: Final = 5  # of each kind, else there is no observation

Span = tuple[int, int]


class Observation(NamedTuple):
    """One job's median step, alone and beside a job of load ``other``; ``steps`` shared ones were seen."""

    job: str
    mode: Mode
    load: str
    other: str
    alone_ns: int
    shared_ns: int
    steps: int


class _Step(NamedTuple):
    start_ns: int
    end_ns: int
    each_ns: int


@dataclass(slots=True)
class _Tenant:
    """One job on one device: when it worked, and the steps that were seen (a job's slices count once)."""

    work: list[Span] = field(default_factory=list)
    steps: dict[Span, int] = field(default_factory=dict)


def observations(
    rows: RowColumns, load_of: Mapping[str, str], mode_of: Mapping[str, Mode]
) -> tuple[Observation, ...]:
    """What ``rows`` (that stand, in order of slice and time) show, in the order of jobs.

    ``load_of`` names the load of each job, ``mode_of`` how each device was cut; others are passed over, but a job
    of unknown load is company all the same.
    """
    alone: dict[tuple[str, Mode], list[int]] = defaultdict(list)
    shared: dict[tuple[str, Mode, str], list[int]] = defaultdict(list)
    for device, tenants in _by_device(rows, mode_of).items():
        mode = mode_of[device]
        work = {job: _joined(tenant.work) for job, tenant in tenants.items()}
        for job in tenants.keys() & load_of.keys():
            others = {j: spans for j, spans in work.items() if j != job}
            for step in _steps(tenants[job].steps):
                if not step.each_ns:
                    continue
                beside = [j for j, spans in others.items() if _touches(spans, step)]
                if not beside:
                    alone[job, mode].append(step.each_ns)
                elif len(beside) == 1 and beside[0] in load_of and _covers(others[beside[0]], step):
                    shared[job, mode, load_of[beside[0]]].append(step.each_ns)
    found = []
    for (job, mode, other), times in sorted(shared.items()):
        before = alone.get((job, mode), [])
        if min(len(times), len(before)) >= LEAST_STEPS:
            found.append(
                Observation(job, mode, load_of[job], other, median_low(before), median_low(times), len(times))
            )
    return tuple(found)


def learn(table: Interference, seen: Iterable[Observation]) -> Interference:
    """The table with every observation added; each counts once, however many steps it is of."""
    for o in seen:
        table = table.observed(o.mode, o.load, o.other, o.alone_ns, o.shared_ns)
    return table


def _by_device(rows: RowColumns, mode_of: Mapping[str, Mode]) -> dict[str, dict[str, _Tenant]]:
    """What each job did on each device; work that the ledger only infers is company too."""
    work = [GROUP_OF[leaf] in ("step", "serve", "fill") for leaf in LEAVES]
    devices = rows.slices.names.devices
    found: dict[str, dict[str, _Tenant]] = defaultdict(lambda: defaultdict(_Tenant))
    names = ("slice", "start_ns", "end_ns", "leaf", "job", "step")
    for piece, start, end, leaf, job, step in zip(*(rows[n].tolist() for n in names), strict=True):
        if work[leaf] and job and devices[piece] in mode_of:
            tenant = found[devices[piece]][rows.jobs[job].id]
            tenant.work.append((start, end))
            if step >= 0:
                tenant.steps[start, end] = step
    return found


def _steps(spans: Mapping[Span, int]) -> list[_Step]:
    """Steps with the time of each one; 0 where it is not known how many a row covers."""
    ordered = sorted(spans.items())
    steps = [_Step(*ordered[0][0], 0)] if ordered else []
    for ((_, before_end), before), ((start, end), number) in pairwise(ordered):
        known = start == before_end and number > before
        steps.append(_Step(start, end, (end - start) // (number - before) if known else 0))
    return steps


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans as few as possible; those that touch are one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _touches(spans: Sequence[Span], step: _Step) -> bool:
    """Whether any span has a moment in common with the step."""
    at = bisect_left(spans, (step.end_ns, 0)) - 1  # the last that begins before the step's end
    return at >= 0 and spans[at][1] > step.start_ns


def _covers(spans: Sequence[Span], step: _Step) -> bool:
    """Whether one span holds the whole step."""
    at = bisect_right(spans, step.start_ns, key=lambda span: span[0]) - 1
    return at >= 0 and spans[at][1] >= step.end_ns
