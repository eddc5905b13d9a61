"""Jobs that wait, queue by queue, each in its queue's order: those that are late first."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from unidle.fleet.queues import Order
from unidle.place.model import Backfill, Demand, Running, alike, order_key
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.order import LATE, QueueTurns, service_class

OrderKey: TypeAlias = tuple[int, int, int, str]


@dataclass(slots=True)
class _Line:
    """One queue's jobs: by the policy's order, and by age for those that starve."""

    in_order: list[tuple[OrderKey, str]] = field(default_factory=list)
    by_age: list[tuple[int, str]] = field(default_factory=list)


class PendingJobs:
    """Jobs that wait; keeps the counts of ``shares`` in step.

    With ``turns`` a job is late by how far it has fallen behind its turn, else by how long it waits.
    """

    def __init__(self, shares: FairShare, policy: Backfill, turns: QueueTurns | None = None) -> None:
        self._shares, self._policy, self.turns = shares, policy, turns
        self.age_ns = policy.age_ns
        self._lines: dict[int, _Line] = {}
        self.held: dict[
            tuple[int, str], int
        ] = {}  # by leaf and user, what their running jobs hold; for ``fair``
        self.jobs: dict[str, Demand] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, demand: Demand) -> None:
        """A job begins to wait."""
        leaf = self._shares.tree.leaf(demand.queue)
        line = self._lines.setdefault(leaf, _Line())
        insort(line.in_order, (self._key(demand), demand.job))
        insort(line.by_age, (demand.submitted_ns, demand.job))
        self.jobs[demand.job] = demand
        self._shares.submit(leaf, demand.charged)

    def order(self, leaf: int) -> Order:
        """The order of a queue's jobs."""
        return self._shares.tree.specs[leaf - 1].order or "fifo"

    def _key(self, demand: Demand) -> OrderKey:
        order = self.order(self._shares.tree.leaf(demand.queue))
        return order_key(demand, self._policy, service_class(order, demand.served_us, demand.expected_us()))

    def class_of(self, job: Demand | Running, now_ns: int) -> int:
        """The class of a job that waits or runs: what comes first in its queue's order (``queue.order``)."""
        if self.late(job, now_ns):
            return LATE
        served_us = job.served_us if isinstance(job, Demand) else job.service_us(now_ns)
        order = self.order(self._shares.tree.leaf(job.queue))
        return service_class(order, served_us, job.expected_us())

    def late(self, job: Demand | Running, now_ns: int) -> bool:
        """Whether the job may fall behind no further; one that is never stopped for others has the whole bound."""
        if self.turns is None:
            return isinstance(job, Demand) and now_ns - job.submitted_ns >= self._policy.starved_ns
        behind_ns = self.turns.behind_ns(job.job, now_ns)
        return behind_ns >= (self._policy.starved_ns if job.firm else self._policy.starved_ns // 2)

    def _late(self, leaf: int, line: _Line, now_ns: int) -> list[str]:
        """Jobs of a queue that are late, the oldest first."""
        if self.turns is None:
            old = line.by_age[: bisect_left(line.by_age, (now_ns - self._policy.starved_ns + 1, ""))]
            return [job for _, job in old]
        waits = (self.jobs[job] for job in self.turns.at_turn(leaf) if job in self.jobs)
        late = sorted((d.submitted_ns, d.job) for d in waits if self.late(d, now_ns))
        return [job for _, job in late]

    def next_late_ns(self, now_ns: int) -> int | None:
        """When the next job of those that wait becomes late, were nothing else to happen."""
        if self.turns is None:
            return None
        half_ns, times = self._policy.starved_ns // 2, []
        for leaf in self._lines:
            for job in self.turns.at_turn(leaf):
                if (demand := self.jobs.get(job)) is not None:
                    bound_ns = 2 * half_ns if demand.firm else half_ns
                    times.append(now_ns + bound_ns - self.turns.behind_ns(job, now_ns))
        return min((at_ns for at_ns in times if at_ns > now_ns), default=None)

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
        del line.in_order[bisect_left(line.in_order, (self._key(demand), job))]
        del line.by_age[bisect_left(line.by_age, (demand.submitted_ns, job))]
        return demand

    def of(self, leaf: int, now_ns: int) -> Iterator[Demand]:
        """A queue's jobs in order, those that starve first. Jobs may be removed once they were given."""
        line = self._lines.get(leaf)
        if line is None:
            return
        late = self._late(leaf, line, now_ns)
        starved = set(late)
        for job in late:
            yield self.jobs[job]
        if self.order(leaf) == "fair":
            yield from self._user_by_user(leaf, [job for _, job in line.in_order if job not in starved])
            return
        # in pieces, so that a long line is not copied for the few jobs that are looked at
        after: tuple[OrderKey, str] | None = None
        while True:
            at = 0 if after is None else bisect_left(line.in_order, after)
            if after is not None and at < len(line.in_order) and line.in_order[at] == after:
                at += 1
            if at == len(line.in_order):
                return
            after = line.in_order[at]
            if after[1] not in starved:
                yield self.jobs[after[1]]

    def _user_by_user(self, leaf: int, jobs: list[str]) -> Iterator[Demand]:
        """The next job of the user who holds the least, what was given here counted."""
        lines: dict[str, deque[Demand]] = {}
        for job in jobs:
            lines.setdefault(self.jobs[job].user, deque()).append(self.jobs[job])
        heap = [(self.held.get((leaf, user), 0), k, user) for k, user in enumerate(lines)]
        heapq.heapify(heap)
        while heap:
            held, k, user = heapq.heappop(heap)
            demand = lines[user].popleft()
            if lines[user]:
                heapq.heappush(heap, (held + max(demand.charged, default=0), k, user))
            if demand.job in self.jobs:
                yield demand


class PendingLine:
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
