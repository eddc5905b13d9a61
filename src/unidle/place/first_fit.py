"""Gangs, all or nothing, first fit in queue order.

Nodes are tried in the order of the fleet; a rank's slices are on one node. A gang goes on one node
where one holds it whole, else on the first nodes that hold it together. A job that does not fit is
passed over, and the reason is recorded.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from unidle.jobs import RankPlace, Reason, Select
from unidle.place.plan import Place, Plan, Wait
from unidle.view.occupancy import ANY, Bits, Occupancy, counts
from unidle.view.state import Shape, View

KINDS: Final = {"gpu": ("gpu",), "cpu": ("cpu",), "any": ("gpu", "cpu")}

Chosen = list[tuple[int, int]]  # nodes by their order, and how many ranks go there
Counts: TypeAlias = npt.NDArray[np.int64]  # per node, in the fleet's order


@dataclass(frozen=True, slots=True)
class FirstFit:
    """The first placement policy (see the module)."""

    def decide(self, view: View, now_ns: int) -> Plan:
        return in_queue_order(view, now_ns, Search(view.occupancy))


def in_queue_order(view: View, now_ns: int, search: Search) -> Plan:
    """Place every waiting gang for which ``search`` finds room, in queue order; the others get a reason."""
    places: dict[str, Place] = {}
    blocked: dict[Shape, dict[str, int]] = {}  # what was free when the first gang did not fit
    for shape, job_id in _Merged(view, now_ns, blocked):
        found = search.fit(shape)
        if found is not None:
            places[job_id] = Place(job_id, found, search.why_here(found))
        else:  # what is free only shrinks within one decision
            blocked[shape] = dict(search.left)
    unjudged = sorted((view.jobs[j] for j in view.unjudged), key=lambda job: job.order)
    waits = [
        Wait(job.id, why_not(view, job.shape, blocked[job.shape]))
        for job in unjudged
        if job.shape in blocked and job.id not in places and job.not_before_ns <= now_ns
    ]
    return Plan(tuple(places.values()), tuple(waits))


def why_not(view: View, shape: Shape, left: Mapping[str, int] | None = None) -> Reason:
    """Why no gang of this shape can be placed now (``left``: free slices by kind, if not the view's)."""
    needs = shape.ranks * shape.devices_per_rank
    kinds = KINDS[shape.device]
    free = sum((view.occupancy.free if left is None else left).get(k, 0) for k in kinds)
    total = sum(view.occupancy.total.get(k, 0) for k in kinds)
    if shape.models != ANY:
        total = sum(view.occupancy.room(k, 1, shape.models) for k in kinds)
        free = min(free, sum(view.occupancy.free_of(k, shape.models) for k in kinds))
    figures: dict[str, int | float | str] = {"needs": needs, "free": free, "devices": total}
    if not fits_ever(view, shape):
        text = f"needs {needs} {_noun(shape, needs)}, and the fleet has {total}: it can never start here"
        if needs <= total:
            text = (
                f"needs {shape.devices_per_rank} {_noun(shape, shape.devices_per_rank)} on one node for each of "
                f"{shape.ranks} ranks, and the fleet's nodes do not hold them: it can never start here"
            )
        return Reason("never_fits", text, figures)
    if free < needs:
        text = f"needs {needs} {_noun(shape, needs)}, {free} of {total} are free"
    else:
        text = f"needs {shape.devices_per_rank} on one node for each of {shape.ranks} ranks; {free} are free, but scattered"
    return Reason("no_fit", text, figures)


def fits_ever(view: View, shape: Shape) -> bool:
    """Whether the whole fleet, empty and healthy, holds a gang of this shape."""
    occupancy = view.occupancy
    return any(
        occupancy.room(kind, shape.devices_per_rank, shape.models) >= shape.ranks
        for kind in KINDS[shape.device]
    )


def _noun(shape: Shape, n: int) -> str:
    kind = {"gpu": "GPU", "cpu": "CPU device", "any": "device"}[shape.device]
    models = " or ".join(shape.models.include)
    return f"{models + ' ' if models else ''}{kind}{'' if n == 1 else 's'}"


class _Merged:
    """Waiting jobs over all shapes in queue order; the rest of a blocked shape is passed over."""

    def __init__(self, view: View, now_ns: int, blocked: Container[Shape]) -> None:
        self._view, self._now_ns, self._blocked = view, now_ns, blocked
        self._heads = [(queue[0], 0, shape) for shape, queue in view.waiting.items() if queue]
        heapq.heapify(self._heads)

    def __iter__(self) -> _Merged:
        return self

    def __next__(self) -> tuple[Shape, str]:
        while self._heads:
            (_, _, job_id), at, shape = heapq.heappop(self._heads)
            if shape in self._blocked:
                continue
            queue = self._view.waiting[shape]
            if at + 1 < len(queue):
                heapq.heappush(self._heads, (queue[at + 1], at + 1, shape))
            if self._view.jobs[job_id].not_before_ns <= self._now_ns:
                return shape, job_id
        raise StopIteration


class Search:
    """Looks for room on top of an occupancy that it does not change. Other orders override ``choose``."""

    code: str = "first_fit"
    first: str = "first"  # as in "first node n3 with 2 free"

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._bits: dict[str, Bits] = {}  # kind -> free masks, where this plan took something
        self._counts: dict[tuple[str, Select], Counts] = {}  # free devices per node, by kind and models
        self.left = dict(occupancy.free)

    def fit(self, shape: Shape) -> tuple[RankPlace, ...] | None:
        """Places for a gang, which are taken from now on, or None."""
        for kind in KINDS[shape.device]:
            if self.left.get(kind, 0) < shape.ranks * shape.devices_per_rank:
                continue
            free = self._free(kind, shape.models)
            chosen = self.choose(free, free // shape.devices_per_rank, shape.ranks)
            if chosen:
                return self._take(kind, chosen, shape)
        return None

    def choose(self, free: Counts, room: Counts, ranks: int) -> Chosen:  # noqa: ARG002
        """Nodes and how many ranks go there: one node if one is enough, else the first that do.

        ``free`` devices and ``room`` for ranks are per node, in the fleet's order. Empty: no room.
        """
        whole = room >= ranks
        at = int(whole.argmax())
        if whole[at]:
            return [(at, ranks)]
        return in_turn(np.flatnonzero(room), room, ranks)

    def why_here(self, places: tuple[RankPlace, ...]) -> Reason:
        nodes = list(dict.fromkeys(p.node for p in places))
        devices = sum(len(p.slices) for p in places)
        where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes from {nodes[0]} on"
        text = f"{self.first} {where} with {devices} free"
        return Reason(self.code, text, {"nodes": len(nodes), "devices": devices})

    def _free(self, kind: str, models: Select) -> Counts:
        """Devices of these models that a gang could have, node by node."""
        found = self._counts.get((kind, models))
        if found is None:
            bits = self._bits_of(kind)
            if models != ANY:
                bits = bits & self._occupancy.model_bits(kind, models)
            found = self._counts[kind, models] = counts(bits)
        return found

    def _bits_of(self, kind: str) -> Bits:
        return self._bits[kind] if kind in self._bits else self._occupancy.free_bits(kind)

    def _take(self, kind: str, chosen: Chosen, shape: Shape) -> tuple[RankPlace, ...]:
        each, occupancy = shape.devices_per_rank, self._occupancy
        if kind not in self._bits:
            self._bits[kind] = occupancy.free_bits(kind).copy()
        bits = self._bits[kind]
        allowed = None if shape.models == ANY else occupancy.model_bits(kind, shape.models)
        places: list[RankPlace] = []
        for order, ranks in chosen:
            node, free = occupancy.nodes[kind][order], int(bits[order])
            mask = free if allowed is None else free & int(allowed[order])
            for _ in range(ranks):
                ids: list[str] = []
                while len(ids) < each:
                    low = mask & -mask
                    ids.append(node.slices[low.bit_length() - 1])
                    mask ^= low
                    free ^= low
                places.append(RankPlace(len(places), node.node, tuple(ids)))
            bits[order] = free
        self.left[kind] -= shape.ranks * each
        self._count_again(kind, [order for order, _ in chosen])
        return tuple(places)

    def _count_again(self, kind: str, orders: list[int]) -> None:
        """The nodes whose masks changed, for every selection of models that was asked for."""
        for (of, models), known in self._counts.items():
            if of == kind:
                bits = self._bits[kind][orders]
                if models != ANY:
                    bits = bits & self._occupancy.model_bits(kind, models)[orders]
                known[orders] = counts(bits)


def in_turn(order: Counts, room: Counts, ranks: int) -> Chosen:
    """As many ranks on each node as it has room for, in this order of nodes, until all have a place."""
    rooms = room[order]
    reached = rooms.cumsum()
    if not len(order) or reached[-1] < ranks:
        return []
    last = int(np.searchsorted(reached, ranks))
    some: Chosen = list(zip(order[:last].tolist(), rooms[:last].tolist(), strict=True))
    return [*some, (int(order[last]), ranks - int(reached[last] - rooms[last]))]
