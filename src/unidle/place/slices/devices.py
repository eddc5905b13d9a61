"""Devices that may be cut on demand, as a search for parts sees them: with what the round gave away, or would free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from unidle.fleet import Device, Fleet, Node, device_of, slices_of
from unidle.jobs import JobSpec, Reason
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.hardware import DevicePool
from unidle.share.interference import Interference, PairSlowdown, known_loads
from unidle.share.mig_models import Instance
from unidle.share.offers import Gpu, Resident
from unidle.share.parts import mig_model, slice_id, used_parts, without_parts
from unidle.share.refusal import CUT_REFUSED, PartRefused
from unidle.share.select import may_use, may_use_any
from unidle.view.jobs import JobView
from unidle.view.occupancy import Occupancy
from unidle.view.partitions import recut
from unidle.view.state import View


@dataclass(slots=True)
class DeviceGroup:
    """Devices with the same traits. ``at`` has their positions, by the place of their node among those of the kind."""

    sample: Device
    count: int = 0
    # place of the node in the fleet, of devices in it
    at: dict[int, tuple[int, list[int]]] = field(default_factory=dict)


@dataclass(slots=True)
class SliceStock:
    """All devices that may be cut on demand, by group in the order of the fleet."""

    groups: list[DeviceGroup]

    @classmethod
    def of(cls, fleet: Fleet) -> SliceStock:
        found: dict[object, DeviceGroup] = {}
        places: dict[str, int] = {}  # by kind: nodes so far that have such devices
        for order, node in enumerate(fleet.nodes):
            mine: dict[str, int] = {}
            for number, device in enumerate(node.devices):
                if device.kind not in mine:
                    mine[device.kind] = places.get(device.kind, 0)
                    places[device.kind] = mine[device.kind] + 1
                sharing = device.sharing
                if sharing is None:
                    continue
                traits = (
                    device.kind, device.model, device.memory_bytes, device.vendor,
                    sharing.modes, sharing.compute_ppm, sharing.memory_ppm,
                )  # fmt: skip
                group = found.setdefault(traits, DeviceGroup(device))
                group.count += 1
                group.at.setdefault(mine[device.kind], (order, []))[1].append(number)
        return cls(list(found.values()))

    def of_kind(self, kind: str) -> int:
        """How many devices of this kind there are."""
        return sum(group.count for group in self.groups if group.sample.kind == kind)

    def empty(
        self,
        kind: str,
        nodes: tuple[Node, ...],
        occupancy: Occupancy | None,
        usable: Callable[[Node], bool],
        is_free: Callable[[Device], bool],
        most: int | None,
    ) -> Iterator[Device]:
        """Empty devices of the kind on nodes that are usable, of each group at most ``most``.

        With ``occupancy`` only nodes with something free are checked.
        """
        for group in self.groups:
            if group.sample.kind != kind:
                continue
            found = 0
            for place in group.at if occupancy is None else occupancy.open.get(kind, ()):
                here = group.at.get(place)
                if here is None or not usable(nodes[here[0]]):
                    continue
                for number in here[1]:
                    device = nodes[here[0]].devices[number]
                    if is_free(device):
                        yield device
                        found += 1
                        if found == most:
                            break
                if found == most:
                    break


class SliceMemo:
    """What a device offers, kept as long as the device is the same, and what never fits; of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.gpus: dict[str, tuple[Device, Gpu]] = {}
        self.never: dict[str, PartRefused | None] = {}
        self.alone: dict[str, bool] = {}  # whether one model has a part for each rank

    @cached_property
    def stock(self) -> SliceStock:
        """The devices that may be cut on demand; found at first use, as many fleets have none."""
        return SliceStock.of(self._fleet)


@dataclass(frozen=True, slots=True)
class Leaving:
    """What jobs leave: their slices, and by node the CPU (thousandths of cores) and memory (bytes) that they asked for."""

    jobs: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    hosts: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, jobs: frozenset[str]) -> Leaving:
        if not jobs:
            return _NOBODY
        slices: set[str] = set()
        hosts: dict[str, tuple[int, int]] = {}
        for job in (view.jobs.open[name] for name in sorted(jobs)):
            asked, live = job.spec.requests, job.live
            # what starts in this round is not in the view
            for place in live.places if live is not None else ():
                slices.update(place.slices)
                cpu, memory = hosts.get(place.node, (0, 0))
                hosts[place.node] = (cpu + asked.cpu_milli, memory + asked.memory_bytes)
        return cls(jobs, frozenset(slices), hosts)


_NOBODY: Final = Leaving()


class Devices:
    """``changed`` are those that the round cut again, ``kept`` those that are another job's to be, by device."""

    def __init__(self, free_slices: FreeSlices, view: View, memo: SliceMemo, table: Interference) -> None:
        self._free_slices, self._view, self.table = free_slices, view, table
        self._memo, self._stock = memo, memo.stock
        self._left = _NOBODY
        self.changed: dict[str, Device] = {}
        self.kept: dict[str, str] = {}

    def without(self, gone: frozenset[str]) -> None:
        """See all as if these jobs had left, until the next call."""
        self._left = Leaving.of(self._view, gone)

    def now(self, device_id: str) -> Device | None:
        """The device as it is cut now."""
        device = self.changed.get(device_id) or self._view.cuttable(device_id)
        if device is None or not self._left.jobs:
            return device
        gone = {slice_id(device, part) for part in used_parts(device) if part.job in self._left.jobs}
        return recut(device, without_parts(device, gone)) if gone else device

    def gpu(self, device: Device) -> Gpu:
        """The device as the chooser sees it."""
        known = self._memo.gpus.get(device.id)
        if known is not None and known[0] is device:
            return known[1]
        made = self._made(device)
        self._memo.gpus[device.id] = (device, made)
        return made

    def _made(self, device: Device) -> Gpu:
        sharing = device.sharing
        assert sharing is not None
        residents = tuple(self._resident(device, k) for k in range(len(used_parts(device))))
        mode = device.cut.mode if device.cut is not None and residents else None
        return Gpu(
            device, mode, residents, frozenset(sharing.modes), mig_model(device), (),
            dict(sharing.why_not),
        )  # fmt: skip

    def _resident(self, device: Device, number: int) -> Resident:
        part = used_parts(device)[number]
        job = self._view.jobs.open.get(part.job)
        name = job.spec.name if job is not None else ""
        instance = Instance(part.profile, part.start) if part.profile else None
        load = self.table.load_of_part(name, part.compute_ppm)
        return Resident(part.job, load, part.compute_ppm, part.memory_bytes, instance)

    def _is_free(self, device: Device) -> bool:
        """Whether the whole of a device that is not cut may be given away now."""
        name = slices_of(device)[0].id
        return name in self._left.slices or self._free_slices.is_free(name)

    def _is_kept(self, device: Device, job: str) -> bool:
        """Whether a device in parts is kept for another job, or others leave it for one."""
        if self.kept.get(device.id, job) != job:
            return True
        for part in used_parts(device):
            other = self._view.jobs.open.get(part.job)
            stop = other.live.stop if other is not None and other.live is not None else None
            if stop is not None and stop.for_job not in (None, job):
                return True
        return False

    def candidates(self, job: str, spec: JobSpec, pool: DevicePool, most: int | None) -> list[Gpu]:
        """Devices that may have a part for one rank: those that others share, and of empty ones ``most`` of a group."""
        view, nodes = self._view, self._view.fleet.nodes
        tried = refused_before(view.jobs.open.get(job))
        known: dict[str, bool] = {}
        reserve = self._free_slices.reserve

        def usable(node: Node) -> bool:
            if node.id not in known:
                known[node.id] = (
                    node.id not in view.barred
                    and (reserve is None or node.id not in reserve.spares)
                    and _may_use_node(node, spec)
                    and self.host_room(node, spec) >= 1
                )
            return known[node.id]

        def is_free(device: Device) -> bool:
            if device.cut is not None or device.id in self.changed or device.id in tried:
                return False
            if not pool.has(device) or self.kept.get(device.id, job) != job:
                return False
            barred = may_use(device, spec.where) if not may_use_any(spec.where) else None
            return device.id not in view.barred and self._is_free(device) and (barred is None or most is None)

        found = []
        shared = dict(view.in_parts())
        for name in self.changed:
            device = view.cuttable(name)
            if device is not None and name not in shared:
                shared[name] = (view.cuttable_nodes()[name], device.index)
        for name, (order, _) in sorted(shared.items(), key=_by_place):
            now = self.now(name)
            if (
                now is None
                or now.sharing is None
                or not pool.has(now)
                or name in tried
                or name in view.barred
            ):
                continue
            if usable(nodes[order]) and not self._is_kept(now, job):
                found.append(self.gpu(now))
        # with those gone, other nodes have something free
        occupancy = None if self._left.jobs else view.occupancy
        empty = self._stock.empty(pool.kind, nodes, occupancy, usable, is_free, most)
        return found + [self.gpu(device) for device in empty]

    def host_full(self, node: str, spec: JobSpec, ranks: int) -> bool:
        """Whether the node does not hold so many ranks."""
        return self.host_room(self._free_slices.nodes[self._free_slices.place[node]], spec) < ranks

    def host_room(self, node: Node, spec: JobSpec) -> int:
        """How many ranks the node's CPU and memory hold."""
        asked, most = spec.requests, spec.ranks
        if not (asked.cpus or asked.memory_bytes):
            return most
        cpu, memory = self._free_slices.hosts[:, self._free_slices.place[node.id]].tolist()
        more = self._left.hosts.get(node.id, (0, 0))
        if asked.cpu_milli:
            most = min(most, (cpu + more[0]) // asked.cpu_milli)
        if asked.memory_bytes:
            most = min(most, (memory + more[1]) // asked.memory_bytes)
        return most


class EmptyDevices(Devices):
    """The devices of the same fleet without jobs, all healthy."""

    def candidates(self, job: str, spec: JobSpec, pool: DevicePool, most: int | None) -> list[Gpu]:  # noqa: ARG002
        def usable(node: Node) -> bool:
            return _may_use_node(node, spec) and self.host_room(node, spec) >= 1

        def may(device: Device) -> bool:
            return pool.has(device) and (may_use(device, spec.where) is None or most is None)

        found = self._stock.empty(pool.kind, self._view.fleet.nodes, None, usable, may, most)
        return [self._made(replace(device, cut=None)) for device in found]

    def host_room(self, node: Node, spec: JobSpec) -> int:
        asked = spec.requests
        cpu = round(node.cpus * 1000) // asked.cpu_milli if asked.cpu_milli and node.cpus else spec.ranks
        known = asked.memory_bytes and node.memory_bytes
        return min(cpu, node.memory_bytes // asked.memory_bytes if known else spec.ranks, spec.ranks)


def table_of(view: View) -> Interference:
    """The table that unidle ships, with what the log saw of pairs."""
    known = known_loads()
    if not view.pairs:
        return known
    seen = {pair: PairSlowdown(total // times, times) for pair, (total, times) in view.pairs.items()}
    return Interference(known.loads, {**known.seen, **seen})


def _by_place(item: tuple[str, tuple[int, int]]) -> tuple[int, int]:
    return item[1]


def _may_use_node(node: Node, spec: JobSpec) -> bool:
    where = spec.where
    labels = all(node.labels.get(key) == value for key, value in where.labels.items())
    return labels and set(node.taints) <= set(where.tolerate)


def refused_before(job: JobView | None) -> dict[str, Reason]:
    """Devices that an earlier attempt of the job was refused, and why: it is not tried there again."""
    return {
        device_of(slice_id): attempt.why
        for attempt in (job.attempts if job is not None else ())
        if attempt.why is not None and attempt.why.code == CUT_REFUSED
        for place in attempt.places
        for slice_id in place.slices
    }
