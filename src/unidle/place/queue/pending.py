"""Jobs that wait, queue by queue, each in its queue's order: those that are late first.

Jobs of a kind are in a line of their own, and the lines are merged: if it is known that no job of a kind can start, all
of them are passed over at once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from unidle.fleet.queues import Order
from unidle.place.model import LEVEL, Amounts, Backfill, Demand, Running, aged_since_ns, alike
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.order import LATE, QueueTurns, length_class, service_class

OrderKey: TypeAlias = tuple[int, int, int, int, str]
FAR_BEHIND: Final = 180
"""So many times the bound: room is kept for a job that fell behind by it, also where that delays all others."""


Kind: TypeAlias = tuple[str, int, int, Amounts, str]
"""Jobs of a queue that fit in the same places, at the same charge."""


def _kind_of(demand: Demand) -> Kind:
    return demand.level, demand.ranks, demand.each, demand.charged, demand.alike


@dataclass(slots=True)
class _Line:
    """One queue's jobs: by kind in the queue's order, and by age for those that starve."""

    in_order: dict[Kind, list[OrderKey]] = field(default_factory=dict)
    by_age: list[tuple[int, str]] = field(default_factory=list)


class PassesOver:
    """Which jobs a decision passes over, once it has ``begun`` to. ``version`` changes when less may be known of them."""

    def __init__(self, known: Callable[[Demand], bool], version: Callable[[], int]) -> None:
        self.begun = False
        self.known, self.version = known, version


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
        insort(line.in_order.setdefault(_kind_of(demand), []), self._key(demand))
        insort(line.by_age, (demand.submitted_ns, demand.job))
        self.jobs[demand.job] = demand
        self._shares.submit(leaf, demand.charged)

    def order(self, leaf: int) -> Order:
        """The order of a queue's jobs."""
        return self._shares.tree.specs[leaf - 1].order or "fifo"

    def _key(self, demand: Demand) -> OrderKey:
        order = self.order(self._shares.tree.leaf(demand.queue))
        served_us = (
            0 if demand.firm else demand.served_us
        )  # else one that comes back after a fault would be the last
        class_ = service_class(order, served_us, demand.expected_us())
        aged_ns = aged_since_ns(demand, self._policy)
        if (
            order != "fifo" and demand.came_ns is not None
        ):  # who was stopped for others is not behind those that came later
            aged_ns += demand.came_ns - demand.submitted_ns
        return LEVEL[demand.level], class_, length_class(order, demand.guessed_us()), aged_ns, demand.job

    def class_of(self, job: Demand | Running, now_ns: int) -> int:
        """The class of a job that waits or runs: what comes first in its queue's order (``queue.order``)."""
        if self.late(job, now_ns):
            return LATE
        served_us = job.served_us if isinstance(job, Demand) else job.service_us(now_ns)
        order = self.order(self._shares.tree.leaf(job.queue))
        return service_class(order, served_us, job.expected_us())

    def limit_ns(self, leaf: int, level: str) -> int:
        """How far a job may fall behind its turn before it comes first.

        By an order that stops jobs for others: three quarters of the bound, as those that come first wait for each other.
        Where jobs cannot be stopped room has to be kept empty for it, which delays all others: ``fifo`` does so at the bound,
        the other orders only for a job that would otherwise wait without end.
        """
        if self.order(leaf) == "fifo":
            return self._policy.starved_ns
        return self._policy.starved_ns * 3 // 4 if level == "low" else FAR_BEHIND * self._policy.starved_ns

    def late(self, job: Demand | Running, now_ns: int) -> bool:
        """Whether the job may fall behind no further."""
        if self.turns is None:
            return isinstance(job, Demand) and now_ns - job.submitted_ns >= self._policy.starved_ns
        return self.turns.is_late(job.job, now_ns)

    def _late(self, leaf: int, line: _Line, now_ns: int) -> list[str]:
        """Jobs of a queue that are late, the oldest first."""
        if self.turns is None:
            old = line.by_age[: bisect_left(line.by_age, (now_ns - self._policy.starved_ns + 1, ""))]
            return [job for _, job in old]
        waits = (self.jobs[job] for job in self.turns.late(leaf, now_ns) if job in self.jobs)
        return [job for _, job in sorted((d.submitted_ns, d.job) for d in waits)]

    def next_late_ns(self, now_ns: int) -> int | None:
        """When the next job of those that wait becomes late, were nothing else to happen."""
        if self.turns is None:
            return None
        times = (self.turns.next_late_ns(leaf, now_ns) for leaf in self._lines)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

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
        kind = _kind_of(demand)
        same = line.in_order[kind]
        del same[bisect_left(same, self._key(demand))]
        if not same:
            del line.in_order[kind]
        del line.by_age[bisect_left(line.by_age, (demand.submitted_ns, job))]
        return demand

    def of(self, leaf: int, now_ns: int, over: PassesOver | None = None) -> Iterator[Demand]:
        """A queue's jobs in order, those that are late first. Jobs may be removed once they were given.

        With ``over``, jobs of which it is known that they cannot start are left out, as long as that holds.
        """
        line = self._lines.get(leaf)
        if line is None:
            return
        late = self._late(leaf, line, now_ns)
        starved = set(late)
        for job in late:
            yield self.jobs[job]
        over = over or PassesOver(lambda _: False, lambda: 0)
        if self.order(leaf) == "fair":
            ordered = [key[-1] for key in heapq.merge(*line.in_order.values()) if key[-1] not in starved]
            yield from (d for d in self._user_by_user(leaf, ordered) if not (over.begun and over.known(d)))
            return
        for job in _merged(line, self.jobs, over):
            if job not in starved:
                yield self.jobs[job]

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


def _merged(line: _Line, jobs: Mapping[str, Demand], over: PassesOver) -> Iterator[str]:
    """A queue's jobs in order. A kind is left out as long as it is known that none of its jobs can start."""
    heap = [(same[0], kind) for kind, same in line.in_order.items()]
    heapq.heapify(heap)
    aside: list[Kind] = []
    version = over.version()
    last: OrderKey | None = None
    while heap or aside:
        if over.version() != version:
            version = over.version()
            for kind in aside:
                _push_next(heap, line, kind, last)
            aside = []
        if not heap:
            return
        key, kind = heapq.heappop(heap)
        demand = jobs.get(key[-1])
        if demand is not None and over.begun and over.known(demand):
            aside.append(kind)
            continue
        last = key
        if demand is not None:
            yield demand.job
        _push_next(heap, line, kind, key)


def _push_next(heap: list[tuple[OrderKey, Kind]], line: _Line, kind: Kind, after: OrderKey | None) -> None:
    same = line.in_order.get(kind, [])
    at = 0 if after is None else bisect_right(same, after)
    if at < len(same):
        heapq.heappush(heap, (same[at], kind))


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
