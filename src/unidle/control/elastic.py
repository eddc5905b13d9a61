"""How many ranks an elastic job starts with: as many as the next decision would place. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.place.protocol import Policy
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.words import counted


class ElasticSizes:
    """The elastic jobs of one controller that have not ended."""

    def __init__(self) -> None:
        self._jobs: set[str] = set()

    def add(self, job: JobView) -> None:
        """Take note of a job; most are not elastic."""
        if job.spec.elastic is not None:
            self._jobs.add(job.id)

    def choose(self, view: View, policy: Policy, now_ns: int) -> Iterator[ev.Resized]:
        """Before a decision: each waiting elastic job gets the largest size that it would place, else its least.

        One for which devices are being freed keeps its size.

        Each event is to be folded before the next one is asked for.
        """
        if not self._jobs:
            return
        self._jobs &= view.jobs.open.keys()
        waiting = [
            job
            for name in self._jobs
            if _waits(job := view.jobs.open[name], now_ns) and name not in view.promised
        ]
        for job in sorted(waiting, key=lambda job: (-job.spec.priority, job.order)):
            before = job.spec.ranks
            try:
                size, fits = _largest(view, job, policy, now_ns)
            finally:
                if job.spec.ranks != before:
                    view.resize(job, before)
            if size != before:
                yield ev.Resized(job.id, size, _because(job, size, fits))


def _waits(job: JobView, now_ns: int) -> bool:
    return job.state in ("queued", "restarting") and job.not_before_ns <= now_ns


def _largest(view: View, job: JobView, policy: Policy, now_ns: int) -> tuple[int, bool]:
    """The largest size that starts now, by halves; the least one where none does."""
    sizes = job.spec.sizes
    if _starts(view, job, sizes[0], policy, now_ns):
        return sizes[0], True
    if not _starts(view, job, sizes[-1], policy, now_ns):
        return sizes[-1], False
    low, high = 0, len(sizes) - 1  # sizes[low] does not start, sizes[high] does
    while high - low > 1:
        middle = (low + high) // 2
        if _starts(view, job, sizes[middle], policy, now_ns):
            high = middle
        else:
            low = middle
    return sizes[high], True


def _starts(view: View, job: JobView, ranks: int, policy: Policy, now_ns: int) -> bool:
    if job.spec.ranks != ranks:
        view.resize(job, ranks)
    plan = policy.decide(view, now_ns)
    starts = any(place.job == job.id for place in plan.places)
    # filler on spares leaves so soon that it is worth the wait
    return starts or any(stop.for_job == job.id and stop.grace_ns is not None for stop in plan.stops)


def _because(job: JobView, size: int, fits: bool) -> Reason:
    elastic = job.spec.elastic
    assert elastic is not None
    bounds = f"of {elastic.min} to {elastic.max}"
    text = (
        f"{counted(size, 'rank')} {bounds} fit now"
        if fits
        else f"waits for room for {counted(size, 'rank')} {bounds}"
    )
    return Reason("elastic", text, {"ranks": size, "min": elastic.min, "max": elastic.max})
