"""The order of ranks: against all orders on tiny gangs, and what holds for every one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from place.trees import World, domain, plan_or_why, worlds
from unidle.fleet import Device, Fleet, Link, Node, Tier
from unidle.jobs import Layout
from unidle.place.network.constraint import Blocked, Constraint, Gang, GangPlan
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.rank_order import RankOrder, map_ranks, order_found
from unidle.place.network.traffic import CostModel, Traffic, edges_of, usual_traffic
from unidle.place.network.tree import Tree, tree_of

GBPS = 1_000_000_000


def tree(leaves: list[int], node: int = 400, leaf: int = 400, device: int = 2_400) -> Tree:
    """Leaves of some nodes each under one spine; bandwidths in Gbit/s."""
    tiers = [Tier("s", "spine"), *(Tier(f"l{k}", "leaf", "s") for k in range(len(leaves)))]
    nodes = [
        Node(f"l{k}n{i}", f"l{k}", (Device(f"l{k}n{i}/0", f"l{k}n{i}", 0, "gpu"),))
        for k, n in enumerate(leaves)
        for i in range(n)
    ]
    links = [
        Link("", "", bps * GBPS, tier=kind)
        for kind, bps in (("node", node), ("leaf", leaf), ("device", device))
    ]
    return tree_of(Fleet(tuple(tiers), tuple(nodes), tuple(links)))


def mapped(network: Tree, counts: list[int], layout: Layout, traffic: Traffic) -> RankOrder:
    return map_ranks(network, np.arange(len(counts)), np.array(counts), layout, traffic)


@st.composite
def tiny(draw: st.DrawFn) -> tuple[Tree, list[int], Layout, Traffic]:
    layout = Layout(*(draw(st.integers(1, 3)) for _ in range(3)))
    ranks = layout.tp * layout.dp * layout.pp
    leaves = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    n = min(sum(leaves), ranks)
    cuts = (
        sorted(draw(st.lists(st.integers(1, max(1, ranks - 1)), min_size=n - 1, max_size=n - 1, unique=True)))
        if ranks > n
        else list(range(1, n))
    )
    counts = np.diff([0, *cuts, ranks]).tolist()
    speeds = st.sampled_from([100, 200, 400])
    network = tree(leaves, draw(speeds), draw(speeds))
    return network, counts, layout, Traffic(*(draw(st.integers(1, 1 << 34)) for _ in range(3)))


def least_s(model: CostModel, counts: list[int]) -> float:
    """The least cost of all orders."""
    places = [node for node, count in enumerate(counts) for _ in range(count)]
    orders = sorted(set(itertools.permutations(places)))
    grids = np.array(orders).reshape(-1, *model.shape())
    return float(model.cost(model.seconds(grids)).min())


@settings(max_examples=120)
@given(case=tiny().filter(lambda c: sum(c[1]) <= 8))
def test_no_order_of_a_tiny_gang_is_more_than_two_percent_faster(
    case: tuple[Tree, list[int], Layout, Traffic],
):
    network, counts, layout, traffic = case
    found = mapped(network, counts, layout, traffic)
    model = CostModel(edges_of(network, np.arange(len(counts))), layout, traffic)
    assert found.time_ns <= least_s(model, counts) * 1e9 * 1.02 + 2


@settings(max_examples=80)
@given(case=tiny())
def test_every_rank_has_one_place_and_the_order_is_always_the_same(
    case: tuple[Tree, list[int], Layout, Traffic],
):
    network, counts, layout, traffic = case
    found, again = (mapped(network, counts, layout, traffic) for _ in range(2))
    assert np.bincount(found.node_of_rank, minlength=len(counts)).tolist() == counts
    assert found.node_of_rank.tolist() == again.node_of_rank.tolist()
    assert found.time_ns == pytest.approx(sum(g.time_ns for g in found.groups.values()), abs=3)


@settings(max_examples=60)
@given(case=tiny(), seed=st.integers(0, 1_000))
def test_the_model_counts_each_crossing_as_one_would_by_hand(
    case: tuple[Tree, list[int], Layout, Traffic], seed: int
):
    network, counts, layout, traffic = case
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    grid = order.reshape(layout.pp, layout.dp, layout.tp)
    edges = edges_of(network, np.arange(len(counts)))
    seconds = CostModel(edges, layout, traffic).seconds(grid[None])[0]
    for edge in range(len(edges.bps)):
        behind = set(np.flatnonzero((edges.at == edge).any(axis=0)).tolist())
        for k, (axis, size, sent) in enumerate(
            ((2, layout.tp, traffic.tp_bytes), (1, layout.dp, traffic.dp_bytes))
        ):
            lines = np.moveaxis(grid, axis, -1).reshape(-1, size)
            cut = sum(0 < sum(node in behind for node in line) < size for line in lines.tolist())
            ring = 2 * (size - 1) / size * sent * 8 / edges.bps[edge]
            assert seconds[k, edge] == pytest.approx(cut * ring)
        pairs = zip(grid[:-1].ravel().tolist(), grid[1:].ravel().tolist(), strict=True)
        cut = sum((a in behind) != (b in behind) for a, b in pairs)
        assert seconds[2, edge] == pytest.approx(cut * traffic.pp_bytes * 8 / edges.bps[edge])


def test_tensor_groups_stay_in_nodes_and_data_groups_in_leaves():
    network = tree([2, 2], leaf=100)
    found = mapped(network, [8] * 4, Layout(8, 2, 2), usual_traffic(Layout(8, 2, 2)))
    assert found.groups["tp"].spread == {"node": 1, "spine": 1, "leaf": 1}
    assert found.groups["dp"].spread["leaf"] == 1
    assert found.groups["pp"].spread["leaf"] == 2
    assert found.groups["tp"].tier == "device"


def test_the_time_of_a_ring_over_one_slow_link_is_that_of_its_bytes():
    found = mapped(tree([1, 1], node=100, leaf=400), [1, 1], Layout(1, 2, 1), Traffic(0, 10**9, 0))
    # two ranks: each link of the ring carries the whole gradient once, 8 Gbit over 100 Gbit/s
    assert found.groups["dp"].time_ns == 80_000_000
    assert (found.groups["dp"].tier, found.groups["dp"].groups, found.groups["dp"].ranks) == ("node", 1, 2)
    assert found.groups["tp"].bytes == 0 and found.groups["tp"].time_ns == 0
    assert found.groups["dp"].how == "modelled"


def test_groups_that_share_a_way_up_share_its_bandwidth():
    one = mapped(tree([1, 1]), [1, 1], Layout(1, 2, 1), Traffic(0, 10**9, 0))
    four = mapped(tree([1, 1]), [4, 4], Layout(4, 2, 1), Traffic(10**11, 10**9, 0))
    assert four.groups["dp"].time_ns == 4 * one.groups["dp"].time_ns


def test_one_node_has_no_network():
    found = mapped(tree([1]), [8], Layout(2, 2, 2), Traffic(10**9, 10**9, 10**9))
    assert {g.tier for g in found.groups.values()} == {"device"}


def test_a_large_gang_keeps_what_fills_its_nodes_together():
    network = tree([10, 7, 9, 4])
    layout = Layout(8, 10, 3)
    found = mapped(network, [8] * 30, layout, usual_traffic(layout))
    assert np.bincount(found.node_of_rank).tolist() == [8] * 30
    assert found.groups["tp"].spread["node"] == 1 and found.groups["dp"].groups == 24


def test_nodes_of_uneven_size_are_filled_too():
    network = tree([5, 5])
    layout = Layout(4, 6, 3)
    counts = [8, 4, 8, 12, 4, 8, 8, 8, 8, 4]
    found = mapped(network, counts, layout, usual_traffic(layout))
    assert np.bincount(found.node_of_rank).tolist() == counts
    assert found.groups["tp"].spread["node"] == 1


def test_places_must_be_as_many_as_ranks():
    with pytest.raises(ValueError, match="7 places for 8 ranks"):
        mapped(tree([2]), [4, 3], Layout(2, 2, 2), Traffic(1, 1, 1))


def test_traffic_of_a_usual_model_is_as_documented():
    traffic = usual_traffic(Layout(8, 4, 2))
    activations = 8 * 4096 * 8192 * 2
    assert traffic == Traffic(4 * activations * 40, 2 * 70_000_000_000 // 16, activations // 8)
    assert math.isclose(usual_traffic(Layout(1, 1, 1)).tp_bytes, 0)


@settings(max_examples=200)
@given(world=worlds())
def test_a_plan_s_groups_are_together_in_its_order(world: World):
    plan = plan_or_why(DomainCapacity(world.tree, world.room), world.gang)
    layout = world.gang.layout
    if isinstance(plan, Blocked) or layout is None:
        return
    kept = [c for c in world.gang.constraints if c not in plan.relaxed]
    traffic = Traffic(1, 1 << 30, 1 << 32)  # against what is asked: pipelines want to be together most
    found = map_ranks(world.tree, plan.nodes, plan.counts, layout, traffic, keep=kept)
    positions = plan.nodes[found.node_of_rank].reshape(layout.pp, layout.dp, layout.tp)
    axis = {"tp": 2, "dp": 1, "pp": 0}
    for constraint in kept:
        if constraint.group == "gang":
            continue
        lines = np.moveaxis(positions, axis[constraint.group], -1)
        for line in lines.reshape(-1, lines.shape[-1]).tolist():
            assert len({domain(world.tree, n, constraint.within) for n in line}) == 1


def test_a_large_plan_s_groups_are_together_too():
    network = tree([6, 9, 5, 7, 8, 4])
    layout = Layout(4, 8, 5)
    for wishes in ((("tp", "node"), ("dp", "leaf")), (("dp", "leaf"),), (("dp", "node"), ("tp", "leaf"))):
        keep = [Constraint(group, within) for group, within in wishes]  # type: ignore[arg-type]
        plan = plan_or_why(DomainCapacity(network, np.full(39, 8)), Gang(160, layout, tuple(keep)))
        assert isinstance(plan, GangPlan)
        found = map_ranks(network, plan.nodes, plan.counts, layout, Traffic(1, 1 << 20, 1 << 34), keep=keep)
        for group, within in wishes:
            assert found.groups[group].spread[within] == 1  # type: ignore[index]


def test_a_problem_seen_before_has_the_same_answer_elsewhere():
    network, layout = tree([2, 2, 2]), Layout(2, 2, 2)
    traffic = usual_traffic(layout)
    here, there = (
        map_ranks(network, np.array(at), np.array([4, 4]), layout, traffic) for at in ([0, 1], [4, 5])
    )
    assert here.node_of_rank.tolist() == there.node_of_rank.tolist() and here.time_ns == there.time_ns
    order_found.cache_clear()
    again = map_ranks(network, np.array([4, 5]), np.array([4, 4]), layout, traffic)
    assert again.node_of_rank.tolist() == there.node_of_rank.tolist()


def test_places_that_tear_a_group_are_refused():
    with pytest.raises(ValueError, match="keeps the groups together"):
        map_ranks(
            tree([2]),
            np.arange(2),
            np.array([3, 3]),
            Layout(2, 3),
            Traffic(1, 1, 1),
            keep=[Constraint("tp", "node")],
        )
