"""Small random fleets, room and gangs, and what holds for every plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import Layout
from unidle.place.explain import why_blocked
from unidle.place.network.constraint import Blocked, Constraint, Gang, GangPlan
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.tree import FLEET, NODE, Ints, Tree, tree_of

KINDS = ("leaf", "spine", "pod")


@st.composite
def fleets(draw: st.DrawFn, most: int = 9) -> Fleet:
    """Trees of any shape: kinds at any depth, nodes at inner tiers, empty tiers, several roots."""
    tiers: list[Tier] = []
    for k in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from([None, *(t.id for t in tiers)]))
        fabric = draw(st.sampled_from([None, None, "infiniband", "roce"]))
        tiers.append(Tier(f"t{k}", draw(st.sampled_from(KINDS)), parent, fabric))
    nodes = []
    for k in range(draw(st.integers(1, most))):
        fabric = draw(st.sampled_from([None, None, None, "infiniband"]))
        device = Device(f"n{k}/0", f"n{k}", 0, "gpu")
        nodes.append(Node(f"n{k}", draw(st.sampled_from(tiers)).id, (device,), fabric=fabric))
    return Fleet(tuple(tiers), tuple(nodes))


@dataclass(frozen=True, slots=True)
class World:
    tree: Tree
    room: Ints
    gang: Gang


@st.composite
def worlds(draw: st.DrawFn) -> World:
    tree = tree_of(draw(fleets()))
    room = np.array(draw(st.lists(st.integers(0, 6), min_size=len(tree.nodes), max_size=len(tree.nodes))))
    return World(tree, room, draw(gangs()))


@st.composite
def gangs(draw: st.DrawFn) -> Gang:
    layout = Layout(*(draw(st.integers(1, 3)) for _ in range(3)))
    kinds = st.sampled_from((NODE, *KINDS))
    found = [
        Constraint(group, draw(kinds), hard=draw(st.booleans()))
        for group in draw(st.lists(st.sampled_from(("gang", "tp", "dp", "pp")), unique=True, max_size=3))
    ]
    if draw(st.integers(0, 3)) == 0:
        found.append(
            Constraint(fabric=draw(st.sampled_from(("infiniband", "roce"))), hard=draw(st.booleans()))
        )
    return Gang(layout.tp * layout.dp * layout.pp, layout, tuple(found))


def domain(tree: Tree, position: int, kind: str) -> tuple[str, int]:
    """The outermost tier of the kind above the node, else the node itself."""
    if kind != NODE:
        above = [v for v in tree.ancestors(position) if v and tree.kind_name(v) == kind]
        if above:
            return kind, above[-1]
    return NODE, position


def assert_holds(world: World, plan: GangPlan) -> None:
    """All ranks, no node over its room, and every hard or kept constraint."""
    tree = world.tree
    assert int(plan.counts.sum()) == world.gang.ranks
    assert (plan.counts > 0).all() and (plan.counts <= world.room[plan.nodes]).all()
    assert (np.diff(plan.nodes) > 0).all()
    kept = [c for c in world.gang.constraints if c not in plan.relaxed]
    assert all(not c.hard for c in plan.relaxed)
    for constraint in kept:
        if constraint.fabric is not None:
            assert len(plan.nodes) == 1 or carried(tree, plan, constraint.fabric)
        elif constraint.group == "gang":
            assert len({domain(tree, n, constraint.within) for n in plan.nodes.tolist()}) == 1
    assert can_be_grouped(world, plan, [c for c in kept if c.group != "gang"])


def carried(tree: Tree, plan: GangPlan, fabric: str) -> bool:
    """Whether every link between the nodes and the tier that joins them has the class."""
    from unidle.fleet.network import CLASSES

    column = [*CLASSES].index(fabric)  # type: ignore[arg-type]
    chains = [tree.ancestors(n) for n in plan.nodes.tolist()]
    joined = next(v for v in chains[0] if all(v in chain for chain in chains))
    return all(tree.node_up_bps[n, column] for n in plan.nodes.tolist()) and all(
        tree.tier_up_bps[v, column] for chain in chains for v in chain[: chain.index(joined)]
    )


def can_be_grouped(world: World, plan: GangPlan, kept: list[Constraint]) -> bool:
    """Whether the places can be dealt to ranks so that each group is where it has to be: by trying."""
    layout = world.gang.layout
    assert layout is not None
    if not kept:
        return True
    places = [n for n, c in zip(plan.nodes.tolist(), plan.counts.tolist(), strict=True) for _ in range(c)]
    index = [(t, d, p) for p in range(layout.pp) for d in range(layout.dp) for t in range(layout.tp)]
    axis = {"tp": 0, "dp": 1, "pp": 2}
    where: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}

    def put(rank: int, left: list[int]) -> bool:
        if rank == len(index):
            return True
        for place in dict.fromkeys(left):
            mine = [
                ((c.group, tuple(x for k, x in enumerate(index[rank]) if k != axis[c.group])), domain(world.tree, place, c.within))
                for c in kept
            ]  # fmt: skip
            if any(where.get(group, at) != at for group, at in mine):
                continue
            new = [group for group, at in mine if group not in where]
            where.update(mine)
            rest = list(left)
            rest.remove(place)
            if put(rank + 1, rest):
                return True
            for group in new:
                del where[group]
        return False

    return put(0, places)


__all__ = ["FLEET", "World", "assert_holds", "can_be_grouped", "domain", "fleets", "gangs", "worlds"]


def plan_or_why(rooms: DomainCapacity, gang: Gang) -> GangPlan | Blocked:
    """Where the gang goes now, or why it cannot; nothing is changed."""
    return rooms.place(gang) or why_blocked(rooms, gang)
