"""Parts of devices that are cut on demand: who gets which part of which device, decided within a round.

The chooser (``share.choose``) prices every way to give one rank a part; here it is asked for each rank of a
gang in turn (``slices.fit``), over the devices that the job may use (``slices.devices``): those that others have
a part of already, with who they are, and those that stand empty. All ranks or none. A gang without a hard wish goes
into the lowest tier that holds it, as gangs of whole devices do. What a round decides becomes one cut for each
device that changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from unidle.fleet import Device, device_of, slices_of
from unidle.jobs import JobSpec, RankPlace, Reason, Requests, Share
from unidle.jobs.spec import ShareMode
from unidle.place.model import Demand, Hold, Ints, Running
from unidle.place.network.tree import NODE
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.hardware import DevicePool
from unidle.place.protocol import KINDS, Recut, noun
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.reservations import affordable, counted_as
from unidle.place.queue.state import Allocations
from unidle.place.slices.devices import Devices, EmptyDevices, SliceMemo, refused_before, table_of
from unidle.place.slices.fit import SliceBounds, SliceFit, SliceSearch, StartRoom
from unidle.share.interference import Interference
from unidle.share.offers import Gpu, promises
from unidle.share.parts import share_of
from unidle.share.refusal import PartRefused, refused
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.words import counted

_ANY: Final = SliceBounds()
_SPARE: Final = 2  # so that a reason can name another device
_GANG_MODES: Final[tuple[ShareMode, ...]] = ("mps", "time")
_NO_REQUESTS: Final = Requests()
_MEMO: Final = 256
Apart: TypeAlias = tuple[str, frozenset[str]]
"""See :meth:`SliceOffers.apart`."""


class SliceOffers:
    """Parts given out in one round, on top of a view that is only read."""

    def __init__(
        self,
        free_slices: FreeSlices,
        view: View,
        memo: SliceMemo,
        table: Interference | None = None,
        *,
        empty: bool = False,
    ) -> None:
        """``empty``: as if no job ran, and all devices were healthy."""
        self.free_slices, self.view = free_slices, view
        self.devices = (EmptyDevices if empty else Devices)(free_slices, view, memo, table or table_of(view))
        self._memo = memo
        self._why: dict[str, Reason] = {}

    def find(self, job: str, spec: JobSpec, terms: SliceBounds = _ANY) -> SliceFit | PartRefused:
        """A part for each rank of the gang, or why there is none; nothing is taken yet.

        ``spec`` may be that of another job of the shape; the load that counts is that of ``job``, where it waits.
        """
        share = spec.share
        assert share is not None
        waits = self.view.jobs.open.get(job)
        if waits is not None and waits.spec.name != spec.name:
            spec = replace(spec, name=waits.spec.name)
        if spec.topology is not None and (spec.topology.groups or spec.topology.fabric):
            return refused("no_share", "parallel groups and fabrics are chosen for whole devices only")
        self.devices.without(terms.gone)
        refusals: list[PartRefused] = []
        apart = False
        for pool in (pool for kind in KINDS[spec.device] for pool in self._pools(spec, kind)):
            if len(pool.models) > 1 and not spec.hardware.mix and self._one_model_does(spec, pool.kind):
                apart = True
                continue
            answer = self._of_pool(job, spec, share, pool, terms)
            if isinstance(answer, SliceFit):
                return answer
            refusals.append(answer)
        why = max(refusals, key=_devices_looked_at)
        if apart:
            text = f"{why.because.text}; a gang is on GPUs of one model"
            why = PartRefused(replace(why.because, text=text))
        return _with_refusals(why, waits)

    def apart(self, job: JobView) -> Apart:
        """What sets jobs of one shape apart: a name of which a load is known, and devices that refused them a part."""
        name = job.spec.name if self.devices.table.tells(job.spec.name) else ""
        return name, frozenset(refused_before(job))

    def _pools(self, spec: JobSpec, kind: str) -> list[DevicePool]:
        """Devices that the ranks may use together (see ``nodes.hardware``); those of several models come last."""
        if kind == "cpu" or spec.ranks == 1:
            return [pool for pool in self.free_slices.pools.vendors(spec) if pool.kind == kind]
        return [o.pool for o in self.free_slices.pools.options(spec) if o.pool.kind == kind]

    def _one_model_does(self, spec: JobSpec, kind: str) -> bool:
        """Whether the devices of a single model, empty and healthy, have a part for each rank."""
        share, key = spec.share, repr((kind, *_asked(spec)))
        assert share is not None
        if key not in self._memo.alone:
            if len(self._memo.alone) > _MEMO:
                self._memo.alone.clear()
            empty = SliceOffers(self.free_slices, self.view, self._memo, self.devices.table, empty=True)
            self._memo.alone[key] = any(
                isinstance(empty._of_pool("", spec, share, pool, _ANY), SliceFit)
                for pool in self._pools(spec, kind)
                if len(pool.models) == 1
            )
        return self._memo.alone[key]

    def take(self, given: SliceFit) -> tuple[RankPlace, ...]:
        """Give the gang its parts."""
        self.devices.without(frozenset())
        places = {p.node: 0 for p in given.places}
        for place in given.places:
            places[place.node] += 1
        for device_id, device in given.devices.items():
            before = self.devices.now(device_id)
            assert before is not None
            if before.cut is None:
                kind, order, bit = self.view.occupancy.where(slices_of(before)[0].id)
                self.free_slices.take(
                    kind, self.free_slices.positions[kind][order], 1 << bit, _NO_REQUESTS, 0
                )
            self.devices.changed[device_id] = device
            self._why[device_id] = given.because
        requests = self.view.jobs[given.job].spec.requests if given.job in self.view.jobs else None
        for node, ranks in places.items():
            if requests is not None:
                kind = next(d.kind for d in given.devices.values())
                self.free_slices.take(kind, self.free_slices.place[node], 0, requests, ranks)
        return given.places

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """In this round no other job gets a part of these devices."""
        self.devices.kept.update(dict.fromkeys(devices, job))

    def recuts(self) -> tuple[Recut, ...]:
        """The cuts that the parts of this round need, one for each device."""
        return tuple(
            Recut(name, device.cut, self._why[name])
            for name, device in self.devices.changed.items()
            if device.cut is not None
        )

    def never(self, spec: JobSpec, most_milli: int | None = None) -> PartRefused | None:
        """Why not even the whole fleet, empty and healthy, has a part for each rank; None where it has.

        ``most_milli``: what the parts may be charged together, in thousandths of devices.
        """
        key = repr((*_asked(spec), most_milli))
        if key not in self._memo.never:
            if len(self._memo.never) > _MEMO:
                self._memo.never.clear()
            empty = SliceOffers(self.free_slices, self.view, self._memo, self.devices.table, empty=True)
            answer = empty.find("", spec, SliceBounds(most_milli=most_milli))
            self._memo.never[key] = answer if isinstance(answer, PartRefused) else None
        return self._memo.never[key]

    def share_ppm(self, spec: JobSpec) -> list[int]:
        """What a part of this job may count, in ppm of a device, by the devices and modes that there are."""
        if spec.share is None:
            return []
        kinds = KINDS[spec.device]
        samples = [replace(g.sample, cut=None) for g in self._memo.stock.groups if g.sample.kind in kinds]
        return [share_of(device, p) for device in samples for p in promises(device, spec.share)]

    def _of_pool(
        self, job: str, spec: JobSpec, share: Share, pool: DevicePool, terms: SliceBounds
    ) -> SliceFit | PartRefused:
        hard = spec.topology.require if spec.topology is not None else None
        if (
            not terms.every and hard is None
        ):  # of devices that are alike as many as there are ranks, or some more
            some = self.devices.candidates(job, spec, pool, spec.ranks + _SPARE)
            found = self._among(job, spec, share, some, terms)
            if spec.ranks == 1 or isinstance(found, SliceFit):
                return found or self._none(pool.kind)
        every = self.devices.candidates(job, spec, pool, None)
        return self._among(job, spec, share, every, terms) or self._none(pool.kind)

    def _among(
        self, job: str, spec: JobSpec, share: Share, devices: Sequence[Gpu], terms: SliceBounds
    ) -> SliceFit | PartRefused | None:
        """Parts of these devices, or why none fits; None without devices."""
        if not devices:
            return None
        search = SliceSearch(self.devices, job, spec, share, terms)
        answer = search.over(devices)
        if isinstance(answer, PartRefused) and spec.ranks > 1 and share.mode == "any" and not share.profile:
            for mode in _GANG_MODES:  # instances are coarse: where they do not suffice, bounds may
                search = SliceSearch(self.devices, job, spec, replace(share, mode=mode), terms)
                other = search.over(devices)
                if isinstance(other, SliceFit):
                    answer = other
                    break
        hard = spec.topology.require if spec.topology is not None else None
        if isinstance(answer, PartRefused) or (spec.ranks == 1 and hard is None):
            return answer
        for name, domain in self._domains(devices, hard):
            closer = search.over(domain)
            if isinstance(closer, SliceFit):
                text = f"{closer.because.text}; all {counted(spec.ranks, 'part')} in {name}"
                return replace(closer, because=replace(closer.because, text=text))
        if hard is not None:
            return refused("no_share", f"no single {hard} has {counted(spec.ranks, 'part')} for it")
        return answer

    def _domains(self, every: Sequence[Gpu], hard: str | None) -> Iterator[tuple[str, list[Gpu]]]:
        """Single nodes, then tiers from the lowest; with a hard wish only those of its kind."""
        tree, on = self.free_slices.tree, dict[int, list[int]]()  # which of them are on each node
        for k, gpu in enumerate(every):
            on.setdefault(self.free_slices.place[gpu.device.node], []).append(k)
        positions = sorted(on)
        if hard is None or hard == NODE:
            for position in positions:
                yield tree.nodes[position], [every[k] for k in on[position]]
        if hard == NODE:
            return
        kind = None if hard is None else tree.kind_code(hard)
        heights = sorted(range(1, len(tree.tiers)), key=lambda v: (int(tree.height[v]), v))
        for vertex in heights:
            if hard is None or int(tree.kind[vertex]) == kind:
                first, last = (bisect_left(positions, int(end[vertex])) for end in (tree.lo, tree.hi))
                inside = sorted(k for position in positions[first:last] for k in on[position])
                if inside:
                    yield tree.tiers[vertex], [every[k] for k in inside]

    def _none(self, kind: str) -> PartRefused:
        may = self._memo.stock.of_kind(kind)
        if not may:
            return refused("no_gpu", f"no {noun(kind, 1)} may be cut on demand (share in the fleet file)")
        return refused(
            "no_share",
            f"none of {may} {noun(kind, may)} that may be cut is open to it: each is held whole, is not healthy, or its "
            f"node is not one that the job may use or has no CPU or memory left",
            devices=may,
        )


def _asked(spec: JobSpec) -> tuple[object, ...]:
    """All that counts for whether the fleet ever has the parts."""
    asked = (spec.share, spec.ranks, spec.where, spec.requests, spec.topology, spec.device, spec.name)
    return *asked, spec.hardware


def _with_refusals(why: PartRefused, job: JobView | None) -> PartRefused:
    tried = refused_before(job)
    if not tried:
        return why
    last, because = list(tried.values())[-1], why.because
    text = f"{because.text}; {len(tried)} more would not make the part when it was to start: {last.text}"
    return PartRefused(Reason(because.code, text, {**because.figures, "refused_at_start": len(tried)}))


def _devices_looked_at(answer: PartRefused) -> float:
    figures = answer.because.figures
    return -1.0 if answer.because.code == "no_gpu" else float(figures.get("gpus", figures.get("devices", 0)))


class QuotaParts:
    """Parts of devices under a quota (``session.Parts``). ``given`` are the parts found last, by job."""

    def __init__(
        self, offers: SliceOffers, state: Allocations, first: Mapping[str, int],
        spec_of: Callable[[Demand], JobSpec | None],
    ) -> None:  # fmt: skip
        """``first``: index of the first node of each kind; ``spec_of``: the job on one kind of devices, None without parts."""
        self._offers, self._state, self._first, self._spec_of = offers, state, first, spec_of
        self.given: dict[str, SliceFit] = {}

    def at_once(
        self, demand: Demand, room: Ints | None, gone: frozenset[str] = frozenset()
    ) -> Mapping[int, int] | None:
        """Devices, by node, that the job would open for parts; empty if it only joins others, None if it gets none.

        Devices that are kept for others are not opened. The job is charged at most ``demand.charged``.
        """
        self.forget(demand.job)
        spec, free = self._spec_of(demand), self._state.free
        if spec is None:
            return None

        def may_open(device: Device, count: int) -> bool:
            index = self._at(device)
            return int(free[index]) >= count and (room is None or int(room[index]) >= count)

        given = self._offers.find(demand.job, spec, SliceBounds(may_open, max(demand.charged), gone))
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
        return self._offers.apart(self._offers.view.jobs.open[job])

    def parts_of(self, job: str) -> Iterable[str]:
        """Devices that a running job has parts of."""
        places = self._offers.view.jobs.open[job].attempts[-1].places
        is_part = self._offers.free_slices.occupancy.is_part
        return dict.fromkeys(device_of(s) for place in places for s in place.slices if is_part(s))

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """In this round no other job gets a part of these devices."""
        self._offers.keep(job, devices)

    def keep_promised(self, pending: PendingJobs, now_ns: int) -> None:
        """Hold for each job that others were stopped for what it will get, now that they leave; to be undone."""
        state = self._state
        for job, promise in self._offers.view.promised.items():
            demand = pending.jobs.get(job)
            if demand is None or promise.expires_ns <= now_ns or self._spec_of(demand) is None:
                continue
            if job in state.holds:
                state.release(job)
            room = self.then(demand, self._leaving_for(job))
            if room is not None:
                charged = replace(demand, charged=room.charged)
                state.hold(Hold.of(charged, room.devices, promise.expires_ns))
                self.keep(job, room.parts)

    def _leaving_for(self, job: str) -> frozenset[str]:
        found, view = [], self._offers.view
        for other in view.live:
            leaves = view.jobs.open[other]
            stop = leaves.attempts[-1].stop
            if stop is not None and stop.for_job == job and not leaves.spec.is_filler:
                found.append(other)
        return frozenset(found)

    def _at(self, device: Device) -> int:
        return self._first[device.kind] + self._offers.free_slices.place[device.node]
