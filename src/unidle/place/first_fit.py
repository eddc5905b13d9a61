"""Gangs, all or nothing, first fit in queue order.

Nodes are tried in the order of the fleet; a rank's slices are on one node. A gang goes on one node
where one holds it whole, else on the first nodes that hold it together. A job that does not fit is
passed over, and the reason is recorded.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from unidle.jobs import RankPlace, Reason
from unidle.place.plan import Place, Plan, Wait
from unidle.view.occupancy import ANY, NodeSlots, Occupancy
from unidle.view.state import Shape, View

KINDS: Final = {"gpu": ("gpu",), "cpu": ("cpu",), "any": ("gpu", "cpu")}

Chosen = list[tuple[NodeSlots, int]]  # nodes, and how many ranks go there


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
        free = min(free, sum(_free_of(view.occupancy, k, shape) for k in kinds))
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


def _free_of(occupancy: Occupancy, kind: str, shape: Shape) -> int:
    nodes = occupancy.nodes.get(kind, ())
    return sum((node.free & node.of_models(shape.models)).bit_count() for node in nodes)


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
    """Looks for room on top of an occupancy that it does not change. Other orders override ``_nodes``."""

    code: str = "first_fit"
    first: str = "first"  # as in "first node n3 with 2 free"

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._taken: dict[tuple[str, int], int] = {}  # (kind, node) -> mask taken by this plan
        self.left = dict(occupancy.free)

    def fit(self, shape: Shape) -> tuple[RankPlace, ...] | None:
        """Places for a gang, which are taken from now on, or None."""
        for kind in KINDS[shape.device]:
            if self.left.get(kind, 0) < shape.ranks * shape.devices_per_rank:
                continue
            chosen = self._nodes(kind, shape)
            if chosen:
                return self._take(kind, chosen, shape)
        return None

    def why_here(self, places: tuple[RankPlace, ...]) -> Reason:
        nodes = list(dict.fromkeys(p.node for p in places))
        devices = sum(len(p.slices) for p in places)
        where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes from {nodes[0]} on"
        text = f"{self.first} {where} with {devices} free"
        return Reason(self.code, text, {"nodes": len(nodes), "devices": devices})

    def _free(self, kind: str, node: NodeSlots, shape: Shape) -> int:
        """The mask of what this gang could have of the node."""
        taken = self._taken
        mask = node.free & ~taken.get((kind, node.order), 0) if taken else node.free
        return mask if shape.models is ANY or shape.models == ANY else mask & node.of_models(shape.models)

    def _rooms(self, kind: str, shape: Shape) -> Iterator[tuple[NodeSlots, int, int]]:
        """Nodes that hold a rank of the gang: how many of them, and how many devices it could have."""
        nodes, each = self._occupancy.nodes[kind], shape.devices_per_rank
        for order in self._occupancy.open[kind]:
            free = self._free(kind, nodes[order], shape).bit_count()
            if free >= each:
                yield nodes[order], free // each, free

    def _nodes(self, kind: str, shape: Shape) -> Chosen:
        """Nodes and how many ranks go there: one node if one is enough, else the first that do."""
        ranks = shape.ranks
        first: Chosen = []
        missing = ranks
        one_may_do = self._occupancy.largest[kind] >= ranks * shape.devices_per_rank
        for node, room, _ in self._rooms(kind, shape):
            if room >= ranks:
                return [(node, ranks)]
            if missing:
                here = min(room, missing)
                first.append((node, here))
                missing -= here
            if not missing and not one_may_do:
                break
        return [] if missing else first

    def _take(self, kind: str, chosen: Chosen, shape: Shape) -> tuple[RankPlace, ...]:
        each = shape.devices_per_rank
        places: list[RankPlace] = []
        for node, ranks in chosen:
            mask, taken = self._free(kind, node, shape), 0
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
