"""Running jobs by the time at which they are expected to end, kept in order as jobs come and go."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter

from unidle.place.queue.model import Running


class Ends:
    """Two lists in order: ends of jobs with an estimate, and starts of the others."""

    def __init__(self, running: Iterable[Running]) -> None:
        self._ends: list[tuple[int, str, Running]] = []
        self._starts: list[tuple[int, str, Running]] = []
        for run in running:
            line, at_ns = self._place(run)
            line.append((at_ns, run.job, run))
        self._ends.sort(key=itemgetter(0, 1))
        self._starts.sort(key=itemgetter(0, 1))

    def add(self, run: Running) -> None:
        """It runs from now on."""
        line, at_ns = self._place(run)
        insort(line, (at_ns, run.job, run), key=itemgetter(0, 1))

    def remove(self, run: Running) -> None:
        """It runs no more."""
        line, at_ns = self._place(run)
        del line[bisect_left(line, (at_ns, run.job), key=itemgetter(0, 1))]

    def after(self, now_ns: int, otherwise_ns: int) -> Iterator[tuple[int, Running]]:
        """All that run, by expected end; ``otherwise_ns`` is the run time of a job without an estimate."""
        late = bisect_right(self._ends, now_ns, key=itemgetter(0))
        also_late = bisect_right(self._starts, now_ns - otherwise_ns, key=itemgetter(0))
        overdue = sorted(
            (expected_end_ns(run, now_ns, otherwise_ns), job, run)
            for line in (self._ends[:late], self._starts[:also_late])
            for _, job, run in line
        )
        in_time = ((at_ns + otherwise_ns, job, run) for at_ns, job, run in self._starts[also_late:])
        for end_ns, _, run in heapq.merge(overdue, self._ends[late:], in_time, key=itemgetter(0, 1)):
            yield end_ns, run

    def _place(self, run: Running) -> tuple[list[tuple[int, str, Running]], int]:
        if run.estimate_ns is None:
            return self._starts, run.started_ns
        return self._ends, run.started_ns + max(run.estimate_ns, 1)


def expected_end_ns(run: Running, now_ns: int, otherwise_ns: int) -> int:
    """When a running job is expected to end; ``otherwise_ns`` is the run time of one without an estimate.

    A job that outlived its estimate is expected to run for half as long again, counted from its
    start, as often as it takes (estimates have to grow by a factor, or each miss is followed by another).
    """
    total = run.estimate_ns if run.estimate_ns is not None else otherwise_ns
    total = max(total, 1)
    ran = now_ns - run.started_ns
    while total <= ran:
        total += total // 2 + 1
    return run.started_ns + total
