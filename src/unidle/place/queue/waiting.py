"""Waiting jobs by queue, in the order in which a queue offers them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from unidle.place.queue.backfill import Backfill, order_key
from unidle.place.queue.fair import Shares
from unidle.place.queue.model import Demand, alike


@dataclass(slots=True)
class _Line:
    """One queue's jobs: by the policy's order, and by age for those that starve."""

    in_order: list[tuple[tuple[int, int, str], str]] = field(default_factory=list)
    by_age: list[tuple[int, str]] = field(default_factory=list)


class Waiting:
    """Jobs that wait; keeps the counts of ``shares`` in step."""

    def __init__(self, shares: Shares, policy: Backfill) -> None:
        self._shares, self._policy = shares, policy
        self._lines: dict[int, _Line] = {}
        self.jobs: dict[str, Demand] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, demand: Demand) -> None:
        """A job begins to wait."""
        leaf = self._shares.tree.leaf(demand.queue)
        line = self._lines.setdefault(leaf, _Line())
        insort(line.in_order, (order_key(demand, self._policy), demand.job))
        insort(line.by_age, (demand.submitted_ns, demand.job))
        self.jobs[demand.job] = demand
        self._shares.submit(leaf, demand.charged)

    def remove(self, job: str) -> Demand:
        """A job waits no more."""
        self.count(self.jobs[job], -1)
        return self.leave(job)

    def count(self, demand: Demand, sign: int) -> None:
        """Count a job of the lines (+1), or count it no more (-1) although it stands there still."""
        leaf = self._shares.tree.leaf(demand.queue)
        (self._shares.submit if sign > 0 else self._shares.withdraw)(leaf, demand.charged)

    def leave(self, job: str) -> Demand:
        """A job that is not counted any more leaves its line."""
        demand = self.jobs.pop(job)
        line = self._lines[self._shares.tree.leaf(demand.queue)]
        del line.in_order[bisect_left(line.in_order, (order_key(demand, self._policy), job))]
        del line.by_age[bisect_left(line.by_age, (demand.submitted_ns, job))]
        return demand

    def of(self, leaf: int, now_ns: int) -> Iterator[Demand]:
        """A queue's jobs in order, those that starve first. Jobs may be removed once they were given."""
        line = self._lines.get(leaf)
        if line is None:
            return
        old = line.by_age[: bisect_left(line.by_age, (now_ns - self._policy.starved_ns + 1, ""))]
        starved = {job for _, job in old}
        for _, job in old:
            yield self.jobs[job]
        # in pieces, so that a long line is not copied for the few jobs that are looked at
        after: tuple[tuple[int, int, str], str] | None = None
        while True:
            at = 0 if after is None else bisect_left(line.in_order, after)
            if after is not None and at < len(line.in_order) and line.in_order[at] == after:
                at += 1
            if at == len(line.in_order):
                return
            after = line.in_order[at]
            if after[1] not in starved:
                yield self.jobs[after[1]]


class Line:
    """A queue's jobs in order, some of which can be put back."""

    def __init__(self, jobs: Iterator[Demand]) -> None:
        self._jobs = jobs
        self._back: deque[Demand] = deque()

    def next(self) -> Demand | None:
        """The next job; None at the end."""
        return self._back.popleft() if self._back else next(self._jobs, None)

    def back(self, jobs: Iterable[Demand]) -> None:
        """These, in their order, are next again."""
        self._back.extendleft(reversed(list(jobs)))

    def alike(self, demand: Demand, most: int) -> list[Demand]:
        """The next jobs as long as they are like this one, at most so many; they are taken out."""
        found: list[Demand] = []
        while len(found) < most and (after := self.next()) is not None:
            if not alike(demand, after):
                self.back([after])
                break
            found.append(after)
        return found
