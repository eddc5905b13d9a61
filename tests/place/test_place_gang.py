"""What holds for every gang on every tree."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from place.trees import World, assert_holds, can_be_grouped, domain, fleets, gangs, plan_or_why, worlds
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Layout, Reason, Topology
from unidle.place.network.constraint import Blocked, Constraint, Gang, GangPlan, gang_of
from unidle.place.network.domains import DomainCapacity, pick
from unidle.place.network.tree import change, room_of, tree_of, units_of


@settings(max_examples=300)
@given(world=worlds())
def test_a_gang_is_whole_within_its_room_and_its_constraints(world: World):
    plan = plan_or_why(DomainCapacity(world.tree, world.room), world.gang)
    event("blocked" if isinstance(plan, Blocked) else "placed")
    if isinstance(plan, GangPlan):
        assert_holds(world, plan)
    else:
        assert plan.barriers and plan.because.text


@settings(max_examples=200)
@given(world=worlds())
def test_the_same_input_gives_the_same_plan(world: World):
    one, other = (plan_or_why(DomainCapacity(world.tree, world.room.copy()), world.gang) for _ in range(2))
    assert type(one) is type(other) and one.because == other.because
    if isinstance(one, GangPlan) and isinstance(other, GangPlan):
        assert one.nodes.tolist() == other.nodes.tolist() and one.counts.tolist() == other.counts.tolist()


@settings(max_examples=200)
@given(data=st.data(), tree=fleets(most=4))
def test_a_gang_is_blocked_only_where_no_choice_of_places_would_do(data: st.DataObject, tree: Fleet):
    arrays = tree_of(tree)
    n = len(arrays.nodes)
    room = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    gang = data.draw(gangs().filter(lambda g: g.ranks <= 8))
    hard = Gang(gang.ranks, gang.layout, tuple(c for c in gang.constraints if c.hard and not c.fabric))
    world = World(arrays, room, hard)
    plan = plan_or_why(DomainCapacity(arrays, room), hard)
    if isinstance(plan, GangPlan) or any(c.within not in ("node", *arrays.kinds) for c in hard.constraints):
        return
    for counts in itertools.product(*(range(r + 1) for r in room.tolist())):
        if sum(counts) != hard.ranks:
            continue
        used = np.flatnonzero(counts)
        whole = [c for c in hard.constraints if c.group == "gang"]
        if any(len({domain(arrays, k, c.within) for k in used.tolist()}) > 1 for c in whole):
            continue
        made = GangPlan(used, np.array(counts)[used], 0, 0, None, (), Reason("", ""))
        groups = [c for c in hard.constraints if c.group != "gang"]
        assert not can_be_grouped(world, made, groups), (counts, plan.because.text)


@settings(max_examples=150)
@given(data=st.data(), fleet=fleets())
def test_sums_that_are_kept_equal_sums_made_anew(data: st.DataObject, fleet: Fleet):
    tree = tree_of(fleet)
    kinds = st.sampled_from([None, *range(1, len(tree.kinds))])
    sizes = data.draw(st.lists(st.tuples(kinds, st.integers(2, 3)), max_size=3))
    units = units_of(tree, sizes)
    room = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=len(tree.nodes), max_size=len(tree.nodes)))
    )
    kept = room_of(tree, units, room)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(room) - 1))
        room[position] = data.draw(st.integers(0, 9))
        change(tree, units, kept, position, int(room[position]))
    fresh = room_of(tree, units, room)
    assert kept.tiers.tolist() == fresh.tiers.tolist() and kept.nodes.tolist() == fresh.nodes.tolist()
    assert [r.tolist() for r in kept.ranks] == [r.tolist() for r in fresh.ranks]


@settings(max_examples=100)
@given(world=worlds(), more=st.lists(gangs(), max_size=4))
def test_room_that_was_taken_and_given_back_holds_the_same_gangs(world: World, more: list[Gang]):
    rooms = DomainCapacity(world.tree, world.room)
    first = plan_or_why(rooms, world.gang)
    taken: list[GangPlan] = []
    for gang in [world.gang, *more]:
        plan = plan_or_why(rooms, gang)
        if isinstance(plan, GangPlan):
            rooms.set(plan.nodes, rooms.room[plan.nodes] - plan.counts)
            assert (rooms.room >= 0).all()
            taken.append(plan)
    for plan in taken:
        rooms.set(plan.nodes, rooms.room[plan.nodes] + plan.counts)
    assert rooms.room.tolist() == world.room.tolist()
    assert plan_or_why(rooms, world.gang).because == first.because


@given(able=st.lists(st.integers(0, 20), min_size=1, max_size=8), share=st.floats(0.01, 1.0))
def test_the_fewest_parts_hold_what_is_needed(able: list[int], share: float):
    need = int(sum(able) * share)
    if not need:
        return
    chosen, parts = pick(np.array(able), need)
    assert parts.sum() == need and (parts <= np.array(able)[chosen]).all() and (parts > 0).all()
    assert sum(sorted(able, reverse=True)[: len(chosen) - 1]) < need


def test_a_large_change_and_small_ones_come_to_the_same():
    tree = tree_of(
        Fleet(
            (Tier("r", "rack"),),
            tuple(Node(f"n{k}", "r", (Device(f"n{k}/0", f"n{k}", 0, "gpu"),)) for k in range(100)),
        )
    )
    one, other = (DomainCapacity(tree, np.full(100, 2)) for _ in range(2))
    gang = Gang(7)
    plan_or_why(one, gang)
    plan_or_why(other, gang)
    everything = np.arange(100)
    one.set(everything, everything % 3)
    for k in range(100):
        other.set(np.array([k]), np.array([k % 3]))
    assert plan_or_why(one, Gang(90)).because == plan_or_why(other, Gang(90)).because


@settings(max_examples=100)
@given(world=worlds(), data=st.data())
def test_room_that_is_set_again_answers_as_new_room(world: World, data: st.DataObject):
    rooms, n = DomainCapacity(world.tree, world.room), len(world.room)
    for _ in range(2):
        room = np.array(data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
        rooms.set(np.arange(n), room)
        held, plan = rooms.counts(world.gang), plan_or_why(DomainCapacity(world.tree, room), world.gang)
        assert (held is None) == isinstance(plan, Blocked)
        if held is not None and isinstance(plan, GangPlan):
            assert held[0].tolist() == plan.nodes.tolist() and held[1].tolist() == plan.counts.tolist()


def test_a_job_without_wishes_prefers_whole_tensor_groups():
    spec = JobSpec(("x",), ranks=8, layout=Layout(4, 2))
    assert gang_of(spec).constraints == (Constraint("tp", "node", hard=False),)
    asked = JobSpec(("x",), ranks=8, layout=Layout(4, 2), topology=Topology(groups={"tp": "rack"}))
    assert gang_of(asked).constraints == (Constraint("tp", "rack"),)


def test_hard_wishes_come_first_and_soft_ones_in_their_order():
    topology = Topology("spine", "leaf", {"tp": "node"}, {"dp": "leaf", "pp": "spine"}, "infiniband", "roce")
    found = gang_of(JobSpec(("x",), ranks=8, layout=Layout(2, 2, 2), topology=topology)).constraints
    assert [(c.group, c.within, c.fabric, c.hard) for c in found] == [
        ("gang", "", "infiniband", True),
        ("gang", "spine", None, True),
        ("tp", "node", None, True),
        ("gang", "", "roce", False),
        ("gang", "leaf", None, False),
        ("dp", "leaf", None, False),
        ("pp", "spine", None, False),
    ]
