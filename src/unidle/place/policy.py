"""The placement policies: the one that unidle uses, and first fit.

First fit tries nodes in the order of the fleet; a rank's slices are on one node. A gang is placed on the first
node that holds it whole, else on the first nodes that hold it together. A job that does not fit is
skipped, and the reason is recorded. Nothing here needs NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from unidle.fleet import Fleet
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.place.protocol import KINDS, InQueueOrder, Place, Plan, Policy, Wait, noun, starves
from unidle.view.jobs import JobView
from unidle.view.occupancy import NodeSlots, Occupancy
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import are, counted


@dataclass(frozen=True, slots=True)
class FirstFit:
    """The first placement policy (see the module)."""

    def decide(self, view: View, now_ns: int) -> Plan:
        search = _Search(view)
        places: dict[str, Place] = {}
        blocked: dict[Shape, dict[str, int]] = {}  # what was free when the first gang did not fit
        for shape, job_id in InQueueOrder(view, now_ns, blocked):
            found = search.again(view.jobs[job_id]) or search.fit(shape)
            if found is not None:
                places[job_id] = Place(job_id, found, _why_here(found))
            else:  # what is free only shrinks within one decision
                blocked[shape] = dict(search.left)
        unjudged = sorted((view.jobs[j] for j in view.unjudged), key=lambda job: job.order)
        waits = [
            Wait(job.id, why_not(view, job.shape, blocked[job.shape]))
            for job in unjudged
            if job.shape in blocked and job.id not in places and job.not_before_ns <= now_ns
        ]
        return Plan(tuple(places.values()), tuple(waits))

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        shape = Shape.of(spec)
        found = _Search(view).fit(shape)
        return why_not(view, shape) if found is None else None

    def ever(self, view: View, spec: JobSpec) -> bool:
        return fits_ever(view, Shape.of(spec))


def why_not(view: View, shape: Shape, left: Mapping[str, int] | None = None) -> Reason:
    """Why no gang of this shape can be placed now (``left``: free slices by kind, if not the view's)."""
    needs = shape.ranks * shape.devices_per_rank
    if not needs:
        return Reason("no_cores", "no node accepts jobs now", {"needs": shape.ranks, "free": 0, "devices": 0})
    kinds = KINDS[shape.device]
    free = sum((view.occupancy.free if left is None else left).get(k, 0) for k in kinds)
    total = sum(view.occupancy.total.get(k, 0) for k in kinds)
    figures: dict[str, int | float | str] = {"needs": needs, "free": free, "devices": total}
    if not fits_ever(view, shape):
        text = (
            f"needs {needs} {noun(shape.device, needs)}, and the fleet has {total}: it can never start here"
        )
        if needs <= total:
            text = (
                f"needs {shape.devices_per_rank} {noun(shape.device, shape.devices_per_rank)} on one node for each of "
                f"{counted(shape.ranks, 'rank')}, and the fleet's nodes do not hold them: it can never start here"
            )
        return Reason("never_fits", text, figures)
    if free < needs:
        text = f"needs {needs} {noun(shape.device, needs)}, {free} of {total} {are(free)} free"
    else:
        each = f"{shape.devices_per_rank} on one node for each of {counted(shape.ranks, 'rank')}"
        text = f"needs {each}; {free} {are(free)} free, but scattered"
    return Reason("no_fit", text, figures)


def fits_ever(view: View, shape: Shape) -> bool:
    """Whether the whole fleet, empty and healthy, holds a gang of this shape."""
    occupancy = view.occupancy
    if not shape.devices_per_rank:
        return bool(view.fleet.nodes)
    return any(occupancy.room(kind, shape.devices_per_rank) >= shape.ranks for kind in KINDS[shape.device])


class _Search:
    """Looks for room on top of an occupancy that it does not change."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._occupancy: Occupancy = view.occupancy
        self._taken: dict[tuple[str, int], int] = {}  # (kind, node) -> mask taken by this plan
        self.left = dict(self._occupancy.free)

    def fit(self, shape: Shape) -> tuple[RankPlace, ...] | None:
        if not shape.devices_per_rank:
            shut = self._view.shut_nodes()
            open_nodes = (node.id for node in self._view.fleet.nodes if node.id not in shut)
            node = next(open_nodes, None)
            return None if node is None else tuple(RankPlace(rank, node, ()) for rank in range(shape.ranks))
        for kind in KINDS[shape.device]:
            if self.left.get(kind, 0) < shape.ranks * shape.devices_per_rank:
                continue
            chosen = self._nodes(kind, shape)
            if chosen:
                return self._take(kind, chosen, shape)
        return None

    def again(self, job: JobView) -> tuple[RankPlace, ...] | None:
        """The places of the job's last attempt where it comes back to them and all are free."""
        last = job.attempts[-1] if job.attempts else None
        if last is None or not last.left_places or len(last.places) != job.spec.ranks:
            return None
        found: dict[tuple[str, int], tuple[NodeSlots, int]] = {}
        for slice_id in (s for place in last.places for s in place.slices):
            if not self._occupancy.knows(slice_id):
                return None
            kind, node, bit = self._occupancy.at(slice_id)
            mask = found.get((kind, node.order), (node, 0))[1] | bit
            found[kind, node.order] = node, mask
        if any(mask & ~self._free(kind, node) for (kind, _), (node, mask) in found.items()):
            return None
        for (kind, order), (_, mask) in found.items():
            self._taken[kind, order] = self._taken.get((kind, order), 0) | mask
            self.left[kind] -= mask.bit_count()
        return last.places

    def _free(self, kind: str, node: NodeSlots) -> int:
        taken = self._taken
        return node.free & ~taken.get((kind, node.order), 0) if taken else node.free

    def _nodes(self, kind: str, shape: Shape) -> list[tuple[NodeSlots, int]]:
        """Nodes and how many ranks go there: one node if one is enough, else the first that do."""
        each, ranks = shape.devices_per_rank, shape.ranks
        nodes = self._occupancy.nodes[kind]
        first: list[tuple[NodeSlots, int]] = []
        missing = ranks
        one_may_do = self._occupancy.largest[kind] >= ranks * each
        for order in self._occupancy.open[kind]:
            node = nodes[order]
            room = self._free(kind, node).bit_count() // each
            if room >= ranks:
                return [(node, ranks)]
            if room and missing:
                here = min(room, missing)
                first.append((node, here))
                missing -= here
            if not missing and not one_may_do:
                break
        return [] if missing else first

    def _take(self, kind: str, chosen: list[tuple[NodeSlots, int]], shape: Shape) -> tuple[RankPlace, ...]:
        each = shape.devices_per_rank
        places: list[RankPlace] = []
        for node, ranks in chosen:
            mask, taken = self._free(kind, node), 0
            for _ in range(ranks):
                ids: list[str] = []
                while len(ids) < each:
                    low = mask & -mask
                    ids.append(node.slices[low.bit_length() - 1])
                    mask ^= low
                    taken |= low
                places.append(RankPlace(len(places), node.node, tuple(ids)))
            key = (kind, node.order)
            self._taken[key] = self._taken.get(key, 0) | taken
        self.left[kind] -= shape.ranks * each
        return tuple(places)


def _why_here(places: tuple[RankPlace, ...]) -> Reason:
    nodes = list(dict.fromkeys(p.node for p in places))
    devices = sum(len(p.slices) for p in places)
    where = f"node {nodes[0]}" if len(nodes) == 1 else f"{counted(len(nodes), 'node')} from {nodes[0]} on"
    return Reason(
        "first_fit", f"first {where} with {devices} free", {"nodes": len(nodes), "devices": devices}
    )


class Unidle:
    """``place.scheduler``; first fit on one plain node, if no job starves or wishes for more than devices.

    First fit then makes the same decisions, and starts without NumPy.
    """

    def __init__(self) -> None:
        self._simple = FirstFit()
        self._full: Policy | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        more = any(shape.wish for shape in view.waiting) or starves(view, now_ns)
        return self._for(view, more).decide(view, now_ns)

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        return self._for(view, bool(spec.wish)).why_not(view, spec)

    def ever(self, view: View, spec: JobSpec) -> bool:
        return self._for(view, bool(spec.wish)).ever(view, spec)

    def _for(self, view: View, wish: bool) -> Policy:
        if not wish and _is_plain(view.fleet):  # also after others wished for more: the view alone says it
            return self._simple
        if self._full is None:
            from unidle.place.scheduler import Scheduler

            self._full = Scheduler()
        return self._full


def _is_plain(fleet: Fleet) -> bool:
    """At most one node, GPUs of one model; no taints, spares, probation, cut devices, GPU links or queues."""
    if fleet.order.by != "fifo" or fleet.guard.keeps_spares or fleet.guard.probation_work != "none":
        return False
    if len(fleet.nodes) > 1 or fleet.queues or fleet.gpu_links or any(node.taints for node in fleet.nodes):
        return False
    gpus = {(device.vendor, device.model) for device in fleet.devices() if device.kind == "gpu"}
    return len(gpus) < 2 and all(len(device.slices_ppm) == 1 for device in fleet.devices())


def on_this_fleet(spec: JobSpec, view: View) -> JobSpec:
    """The job as the fleet of this view can run it, see :meth:`JobSpec.on_fleet_of`; unchanged where none is known.

    A filler without a price of its own has that of the fleet.
    """
    if spec.is_filler and spec.price_per_device_hour is None and view.fleet.filler_price is not None:
        spec = replace(spec, price_per_device_hour=view.fleet.filler_price)
    if spec.device != "cpu" or not view.fleet.nodes:
        return spec
    return spec.on_fleet_of(view.occupancy.nodes.keys())


DEFAULT: Final = "unidle"
