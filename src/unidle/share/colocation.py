"""Steps of work that shares a device: how long they took alone, and next to one other. Pure.

A step was *alone* when no other job worked on the device meanwhile, and *shared* when exactly one other did, all
the time. Where marks skip steps, a span's time is divided by the steps that it covers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import Final, NamedTuple

from unidle.fleet import CutMode

LEAST_STEPS: Final = 5  # of each kind, else there is no observation

Span = tuple[int, int]


class Observation(NamedTuple):
    """One job's median step, alone and next to a job of load ``other``; ``steps`` shared ones were seen."""

    job: str
    mode: CutMode
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
class Work:
    """One job on one device: when it worked, and the steps that were seen (a job's slices count once)."""

    work: list[Span] = field(default_factory=list)
    steps: dict[Span, int] = field(default_factory=dict)


class PairedSteps:
    """Collects the steps of jobs, device by device. ``load_of`` names the load of each job.

    Jobs without one are passed over, but they are company all the same.
    """

    def __init__(self, load_of: Mapping[str, str]) -> None:
        self._load_of = load_of
        self._alone: dict[tuple[str, CutMode], list[int]] = defaultdict(list)
        self._shared: dict[tuple[str, CutMode, str], list[int]] = defaultdict(list)

    def add(self, tenants: Mapping[str, Work], mode: CutMode, jobs: Iterable[str]) -> None:
        """What one device, cut so, shows of these jobs."""
        load_of = self._load_of
        work = {job: _joined(tenant.work) for job, tenant in tenants.items()}
        for job in jobs:
            others = {j: spans for j, spans in work.items() if j != job}
            for step in _steps(tenants[job].steps):
                if not step.each_ns:
                    continue
                beside = [j for j, spans in others.items() if _touches(spans, step)]
                if not beside:
                    self._alone[job, mode].append(step.each_ns)
                elif len(beside) == 1 and beside[0] in load_of and _covers(others[beside[0]], step):
                    self._shared[job, mode, load_of[beside[0]]].append(step.each_ns)

    def observations(self) -> tuple[Observation, ...]:
        """One for each job, mode and other load of which enough steps of both kinds were seen."""
        found = []
        for (job, mode, other), times in sorted(self._shared.items()):
            before = self._alone.get((job, mode), [])
            if min(len(times), len(before)) >= LEAST_STEPS:
                medians = median_low(before), median_low(times)
                found.append(Observation(job, mode, self._load_of[job], other, *medians, len(times)))
        return tuple(found)


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
