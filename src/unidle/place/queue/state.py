"""The state that queue policies decide on: free devices by node, who runs, who is promised what, who waits.

Every operation is written to a journal, so that a decision can try things out and take them back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from unidle.errors import UnidleError
from unidle.place.model import (
    NOTHING,
    Asks,
    Backfill,
    Demand,
    Ends,
    Fits,
    Hold,
    Ints,
    OpLog,
    Running,
    RunningRows,
    Stoppable,
    alike,
    order_key,
)
from unidle.place.queue.fair_share import FairShare

_PLENTY: Final = 1 << 60


class Allocations:
    """``free[node]``: devices neither held by a job nor promised to one; ``hosts``, (2, M): free CPU and memory.

    With several kinds of devices on the same M hosts there is a node for each kind and host, one kind after
    the other: node ``k`` is on host ``k % M``. If the hosts are unknown, their CPU and memory are unbounded.

    A job that was chosen to be stopped counts as stopped here: its devices are free, or promised
    to the job that it was stopped for.
    """

    def __init__(
        self, devices: Ints, shares: FairShare, running: Iterable[Running] = (), hosts: Ints | None = None,
        log: OpLog | None = None,
    ) -> None:  # fmt: skip
        """``devices``: healthy devices of each node, and ``hosts`` what each has, before anything runs."""
        self.free: Ints = np.array(devices, np.int64)
        self.devices: Ints = self.free.copy()
        self.hosts: Ints = np.full((2, len(devices)), _PLENTY) if hosts is None else np.array(hosts, np.int64)
        self.shares = shares
        self.running: dict[str, Running] = {}
        self.soft: dict[int, int] = {}  # by leaf, how many jobs of level low run
        self.holds: dict[str, Hold] = {}
        # how many running jobs have parts of a device; the last one leaves it whole
        self.users: dict[str, int] = {}
        self._ends: Ends | None = None
        self._stoppable: Stoppable | None = None
        self.log = log or OpLog()
        self.changes = 0  # grows when what runs changes
        for run in running:
            self.start(run)
        self.log.commit()

    def start(self, run: Running) -> None:
        """The job takes its devices; a hold for it ends. :class:`UnidleError` where they are not free."""
        if run.job in self.holds:
            self.release(run.job)
        if run.job in self.running:
            raise UnidleError("this job runs already", field="job", value=run.job)
        self._check(run.devices, run.job)
        self._again(run)
        self.log.record(lambda: self._back(run))

    def stop(self, job: str) -> Running:
        """The job gives up its devices."""
        run = self.running[job]
        self._back(run)
        self.log.record(lambda: self._again(run))
        return run

    def ends(self, now_ns: int, otherwise_ns: int) -> Iterator[tuple[int, Running]]:
        """Running jobs by expected end (see ``model.expected_end_ns``); kept in order from the first call on."""
        if self._ends is None:
            self._ends = Ends(self.running.values())
        return self._ends.after(now_ns, otherwise_ns)

    def stoppable(self) -> RunningRows:
        """Jobs of level low that run; kept from the first call on."""
        return self._all_stoppable().rows()

    def next_stoppable_ns(self, now_ns: int) -> int | None:
        """When the next job of level low becomes stoppable that is not stoppable now; None without such a job."""
        return self._all_stoppable().next_ns(now_ns)

    def _all_stoppable(self) -> Stoppable:
        if self._stoppable is None:
            self._stoppable = Stoppable(self.running.values(), self.shares.tree.leaf)
        return self._stoppable

    def adopt(self, run: Running) -> None:
        """The job runs already, and its devices are not free. Outside of the journal."""
        self.running[run.job] = run
        self.changes += 1
        leaf = self.shares.tree.leaf(run.queue)
        self.shares.charge(leaf, run.charged, firm=run.firm)
        if not run.firm:
            self.soft[leaf] = self.soft.get(leaf, 0) + 1
        for device in run.parts:
            self.users[device] = self.users.get(device, 0) + 1
        if self._ends is not None:
            self._ends.add(run)
        if self._stoppable is not None:
            self._stoppable.change(run.job, run)

    def drop(self, job: str) -> Running:
        """The job runs no more; what it held is not given back here. Outside of the journal."""
        run = self.running.pop(job)
        self.changes += 1
        leaf = self.shares.tree.leaf(run.queue)
        self.shares.refund(leaf, run.charged, firm=run.firm)
        if not run.firm:
            self.soft[leaf] -= 1
        for device in run.parts:
            self.users[device] -= 1
            if not self.users[device]:
                del self.users[device]
        if self._ends is not None:
            self._ends.remove(run)
        if self._stoppable is not None:
            self._stoppable.change(job, None)
        return run

    def hold(self, hold: Hold) -> None:
        """Keep devices for a job, and charge its queue for them."""
        if hold.job in self.holds:
            self.release(hold.job)
        self._check(hold.devices, hold.job)
        self._keep(hold)
        self.log.record(lambda: self._unkeep(hold))

    def release(self, job: str) -> Hold:
        """Keep nothing for this job any more."""
        hold = self.holds[job]
        self._unkeep(hold)
        self.log.record(lambda: self._keep(hold))
        return hold

    def expire(self, now_ns: int) -> tuple[str, ...]:
        """Release what was kept too long; the jobs for which it was kept."""
        late = tuple(job for job, hold in self.holds.items() if hold.expires_ns <= now_ns)
        for job in late:
            self.release(job)
        return late

    def room(self, demand: Demand | Running) -> Ints:
        """Ranks of the demand, or of a job that was stopped, that each node holds now, what is kept for it included."""
        free, hosts = self.free_for(demand)
        ranks: Ints = np.maximum(free, 0) // demand.each
        return ranks if demand.asks == NOTHING else np.minimum(ranks, ranks_on(hosts, demand.asks, len(free)))

    def find(
        self, demand: Demand, fits_of: Callable[[Demand], Fits], room: Ints | None = None
    ) -> Mapping[int, int] | None:
        """Devices by node on which it could start now, where nothing but devices counts; None where it could not.

        ``room``: it gets no more than that (ranks by node).
        """
        free = self.room(demand)
        room = free if room is None else np.minimum(free, room)
        counts = fits_of(demand)(room) if int(room.sum()) >= demand.ranks else None
        if counts is None:
            return None
        return {int(n): int(counts[n]) * demand.each for n in np.flatnonzero(counts)}

    def free_for(self, demand: Demand | Running) -> tuple[Ints, Ints]:
        """Devices by node, and CPU and memory by host, that are not kept for other jobs. Do not change the arrays."""
        free, hosts = self.free, self.hosts
        kept = self.holds.get(demand.job)
        if kept is not None:
            free, hosts = free.copy(), hosts.copy()
            for node, count in kept.devices.items():
                free[node] += count
                hosts[:, node % hosts.shape[1]] += requested(kept.asks, count // kept.each)
        return free, hosts

    # -- what the journal undoes and does again --------------------------------------------------

    def _again(self, run: Running) -> None:
        self._give(run, -1)
        for device, node in run.parts.items():
            self.free[node] -= device not in self.users
        self.adopt(run)

    def _back(self, run: Running) -> None:
        self._give(run)
        for device, node in run.parts.items():
            self.free[node] += self.users[device] == 1
        self.drop(run.job)

    def _keep(self, hold: Hold) -> None:
        self._give(hold, -1)
        self.holds[hold.job] = hold
        self.shares.charge(self.shares.tree.leaf(hold.queue), hold.charged, firm=hold.firm)

    def _unkeep(self, hold: Hold) -> None:
        self._give(hold)
        del self.holds[hold.job]
        self.shares.refund(self.shares.tree.leaf(hold.queue), hold.charged, firm=hold.firm)

    def _check(self, devices: Mapping[int, int], job: str) -> None:
        short = next((node for node, count in devices.items() if count > self.free[node]), None)
        if short is not None:
            raise UnidleError(
                "a node has fewer devices free than the job takes", field="node", value=short,
                remedy=f"{job} takes {devices[short]}, {int(self.free[short])} are free",
            )  # fmt: skip

    def _give(self, holder: Running | Hold, sign: int = 1) -> None:
        free, hosts, asks = self.free, self.hosts, holder.asks != NOTHING
        for node, count in holder.devices.items():
            free[node] += sign * count
            if asks:
                hosts[:, node % hosts.shape[1]] += requested(holder.asks, sign * count // holder.each)


def ranks_on(hosts: Ints, asks: Asks, nodes: int) -> Ints:
    """Ranks for which each node has CPU and memory; ``hosts`` is (2, M). Shape (nodes,)."""
    bounds = [np.maximum(amount, 0) // asked for amount, asked in zip(hosts, asks, strict=True) if asked]
    width = hosts.shape[1]
    if not bounds:
        return np.full(nodes, _PLENTY)
    ranks: Ints = bounds[0] if len(bounds) == 1 else np.minimum(*bounds)
    return ranks if nodes == width else np.tile(ranks, nodes // max(width, 1))


def requested(asks: Asks, ranks: int) -> Asks:
    """What so many ranks need of their node."""
    return asks[0] * ranks, asks[1] * ranks


@dataclass(slots=True)
class _Line:
    """One queue's jobs: by the policy's order, and by age for those that starve."""

    in_order: list[tuple[tuple[int, int, str], str]] = field(default_factory=list)
    by_age: list[tuple[int, str]] = field(default_factory=list)


class PendingJobs:
    """Jobs that wait; keeps the counts of ``shares`` in step."""

    def __init__(self, shares: FairShare, policy: Backfill) -> None:
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
