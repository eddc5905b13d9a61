"""The tree as arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from place.trees import fleets
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.network import CLASSES
from unidle.place.network.tree import tree_of


def test_nodes_of_a_tier_stand_together():
    tiers = (Tier("s", "spine"), Tier("l1", "leaf", "s"), Tier("l2", "leaf", "s"))
    nodes = tuple(
        Node(name, parent, (Device(f"{name}/0", name, 0, "gpu"),))
        for name, parent in (("a", "l2"), ("b", "l1"), ("c", "s"), ("d", "l2"))
    )
    tree = tree_of(Fleet(tiers, nodes))
    assert tree.nodes == ("c", "b", "a", "d")
    assert tree.source.tolist() == [2, 1, 0, 3]
    assert dict(zip(tree.tiers, zip(tree.lo.tolist(), tree.hi.tolist(), strict=True), strict=True)) == {
        "fleet": (0, 4), "s": (0, 4), "l1": (1, 2), "l2": (2, 4)
    }  # fmt: skip
    assert tree.height.tolist() == [3, 2, 1, 1]


def test_a_kind_is_found_by_its_label_too():
    tree = tree_of(Fleet((Tier("a", "switch"),), (Node("n", "a", (Device("n/0", "n", 0, "gpu"),)),)))
    assert tree.kind_code("aiops.io/switch") == tree.kind_code("switch") == 1
    assert tree.kind_code("leaf") is None and tree.kind_code("fleet") is None


def test_a_fleet_without_tiers_is_one_domain():
    tree = tree_of(Fleet(nodes=(Node("n", "", (Device("n/0", "n", 0, "cpu"),)),)))
    assert tree.tiers == ("fleet",) and tree.hi.tolist() == [1]


@given(fleet=fleets())
def test_every_tier_holds_the_nodes_below_it_and_no_other(fleet: Fleet):
    tree = tree_of(fleet)
    parents = {t.id: t.parent for t in fleet.tiers}
    for position, index in enumerate(tree.source.tolist()):
        above, here = set(), fleet.nodes[index].parent
        while here is not None:
            above.add(here)
            here = parents[here]
        held = {tree.tiers[v] for v in range(1, len(tree.tiers)) if tree.lo[v] <= position < tree.hi[v]}
        assert held == above == {tree.tiers[v] for v in tree.ancestors(position) if v}
    assert sorted(tree.source.tolist()) == list(range(len(fleet.nodes)))
    assert sum(tree.direct.tolist()) == len(fleet.nodes)
    assert sorted(v for below in tree.children for v in below.tolist()) == list(range(1, len(tree.tiers)))


@given(fleet=fleets())
def test_links_of_a_class_reach_as_high_as_they_are_unbroken(fleet: Fleet):
    tree = tree_of(fleet)
    for fabric in CLASSES:
        column = CLASSES.index(fabric)
        for position, reached in enumerate(tree.reach(fabric).tolist()):
            way = tree.ancestors(position)
            expected = int(tree.depth.max()) + 1
            if tree.node_up_bps[position, column]:
                k = 0
                while k < len(way) - 1 and tree.tier_up_bps[way[k], column]:
                    k += 1
                expected = int(tree.depth[way[k]])
            assert reached == expected


@given(fleet=fleets())
def test_every_way_up_has_a_bandwidth(fleet: Fleet):
    tree = tree_of(fleet)
    assert (tree.node_up_bps.max(axis=1) > 0).all() and (tree.tier_up_bps[1:].max(axis=1) > 0).all()
    assert (tree.inside_bps > 0).all()
    assert not tree.declared[1:].any() and tree.declared[0]
    assert np.array_equal(tree.depth[1:], tree.depth[tree.parent[1:]] + 1)
