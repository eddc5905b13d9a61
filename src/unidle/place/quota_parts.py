"""Parts of devices under queues: where a job could start now, or once others have left, and what it is charged there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from unidle.fleet import Device, device_of
from unidle.place.books import Books
from unidle.place.families import Family
from unidle.place.ground import Ground
from unidle.place.queue.charge import affordable, counted_as
from unidle.place.queue.model import Demand, Hold, Ints, Running
from unidle.place.queue.relief import Room
from unidle.place.sharing import Apart, SharingRound
from unidle.place.sharing_gang import Given, Terms
from unidle.view.state import View


class QuotaParts:
    """Parts of devices for a round (``queue.round.Parts``). ``given`` are the parts found last, by job."""

    def __init__(
        self,
        ground: Ground,
        view: View,
        books: Books,
        sharing: SharingRound,
        family_of: Callable[[Demand], Family],
    ) -> None:
        self._ground, self._view, self._books, self._sharing = ground, view, books, sharing
        self._family_of = family_of
        self._cluster = books.cluster
        self.given: dict[str, Given] = {}

    def at_once(
        self, demand: Demand, room: Ints | None, gone: frozenset[str] = frozenset()
    ) -> Mapping[int, int] | None:
        """Devices, by node, that the job would open for parts; empty if it only joins others, None if it gets none.

        Devices that are kept for others are not opened. The job is charged at most ``demand.charged``.
        """
        self.forget(demand.job)
        spec, free = self._family_of(demand).parts, self._cluster.free
        if spec is None:
            return None

        def may_open(device: Device, count: int) -> bool:
            index = self._at(device)
            return int(free[index]) >= count and (room is None or int(room[index]) >= count)

        given = self._sharing.find(demand.job, spec, Terms(may_open, max(demand.charged), gone))
        if not isinstance(given, Given):
            return None
        self.given[demand.job] = given
        devices = given.devices.values()
        return {
            self._at(device): given.opened[device.node] for device in devices if device.node in given.opened
        }

    def forget(self, job: str) -> None:
        """What was found for the job is void."""
        self.given.pop(job, None)

    def then(self, demand: Demand, gone: frozenset[str]) -> Room | None:
        """What the job would start on, once these jobs, which the cluster has stopped, have left."""
        shares = self._cluster.shares
        bound = affordable(shares, shares.tree.leaf(demand.queue), demand)
        devices = self.at_once(bound, None, gone)
        if devices is None:
            return None
        given = self.given.pop(demand.job)
        return Room(devices, tuple(given.devices), counted_as(demand.charged, given.milli))

    def ready(self, demand: Demand) -> bool:
        """Whether a job for which parts are kept has them by now."""
        cluster = self._cluster
        before = cluster.journal.mark()
        cluster.release(demand.job)
        bound = affordable(cluster.shares, cluster.shares.tree.leaf(demand.queue), demand)
        found = self.at_once(bound, None)
        cluster.journal.back_to(before)
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
        is_part = self._ground.occupancy.is_part
        return dict.fromkeys(device_of(s) for place in places for s in place.slices if is_part(s))

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """In this round no other job gets a part of these devices."""
        self._sharing.keep(job, devices)

    def keep_promised(self, now_ns: int) -> None:
        """Hold for each job that others were stopped for what it will get, now that they leave; to be undone."""
        view, cluster, waiting = self._view, self._cluster, self._books.waiting.jobs
        for job, promise in view.promised.items():
            demand = waiting.get(job)
            if demand is None or promise.expires_ns <= now_ns or self._family_of(demand).parts is None:
                continue
            if job in cluster.holds:
                cluster.release(job)
            room = self.then(demand, self._leaving_for(job))
            if room is not None:
                charged = replace(demand, charged=room.charged)
                cluster.hold(Hold.of(charged, room.devices, promise.expires_ns))
                self.keep(job, room.parts)

    def _leaving_for(self, job: str) -> frozenset[str]:
        found = []
        for other in self._view.live:
            stop = self._view.jobs.open[other].attempts[-1].stop
            if stop is not None and stop.for_job == job:
                found.append(other)
        return frozenset(found)

    def _at(self, device: Device) -> int:
        return self._books.kinds.index(device.kind) * self._books.width + self._ground.place[device.node]
