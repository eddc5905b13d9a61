"""Where gangs go on after failures, in the real loop on the simulated engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from place.test_place_quotas import Twice
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Layout, Reason, Restart, Topology
from unidle.place.gang.restart import WORSE_MOST_PPM
from unidle.place.network.rank_order import map_ranks, ordered
from unidle.place.network.traffic import closest, usual_traffic
from unidle.place.network.tree import tree_of
from unidle.place.nodes.free import FreeSlices
from unidle.place.policy import FirstFit
from unidle.place.scheduler import Scheduler
from unidle.store.memory import MemoryStore
from unidle.view.fold import apply
from unidle.view.placement_input import freeze, thaw, view_of
from unidle.view.state import View


def leaves(*sizes: int, gpus: int = 4) -> Fleet:
    """Leaves ``a``, ``b``, ... with so many nodes ``a0``, ``a1``, ... each, below one spine."""
    names = "abcdefgh"[: len(sizes)]
    tiers = (Tier("s", "spine"), *(Tier(name, "leaf", "s") for name in names))
    nodes = tuple(
        Node(f"{leaf}{k}", leaf, tuple(Device(f"{leaf}{k}/{i}", f"{leaf}{k}", i, "gpu") for i in range(gpus)))
        for leaf, size in zip(names, sizes, strict=True)
        for k in range(size)
    )
    return Fleet(tiers, nodes)


def gang(
    name: str, ranks: int, at_s: float = 0, work_s: float = 1000, fails=None, **more
) -> tuple[Arrival, SimJob]:
    spec = JobSpec(("x",), name=name, ranks=ranks, device="gpu", restart=Restart(5, 1.0), **more)
    return Arrival(1 + int(at_s * S), name, spec), SimJob(
        int(work_s * S), step_ns=S, checkpoint_every=10, fails=fails
    )


def run(there: Fleet, *jobs: tuple[Arrival, SimJob], faults=()) -> View:
    behaviour = {arrival.job: sim for arrival, sim in jobs}
    down = [(1 + int(at_s * S), node, 1 + int(up_s * S)) for at_s, node, up_s in faults]
    return simulate(
        MemoryStore(), there, [arrival for arrival, _ in jobs], lambda command: behaviour[command.job], Twice(),
        faults=down,
    )  # fmt: skip


def nodes(view: View, job: str, attempt: int = -1) -> list[str]:
    return [place.node for place in view.jobs[job].attempts[attempt].places]


def test_survivors_stay_and_the_lost_ranks_go_to_the_spare_of_their_leaf():
    view = run(leaves(3, 5), gang("g", 8), faults=[(50, "a1", 10_000)])
    assert nodes(view, "g", 0) == ["a0"] * 4 + ["a1"] * 4
    assert nodes(view, "g", 1) == ["a0"] * 4 + ["a2"] * 4
    again = view.jobs["g"].attempts[1].because
    assert again.code == "repair"
    assert (again.figures["stay"], again.figures["moved"], again.figures["within"]) == (4, 4, "leaf")
    assert "4 of 8 ranks stay, 4 move within leaf a (a1 down)" in again.text


def test_a_gang_that_failed_by_itself_stays_where_it_was_though_a_tighter_place_came_free():
    view = run(
        leaves(2, 2),
        gang("short", 4, work_s=20),
        gang("g", 4, fails={1: (2, 60 * S, 1)}),
    )
    assert nodes(view, "short", 0) == ["a0"] * 4
    assert nodes(view, "g", 0) == nodes(view, "g", 1) == ["a1"] * 4
    attempts = view.jobs["g"].attempts
    assert attempts[0].places == attempts[1].places
    assert "all 4 ranks stay where they were" in attempts[1].because.text


def test_several_gangs_and_nodes_at_once_each_take_the_spares_of_their_own_leaf():
    view = run(
        leaves(4, 4, 2),
        gang("first", 12, topology=Topology(prefer="leaf")),
        gang("second", 12, topology=Topology(prefer="leaf")),
        faults=[(50, "a0", 9_000), (50, "b1", 9_000), (50, "b2", 9_000)],
    )
    assert nodes(view, "first", 1) == ["a3"] * 4 + ["a1"] * 4 + ["a2"] * 4
    second = view.jobs["second"].attempts[1]
    assert nodes(view, "second", 1) == ["b0"] * 4 + ["b3"] * 4 + ["c0"] * 4
    assert (second.because.figures["stay"], second.because.figures["moved"]) == (4, 8)
    assert second.because.figures["within"] == "spine"


def test_the_high_gang_is_given_the_spares_of_a_leaf_before_the_low_one():
    low, high = gang("low", 8, preemption="low"), gang("high", 8, preemption="high")
    view = run(leaves(5, 1), low, high, faults=[(50, "a0", 9_000), (50, "a2", 9_000)])
    assert nodes(view, "high", 1) == ["a4"] * 4 + ["a3"] * 4
    assert nodes(view, "low", 1) == ["b0"] * 4 + ["a1"] * 4


def test_a_gang_that_must_stay_in_a_leaf_moves_whole_only_when_its_leaf_has_no_spare():
    wish = {"topology": Topology(require="leaf")}
    view = run(leaves(2, 3), gang("g", 8, **wish), faults=[(50, "a0", 9_000)])
    assert set(nodes(view, "g", 0)) == {"a0", "a1"}
    assert set(nodes(view, "g", 1)) == {"b0", "b1"}
    assert "none of the ranks could stay" in view.jobs["g"].attempts[1].because.text


def test_tensor_groups_that_survived_whole_stay_and_torn_ones_move_whole():
    """Data groups must stay within a leaf: the plane that lost a node leaves, the other stays."""
    wish = {"layout": Layout(tp=4, dp=2, pp=2), "topology": Topology(groups={"tp": "node", "dp": "leaf"})}
    view = run(leaves(2, 2, 2), gang("g", 16, **wish), faults=[(50, "a1", 9_000)])
    first, second = nodes(view, "g", 0), nodes(view, "g", 1)
    assert set(first) == {"a0", "a1", "b0", "b1"}
    stay = [r for r in range(16) if first[r] == second[r]]
    assert {first[r] for r in stay} == {"b0", "b1"}
    assert set(second) == {"b0", "b1", "c0", "c1"}
    assert all(len(set(second[r : r + 4])) == 1 for r in range(0, 16, 4))


def test_a_new_node_stands_in_for_the_lost_one_so_that_the_order_of_ranks_costs_the_same():
    view = run(leaves(8), gang("g", 16, layout=Layout(tp=4, dp=4)), faults=[(50, "a1", 9_000)])
    first, second = nodes(view, "g", 0), nodes(view, "g", 1)
    swapped = ["a4" if name == "a1" else name for name in first]
    assert second == swapped


def test_ranks_keep_their_devices_and_what_comes_beside_them_takes_the_others():
    view = run(
        leaves(1, gpus=8),
        gang("early", 2, work_s=20),
        gang("g", 3, fails={1: (0, 50 * S, 1)}),
        gang("late", 2, at_s=30),
    )
    attempts = view.jobs["g"].attempts
    assert attempts[0].places == attempts[1].places
    assert [p.slices for p in attempts[1].places] == [("a0/2",), ("a0/3",), ("a0/4",)]


def test_a_new_order_is_taken_where_the_old_one_would_cost_too_much_and_groups_that_can_stay_do():
    """Two tensor groups of two nodes lose one node each: with the spares in another leaf they are paired anew."""
    lost = [(50, "a1", 9_000), (50, "a3", 9_000)]
    view = run(leaves(4, 4, 2, gpus=2), gang("g", 16, layout=Layout(tp=4, dp=4)), faults=lost)
    first, second = nodes(view, "g", 0), nodes(view, "g", 1)
    assert all(len({name[0] for name in second[r : r + 4]}) == 1 for r in range(0, 16, 4))
    stay = [r for r in range(16) if first[r] == second[r]]
    assert {first[r] for r in stay} >= {"b0", "b1", "b2", "b3"} and len(stay) >= 10
    assert "in a new order: in the old one, collectives would take" in view.jobs["g"].attempts[1].because.text
    assert view.jobs["g"].attempts[1].because.figures["stay"] == len(stay)


def test_the_plain_policy_of_one_node_gives_a_gang_its_devices_back_too():
    there = leaves(1, gpus=8)
    jobs = [gang("early", 2, work_s=20), gang("g", 3, fails={1: (0, 50 * S, 1)}), gang("late", 2, at_s=30)]
    behaviour = {arrival.job: sim for arrival, sim in jobs}
    view = simulate(
        MemoryStore(),
        there,
        [arrival for arrival, _ in jobs],
        lambda command: behaviour[command.job],
        FirstFit(),
    )
    attempts = view.jobs["g"].attempts
    assert attempts[0].places == attempts[1].places
    assert [p.slices for p in attempts[1].places] == [("a0/2",), ("a0/3",), ("a0/4",)]


@given(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)), st.data())
def test_groups_numbered_anew_are_the_same_groups_and_no_fewer_ranks_stay(shape, data):
    stages, size, tensor = shape
    cells = stages * size * tensor
    new = np.array(data.draw(st.lists(st.integers(0, 3), min_size=cells, max_size=cells))).reshape(shape)
    old = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=cells, max_size=cells))).reshape(shape)
    found = closest(new, old)
    assert (found == old).sum() >= (new == old).sum()
    for axis in range(3):  # groups of each kind, by the nodes they are on
        assert sorted(
            map(tuple, np.sort(np.moveaxis(new, axis, -1).reshape(-1, shape[axis]), axis=1))
        ) == sorted(map(tuple, np.sort(np.moveaxis(found, axis, -1).reshape(-1, shape[axis]), axis=1)))


# -- by chance -----------------------------------------------------------------------------------------


class Broken:
    """Gangs that run, then nodes and devices that fail under them, and the round that follows."""

    def __init__(self, there: Fleet, specs: Sequence[JobSpec]) -> None:
        self.view, self.policy = View(), Scheduler()
        self.tell(ev.FleetSeen(there))
        for k, spec in enumerate(specs):
            self.tell(ev.JobSubmitted(f"j{k}", spec))
        self.places(1)

    def tell(self, event: ev.Event) -> None:
        apply(self.view, event, self.view.seq + 1, 1_000)

    def places(self, attempt: int) -> None:
        plan = self.policy.decide(self.view, 1_000)
        assert plan == Scheduler().decide(self.view, 1_000)
        for place in plan.places:
            self.tell(ev.AttemptPlaced(place.job, attempt, place.places, place.because))

    def fail(self, targets: Sequence[str], also: Sequence[str]) -> set[str]:
        """These nodes and devices fail; gangs on them end, and those in ``also`` by themselves. Who ended."""
        because = Reason("x", "")
        for target in targets:
            self.tell(ev.HealthSet(target, "fault", because))
        bad = self.view.unfit()
        ended = set()
        for name in sorted(self.view.live):
            held = {s for p in self.view.jobs[name].attempts[-1].places for s in p.slices}
            if held & bad or name in also:
                self.tell(ev.AttemptEnded(name, 1, "failed", because))
                self.tell(ev.RetryPlanned(name, 0, because))
                ended.add(name)
        return ended


wishes = st.sampled_from(
    [
        {},
        {},
        {"topology": Topology(prefer="leaf")},
        {"topology": Topology(require="leaf")},
        {"devices_per_rank": 2},
    ]
)
levels = st.sampled_from(["medium", "medium", "low", "high"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 9), wishes, levels), min_size=1, max_size=4),
    st.data(),
)
def test_survivors_stay_wherever_the_wish_allows_it_and_no_gang_is_halved(sizes, gangs, data):
    there = leaves(*sizes)
    specs = [
        JobSpec(("x",), ranks=ranks, device="gpu", restart=Restart(3), preemption=level, **wish)
        for ranks, wish, level in gangs
    ]
    shaped = any(
        "devices_per_rank" in wish or Topology(require="leaf") in wish.values() for _, wish, _ in gangs
    )
    world = Broken(there, specs)
    ran = set(world.view.live)
    names = [n.id for n in there.nodes] + [d.id for d in there.devices()]
    targets = data.draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    ended = world.fail(targets, data.draw(st.lists(st.sampled_from(["j0", "j1", "j2"]), max_size=2)))
    free = {s.id for s in there.slices()} - world.view.unfit()
    free -= {s for j in world.view.live for p in world.view.jobs[j].attempts[-1].places for s in p.slices}
    elsewhere = Scheduler().decide(thaw(freeze(world.view)), 1_000).places
    assert {p.job: p.places for p in elsewhere} == {
        p.job: p.places for p in Scheduler().decide(world.view, 1_000).places
    }
    world.places(2)
    held = [s for j in world.view.live for p in world.view.jobs[j].attempts[-1].places for s in p.slices]
    assert len(held) == len(set(held)) and not set(held) & world.view.unfit()
    newcomers = set(world.view.live) - ran  # they may come first, and take what a gang had
    for name in sorted(ended & world.view.live):
        job = world.view.jobs[name]
        before, after = (attempt.places for attempt in job.attempts)
        assert len(after) == job.spec.ranks
        leaf = {place.node[0] for place in after}
        hard = job.spec.topology is not None and job.spec.topology.require is not None
        assert not hard or len(leaf) == 1
        stays = [old.node == new.node for old, new in zip(before, after, strict=True)]
        survived = [free.issuperset(old.slices) for old in before]
        assert job.attempts[1].because.figures.get("stay", 0) == sum(stays) or not sum(stays)
        # Where all that came back have room, and none needs a shape, nobody has to take what another had.
        alone = len(ended) == 1 or (ended <= world.view.live and not shaped)
        if newcomers or not alone or (hard and leaf != {place.node[0] for place in before}):
            continue
        for old, new, ok in zip(before, after, survived, strict=True):
            assert not ok or old == new, (name, before, after)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(2, 2, 2), (4, 2, 2), (2, 4, 1), (1, 4, 2)]), st.data())
def test_an_order_that_stays_costs_at_most_the_stated_factor_of_a_new_one(sizes, data):
    layout = Layout(*sizes)
    ranks = layout.tp * layout.dp * layout.pp
    there = leaves(4, 4)
    world = Broken(there, [JobSpec(("x",), ranks=ranks, device="gpu", restart=Restart(3), layout=layout)])
    used = sorted({place.node for place in world.view.jobs["j0"].attempts[0].places})
    targets = data.draw(st.lists(st.sampled_from([*used, *(f"{n}/0" for n in used)]), min_size=1, max_size=3))
    world.fail(targets, [])
    world.places(2)
    again = world.view.jobs["j0"].attempts[1]
    tree = tree_of(there)
    at = np.array([tree.nodes.index(place.node) for place in again.places])
    nodes_, index = np.unique(at, return_inverse=True)
    traffic = usual_traffic(layout)
    kept = ordered(tree, nodes_, index, layout, traffic, "ethernet")
    new = map_ranks(tree, nodes_, np.bincount(index), layout, traffic, "ethernet")
    assert kept is not None
    assert kept.time_ns * 1_000_000 <= new.time_ns * WORSE_MOST_PPM


def test_a_spare_with_work_that_may_not_be_stopped_is_replaced_until_that_is_undone() -> None:
    nodes = [{"id": "n[1-3]", "devices": {"count": 1, "kind": "gpu"}}]
    view = view_of(fleet_from_mapping({"nodes": nodes, "guard": {"spares": 1}}, "test"))
    free = FreeSlices(view)
    assert free.reserve is not None
    (spare,) = free.reserve.spares
    mark = free.log.checkpoint()
    free.keep_firm([spare])
    assert len(free.reserve.spares) == 1 and spare not in free.reserve.spares
    free.log.rollback(mark)
    assert free.reserve.spares == {spare}
