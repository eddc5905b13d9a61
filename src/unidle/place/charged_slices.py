"""Which slices a job gets under a quota, and what its queue is charged for them: whole, declared parts, or parts cut on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from unidle.fleet import Device, device_of
from unidle.place.admission import JobClass, affordable, counted_as
from unidle.place.gang.fit import GangFit, GangRound
from unidle.place.model import Demand, Hold, Ints, Running
from unidle.place.network.constraint import Gang, GangPlan
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.rank_class import RankClass
from unidle.place.protocol import StartRoom
from unidle.place.slices.fit import SliceBounds, SliceFit
from unidle.place.slices.offers import Apart, SliceOffers
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


class QuotaParts:
    """Parts of devices for a round (:class:`Parts`). ``given`` are the parts found last, by job."""

    def __init__(
        self,
        free_slices: FreeSlices,
        view: View,
        snapshot: QueueSnapshot,
        sharing: SliceOffers,
        family_of: Callable[[Demand], JobClass],
    ) -> None:
        self._free_slices, self._view, self._snapshot, self._sharing = free_slices, view, snapshot, sharing
        self._job_class_of = family_of
        self._state = snapshot.state
        self.given: dict[str, SliceFit] = {}

    def at_once(
        self, demand: Demand, room: Ints | None, gone: frozenset[str] = frozenset()
    ) -> Mapping[int, int] | None:
        """Devices, by node, that the job would open for parts; empty if it only joins others, None if it gets none.

        Devices that are kept for others are not opened. The job is charged at most ``demand.charged``.
        """
        self.forget(demand.job)
        spec, free = self._job_class_of(demand).parts, self._state.free
        if spec is None:
            return None

        def may_open(device: Device, count: int) -> bool:
            index = self._at(device)
            return int(free[index]) >= count and (room is None or int(room[index]) >= count)

        given = self._sharing.find(demand.job, spec, SliceBounds(may_open, max(demand.charged), gone))
        if not isinstance(given, SliceFit):
            return None
        self.given[demand.job] = given
        devices = given.devices.values()
        return {
            self._at(device): given.opened[device.node] for device in devices if device.node in given.opened
        }

    def forget(self, job: str) -> None:
        """What was found for the job is void."""
        self.given.pop(job, None)

    def then(self, demand: Demand, gone: frozenset[str]) -> StartRoom | None:
        """What the job would start on, once these jobs, which the cluster has stopped, have left."""
        shares = self._state.shares
        bound = affordable(shares, shares.tree.leaf(demand.queue), demand)
        devices = self.at_once(bound, None, gone)
        if devices is None:
            return None
        given = self.given.pop(demand.job)
        return StartRoom(devices, tuple(given.devices), counted_as(demand.charged, given.milli))

    def ready(self, demand: Demand) -> bool:
        """Whether a job for which parts are kept has them by now."""
        state = self._state
        before = state.log.checkpoint()
        state.release(demand.job)
        bound = affordable(state.shares, state.shares.tree.leaf(demand.queue), demand)
        found = self.at_once(bound, None)
        state.log.rollback(before)
        return found is not None

    def started(self, run: Running) -> Running:
        """The job that starts now, with the parts that it gets and what it is charged for them."""
        given = self.given.get(run.job)
        if given is None:
            return run
        parts = {name: self._at(device) for name, device in given.devices.items()}
        charged = counted_as(run.charged, given.milli)
        return replace(run, devices={}, parts=parts, parts_milli=given.milli, charged=charged)

    def apart(self, job: str) -> Apart:
        """What sets jobs apart that ask for the same part."""
        return self._sharing.apart(self._view.jobs.open[job])

    def parts_of(self, job: str) -> Iterable[str]:
        """Devices that a running job has parts of."""
        places = self._view.jobs.open[job].attempts[-1].places
        is_part = self._free_slices.occupancy.is_part
        return dict.fromkeys(device_of(s) for place in places for s in place.slices if is_part(s))

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """In this round no other job gets a part of these devices."""
        self._sharing.keep(job, devices)

    def keep_promised(self, now_ns: int) -> None:
        """Hold for each job that others were stopped for what it will get, now that they leave; to be undone."""
        view, state, waiting = self._view, self._state, self._snapshot.waiting.jobs
        for job, promise in view.promised.items():
            demand = waiting.get(job)
            if demand is None or promise.expires_ns <= now_ns or self._job_class_of(demand).parts is None:
                continue
            if job in state.holds:
                state.release(job)
            room = self.then(demand, self._leaving_for(job))
            if room is not None:
                charged = replace(demand, charged=room.charged)
                state.hold(Hold.of(charged, room.devices, promise.expires_ns))
                self.keep(job, room.parts)

    def _leaving_for(self, job: str) -> frozenset[str]:
        found = []
        for other in self._view.live:
            stop = self._view.jobs.open[other].attempts[-1].stop
            if stop is not None and stop.for_job == job:
                found.append(other)
        return frozenset(found)

    def _at(self, device: Device) -> int:
        return (
            self._snapshot.kinds.index(device.kind) * self._snapshot.width
            + self._free_slices.place[device.node]
        )
