"""The state that queue policies decide on: free devices by node, who runs, who is promised what.

Every operation is written to a journal, so that a decision can try things out and take them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from unidle.errors import UnidleError
from unidle.place.model import (
    NOTHING,
    Asks,
    Demand,
    Ends,
    Fits,
    Hold,
    Ints,
    OpLog,
    Running,
    RunningRows,
    Stoppable,
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
