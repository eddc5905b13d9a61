"""Gangs on nodes whose inner links are known: on which of several nodes, and which GPUs each rank gets."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from unidle.place.constraint import Gang, GangPlan
from unidle.place.ground import Ground
from unidle.place.inner import Seats
from unidle.place.rank_class import RankClass

_LOOKED_AT: Final = 64  # nodes whose links are compared for one gang


def well_wired(
    ground: Ground, rank_class: RankClass, plan: GangPlan, gang: Gang, free: Callable[[int], int]
) -> GangPlan:
    """Of the nodes that hold a gang of one node equally tightly, one on which its GPUs are best connected.

    ``free`` returns the mask of the slices that the ranks may take on a node, by its position.
    """
    count = gang.ranks * rank_class.each
    if plan.vertex >= 0 or count < 2 or not _links_count(ground, rank_class):
        return plan
    first = at = int(plan.nodes[0])
    best = -1
    for position in rank_class.rooms.alike(plan)[:_LOOKED_AT].tolist():
        node = ground.nodes[position]
        here = ground.inner.weakest(node, count, free(position))
        if here is None and position == first:
            return plan  # nothing is known of where it would go
        if here is not None and here > best:
            at, best = position, here
            if here == ground.inner.weakest(node, count):
                break  # as good as it gets on such a node
    return plan if at == first else rank_class.rooms.moved(gang, plan, at)


def seats_of(
    ground: Ground,
    rank_class: RankClass,
    tp: int,
    node_of_rank: Sequence[int],
    positions: Sequence[int],
    masks: Sequence[int],
    seated: Container[int] = (),
) -> dict[int, Seats]:
    """The GPUs of each rank that is not ``seated`` yet, where the links of its node are known.

    ``node_of_rank`` indexes ``positions``, and so do the keys of the answer; ``masks`` are the slices that each node
    has to give. ``tp`` ranks in a row are a tensor group.
    """
    if not _links_count(ground, rank_class):
        return {}
    groups: list[dict[int, int]] = [{} for _ in positions]  # ranks of each tensor group, in rank order
    for rank, at in enumerate(node_of_rank):
        if rank not in seated:
            groups[at][rank // tp] = groups[at].get(rank // tp, 0) + 1
    found = {}
    for at, position in enumerate(positions):
        sizes = tuple(groups[at].values())
        seats = (
            ground.inner.seats(ground.nodes[position], masks[at], sizes, rank_class.each) if sizes else None
        )
        if seats is not None:
            found[at] = seats
    return found


def _links_count(ground: Ground, rank_class: RankClass) -> bool:
    """Whether any links are known, and the ranks take whole GPUs."""
    return bool(ground.fleet.gpu_links) and rank_class.kind == "gpu" and not rank_class.by_size
