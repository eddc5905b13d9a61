"""The state that queue policies decide on: free devices by node, who runs, who is promised what.

Every operation is written to a journal, so that a decision can try things out and take them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from unidle.errors import UnidleError
from unidle.place.queue.fair import Shares
from unidle.place.queue.journal import Journal
from unidle.place.queue.model import Demand, Hold, Ints, Running


class Cluster:
    """``free[node]``: devices that nobody holds and that are promised to nobody.

    A job that was chosen to be stopped counts as stopped here: its devices are free, or promised
    to the job that it was stopped for.
    """

    def __init__(self, devices: Ints, shares: Shares, running: Iterable[Running] = ()) -> None:
        """``devices``: healthy devices of each node, before anything runs."""
        self.free: Ints = np.array(devices, np.int64)
        self.devices: Ints = self.free.copy()
        self.shares = shares
        self.running: dict[str, Running] = {}
        self.holds: dict[str, Hold] = {}
        self.journal = Journal()
        self.changes = 0  # grows when what runs changes
        for run in running:
            self.start(run)
        self.journal.settle()

    def start(self, run: Running) -> None:
        """The job takes its devices; a hold for it ends. :class:`UnidleError` where they are not free."""
        if run.job in self.holds:
            self.release(run.job)
        if run.job in self.running:
            raise UnidleError("this job runs already", field="job", value=run.job)
        self._check(run.devices, run.job)
        self._again(run)
        self.journal.note(lambda: self._back(run))

    def stop(self, job: str) -> Running:
        """The job gives up its devices."""
        run = self.running[job]
        self._back(run)
        self.journal.note(lambda: self._again(run))
        return run

    def hold(self, hold: Hold) -> None:
        """Keep devices for a job, and charge its queue for them."""
        if hold.job in self.holds:
            self.release(hold.job)
        self._check(hold.devices, hold.job)
        self._keep(hold)
        self.journal.note(lambda: self._unkeep(hold))

    def release(self, job: str) -> Hold:
        """Keep nothing for this job any more."""
        hold = self.holds[job]
        self._unkeep(hold)
        self.journal.note(lambda: self._keep(hold))
        return hold

    def expire(self, now_ns: int) -> tuple[str, ...]:
        """Release what was kept too long; the jobs for which it was kept."""
        late = tuple(job for job, hold in self.holds.items() if hold.expires_ns <= now_ns)
        for job in late:
            self.release(job)
        return late

    def room(self, demand: Demand) -> Ints:
        """Ranks of the demand that each node holds now, what is kept for it included."""
        free = self.free
        kept = self.holds.get(demand.job)
        if kept is not None:
            free = free.copy()
            for node, count in kept.devices.items():
                free[node] += count
        return np.maximum(free, 0) // demand.each

    # -- what the journal undoes and does again --------------------------------------------------

    def _again(self, run: Running) -> None:
        self._give(run.devices, -1)
        self.running[run.job] = run
        self.changes += 1
        self.shares.charge(self.shares.tree.leaf(run.queue), run.charged, firm=run.firm)

    def _back(self, run: Running) -> None:
        self._give(run.devices)
        del self.running[run.job]
        self.changes += 1
        self.shares.refund(self.shares.tree.leaf(run.queue), run.charged, firm=run.firm)

    def _keep(self, hold: Hold) -> None:
        self._give(hold.devices, -1)
        self.holds[hold.job] = hold
        self.shares.charge(self.shares.tree.leaf(hold.queue), hold.charged, firm=hold.firm)

    def _unkeep(self, hold: Hold) -> None:
        self._give(hold.devices)
        del self.holds[hold.job]
        self.shares.refund(self.shares.tree.leaf(hold.queue), hold.charged, firm=hold.firm)

    def _check(self, devices: Mapping[int, int], job: str) -> None:
        short = next((node for node, count in devices.items() if count > self.free[node]), None)
        if short is not None:
            raise UnidleError(
                "a node has fewer devices free than the job takes", field="node", value=short,
                remedy=f"{job} takes {devices[short]}, {int(self.free[short])} are free",
            )  # fmt: skip

    def _give(self, devices: Mapping[int, int], sign: int = 1) -> None:
        free = self.free
        for node, count in devices.items():
            free[node] += sign * count
