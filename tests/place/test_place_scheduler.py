"""The scheduler on a network: wishes, order, host requests, and reasons that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Layout, Reason, Requests, Select, Share, Topology, Where
from unidle.place.protocol import Plan
from unidle.place.scheduler import Scheduler
from unidle.view.fold import apply
from unidle.view.state import View

NOW = 1_000


def node(name: str, leaf: str, gpus: int = 4, model: str = "H100", **more: object) -> Node:
    devices = tuple(Device(f"{name}/{i}", name, i, "gpu", model, uuid=f"{name}-{i}") for i in range(gpus))
    return Node(name, leaf, devices, **more)  # type: ignore[arg-type]


def two_leaves(nodes_per_leaf: int = 2, gpus: int = 4) -> Fleet:
    tiers = (Tier("s", "site"), Tier("a", "leaf", "s"), Tier("b", "leaf", "s"))
    nodes = tuple(node(f"{leaf}{k}", leaf, gpus) for leaf, k in product("ab", range(1, nodes_per_leaf + 1)))
    return Fleet(tiers, nodes)


class World:
    """A view that is told what happens; ``step`` decides and carries the decisions out."""

    def __init__(self, fleet: Fleet) -> None:
        self.view, self.policy = View(), Scheduler()
        self.tell(ev.FleetSeen(fleet))

    def tell(self, event: ev.Event) -> None:
        apply(self.view, event, self.view.seq + 1, NOW)

    def submit(self, *specs: JobSpec) -> World:
        for spec in specs:
            self.tell(ev.JobSubmitted(f"j{len(self.view.jobs)}", spec))
        return self

    def step(self) -> Plan:
        plan = self.policy.decide(self.view, NOW)
        for place in plan.places:
            self.tell(ev.AttemptPlaced(place.job, 1, place.places, place.because))
        for wait in plan.waits:
            self.tell(ev.JobJudged(wait.job, wait.because))
        return plan

    def end(self, job: str) -> None:
        self.tell(ev.AttemptEnded(job, 1, "succeeded", Reason("done", "")))
        self.tell(ev.JobEnded(job, "succeeded", Reason("done", "")))

    def nodes(self, job: str) -> list[str]:
        return [place.node for place in self.view.jobs[job].attempts[-1].places]


def job(ranks: int, each: int = 1, **more: object) -> JobSpec:
    return JobSpec(("x",), ranks=ranks, devices_per_rank=each, device="gpu", **more)  # type: ignore[arg-type]


def test_a_gang_goes_into_the_fullest_node_then_the_fullest_leaf_that_holds_it():
    world = World(two_leaves())
    world.submit(job(3), job(1), job(6)).step()
    assert world.nodes("j0") == ["a1"] * 3
    assert world.nodes("j1") == ["a1"]  # the one place that is left on the fullest node
    assert set(world.nodes("j2")) == {"b1", "b2"}  # leaf a has 4 left, leaf b holds all six


def test_a_gang_that_must_stay_in_a_leaf_waits_while_its_devices_are_scattered():
    world = World(two_leaves())
    world.submit(job(6), job(6), job(4, topology=Topology(require="leaf")))
    waits = {wait.job: wait.because for wait in world.step().waits}
    assert "j2" in waits
    reason = waits["j2"]
    assert "the gang within one leaf" in reason.text
    assert (reason.figures["needs"], reason.figures["free"], reason.figures["largest"]) == (4, 4, 2)
    world.end("j0")
    world.step()
    assert len({name[0] for name in world.nodes("j2")}) == 1


def test_a_gang_that_only_prefers_a_leaf_starts_all_the_same_and_says_so():
    world = World(two_leaves())
    world.submit(job(6), job(6), job(4, topology=Topology(prefer="leaf")))
    places = {place.job: place for place in world.step().places}
    assert "not kept" in places["j2"].because.text


def test_tensor_groups_stay_in_a_node_and_the_order_of_ranks_shows_it():
    world = World(two_leaves(gpus=3))
    world.submit(job(8, layout=Layout(tp=2, dp=4), topology=Topology(groups={"tp": "node"}))).step()
    nodes = world.nodes("j0")
    assert all(nodes[r] == nodes[r + 1] for r in range(0, 8, 2))


def test_labels_taints_models_and_single_devices_choose_the_node():
    tiers = (Tier("s", "site"),)
    nodes = (
        node("n1", "s", taints=("maintenance",)),
        node("n2", "s", model="A100", labels={"zone": "a"}),
        node("n3", "s", labels={"zone": "b"}),
    )
    world = World(Fleet(tiers, nodes))
    world.submit(
        job(1, where=Where(labels={"zone": "b"})),
        job(1, where=Where(models=Select(include=("A100",)))),
        job(1, where=Where(tolerate=("maintenance",), models=Select(exclude=("A100",)), labels={})),
        job(1, where=Where(uuids=Select(include=("n3-2",)))),
        job(2, where=Where(uuids=Select(include=("n3-2", "n3-3")), models=Select(exclude=("H100",)))),
    )
    waits = {wait.job: wait.because for wait in world.step().waits}
    assert [world.nodes(f"j{k}") for k in range(4)] == [["n3"], ["n2"], ["n3"], ["n3"]]
    assert world.view.jobs["j3"].attempts[0].places[0].slices == ("n3/2",)
    assert waits["j4"].code == "never_fits"


def test_models_are_meant_as_people_write_them_and_uuids_may_be_cut_short():
    tiers = (Tier("s", "site"),)
    nodes = (node("n1", "s", model="NVIDIA A100-SXM4-80GB"), node("n2", "s", model="NVIDIA H100 80GB HBM3"))
    gpu = Device("n3/0", "n3", 0, "gpu", "T4", uuid="GPU-6b1e22f0-aa")
    world = World(Fleet(tiers, (*nodes, Node("n3", "s", (gpu,)))))
    world.submit(
        job(1, where=Where(models=Select(include=("H100",)))),
        job(4, where=Where(models=Select(exclude=("h100", "T4")))),
        job(1, where=Where(uuids=Select(include=("GPU-6b1e",)))),
    ).step()
    assert [set(world.nodes(f"j{k}")) for k in range(3)] == [{"n2"}, {"n1"}, {"n3"}]


def test_requests_of_cpu_and_memory_bound_the_ranks_on_a_node_and_come_back_at_the_end():
    tiers = (Tier("s", "site"),)
    nodes = tuple(node(f"n{k}", "s", cpus=16, memory_bytes=64 << 30) for k in (1, 2))
    world = World(Fleet(tiers, nodes))
    asks = Requests(cpus=8, memory_bytes=16 << 30)
    world.submit(job(4, requests=asks), job(1, requests=asks), job(1)).step()
    assert sorted(world.nodes("j0")) == ["n1", "n1", "n2", "n2"]
    assert world.view.jobs["j1"].state == "queued"
    assert world.view.jobs["j2"].state == "starting"  # it asks for nothing but its device
    world.end("j0")
    world.step()
    assert world.view.jobs["j1"].state == "starting"


def test_parts_go_to_those_who_ask_for_parts_and_the_smallest_that_does_is_taken():
    cuts = ((500_000, 250_000, 250_000), (1_000_000,))
    devices = tuple(
        Device(f"n/{i}", "n", i, "gpu", memory_bytes=80 << 30, slices_ppm=cut) for i, cut in enumerate(cuts)
    )
    world = World(Fleet((Tier("s", "site"),), (Node("n", "s", devices),)))
    world.submit(
        job(1),
        job(1, share=Share(200_000)),
        job(1, share=Share(0, 30 << 30)),
        job(1, share=Share(300_000)),
        job(1),
        job(1, share=Share(600_000)),
    )
    waits = {wait.job: wait.because.code for wait in world.step().waits}
    held = {name: world.view.jobs[name].attempts[0].places[0].slices for name in ("j0", "j1", "j2")}
    assert held == {"j0": ("n/1",), "j1": ("n/0#1",), "j2": ("n/0#0",)}
    assert waits == {"j3": "no_fit", "j4": "no_fit", "j5": "never_fits"}


def test_a_gang_that_no_state_of_the_fleet_holds_says_that_it_can_never_start():
    world = World(two_leaves())
    world.submit(job(17), job(9, topology=Topology(require="leaf")), job(1, topology=Topology(require="row")))
    waits = {wait.job: wait.because for wait in world.step().waits}
    assert {reason.code for reason in waits.values()} == {"never_fits"}
    assert "needs 17 GPUs, and the fleet has 16" in waits["j0"].text
    assert not world.policy.ever(world.view, job(17))
    assert world.policy.ever(world.view, job(16))
    assert "no tier of that kind" in waits["j2"].text


def test_a_decision_leaves_the_policy_as_it_found_it():
    world = World(two_leaves())
    world.submit(job(7), job(4), job(6))
    first = world.policy.decide(world.view, NOW)
    assert world.policy.decide(world.view, NOW) == first == Scheduler().decide(world.view, NOW)


wishes = st.sampled_from(
    [
        {},
        {"topology": Topology(require="leaf")},
        {"topology": Topology(prefer="node")},
        {"where": Where(labels={"zone": "x"})},
        {"requests": Requests(cpus=3)},
        {"each": 2},
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 6), wishes, st.booleans()), max_size=14),
)
def test_no_gang_is_half_placed_no_slice_given_twice_and_memory_of_rounds_changes_nothing(
    sizes: Sequence[int], moves: Sequence[tuple[int, dict[str, object], bool]]
) -> None:
    tiers = (Tier("s", "site"), Tier("a", "leaf", "s"), Tier("b", "leaf", "s"))
    nodes = tuple(
        node(f"n{k}", "ab"[k % 2], gpus, cpus=8, labels={"zone": "x" if k % 3 else "y"})
        for k, gpus in enumerate(sizes)
    )
    world = World(Fleet(tiers, nodes))
    for ranks, more, also_end in moves:
        world.submit(job(ranks, **more))
        assert world.policy.decide(world.view, NOW) == Scheduler().decide(world.view, NOW)
        world.step()
        held = [s for j in world.view.live for p in world.view.jobs[j].attempts[-1].places for s in p.slices]
        assert len(held) == len(set(held))
        for name in world.view.live:
            live = world.view.jobs[name]
            assert len(live.attempts[-1].places) == live.spec.ranks
            if live.spec.topology == Topology(require="leaf"):
                leaves = {n.parent for n in nodes if n.id in world.nodes(name)}
                assert len(leaves) == 1
        for name in [n.id for n in nodes]:
            asked = sum(
                world.view.jobs[j].spec.requests.cpus * world.nodes(j).count(name) for j in world.view.live
            )
            assert asked <= 8
        if also_end and world.view.live:
            world.end(min(world.view.live))
            world.step()
