"""Slices that count differently, under queues: which of them a gang gets, and what its queue is charged for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from unidle.place.admission import counted_as
from unidle.place.gang.fit import GangFit, GangRound
from unidle.place.model import Demand, Ints, Running
from unidle.place.network.constraint import Gang, GangPlan
from unidle.place.nodes.rank_class import RankClass
from unidle.place.snapshot import QueueSnapshot
from unidle.view.state import View

PlanIn = Callable[[Ints], GangPlan | None]
"""``plan(room)``: where the gang goes in this room, ranks by position."""


class QuotaSlices:
    """The slices that jobs were found to get last, and what these count: a queue is charged for no others."""

    def __init__(self, gangs: GangRound, view: View, snapshot: QueueSnapshot) -> None:
        self._gangs, self._view, self._snapshot = gangs, view, snapshot
        self.milli: dict[str, int] = {}  # thousandths of devices, by job

    def within(
        self, demand: Demand, rank_class: RankClass, gang: Gang, plan: GangPlan, room: Ints, plan_in: PlanIn
    ) -> GangFit | None:
        """The gang on slices that count no more than the demand is charged; None where it finds none.

        ``plan`` is tried first, then plans on ever cheaper slices of the ``room``.
        """
        again = self._view.jobs[demand.job]
        fit = self._gangs.mapped(rank_class, plan, gang, again)
        if self._may(demand, fit):
            return fit
        for cheaper in cheaper_rooms(rank_class, room, gang.ranks):
            found = plan_in(cheaper)
            if found is not None:
                fit = self._gangs.mapped(rank_class, found, gang)
                if self._may(demand, fit):
                    return fit
        return None

    def _may(self, demand: Demand, fit: GangFit) -> bool:
        milli = self._snapshot.milli_of(self._gangs.seated(fit)[0])
        may = milli <= max(demand.charged)
        if may:
            self.milli[demand.job] = milli
        return may

    def forget(self, job: str) -> None:
        """What was found for the job is void."""
        self.milli.pop(job, None)

    def started(self, run: Running) -> Running:
        """The job that starts now, charged for the slices that it gets."""
        milli = self.milli.get(run.job)
        return run if milli is None else replace(run, charged=counted_as(run.charged, milli))


def cheaper_rooms(rank_class: RankClass, room: Ints, ranks: int) -> Iterator[Ints]:
    """Ever less of a room (ranks by position): without the slices that count most, as long as a gang may fit.

    The last one has only the cheapest place of each rank.
    """
    steps = [
        (milli, position)
        for position in np.flatnonzero(room).tolist()
        for milli in rank_class.steps(position, int(room[position]))
    ]
    steps.sort()
    at = len(steps)
    while at > ranks:
        dearest = steps[at - 1][0]
        while at > ranks and steps[at - 1][0] == dearest:
            at -= 1
        yield np.bincount([position for _, position in steps[:at]], minlength=len(room)).astype(np.int64)
