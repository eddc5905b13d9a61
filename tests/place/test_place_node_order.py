"""Best fit and spread as small tables, and what holds for every simple gang policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from place.test_place_first_fit import NOW, fleet, gang, tell, view_of
from unidle.control import policies as registry
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Requests, Select, Where
from unidle.place.policy import FirstFit
from unidle.place.protocol import Plan, Policy
from unidle.share.select import may_use
from unidle.view.state import View

POLICIES = ("firstfit", "bestfit", "spread")


def nodes_of(policy: str, view: View) -> dict[str, list[str]]:
    plan = registry.policy_named(policy).decide(view, NOW)
    return {place.job: [rank.node for rank in place.places] for place in plan.places}


def busy(view: View, *slices: str) -> View:
    """Take slices away, one job of one rank for each."""
    for k, piece in enumerate(slices):
        tell(view, ev.JobSubmitted(f"b{k}", gang(1)))
        plan = FirstFit().decide(view, NOW)
        place = next(p for p in plan.places if p.job == f"b{k}")
        where = type(place.places[0])(0, piece.split("/")[0], (piece,))
        tell(view, ev.AttemptPlaced(f"b{k}", 1, (where,), place.because))
    return view


@pytest.mark.parametrize(("policy", "expected"), [("firstfit", "n0"), ("bestfit", "n1"), ("spread", "n2")])
def test_one_gang_goes_on_the_first_the_tightest_or_the_emptiest_node(policy: str, expected: str) -> None:
    view = busy(view_of(fleet((4, "gpu"), (4, "gpu"), (4, "gpu"))), "n0/0", "n1/0", "n1/1")
    tell(view, ev.JobSubmitted("j", gang(2)))
    assert nodes_of(policy, view)["j"] == [expected, expected]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("firstfit", ["n0", "n1", "n1", "n1", "n1"]),
        ("bestfit", ["n1", "n1", "n1", "n1", "n0"]),
        ("spread", ["n1", "n1", "n1", "n1", "n2"]),
    ],
)
def test_a_gang_that_no_node_holds_goes_on_few_nodes(policy: str, expected: list[str]) -> None:
    view = view_of(fleet((1, "gpu"), (4, "gpu"), (3, "gpu")), gang(5))
    assert nodes_of(policy, view)["j0"] == expected


def test_a_gang_is_kept_on_one_node_even_if_another_has_more_free_devices_but_fewer_cores() -> None:
    nodes = [
        {"id": "n0", "cpus": 2, "devices": {"count": 8, "kind": "gpu"}},
        {"id": "n1", "cpus": 64, "devices": {"count": 4, "kind": "gpu"}},
    ]
    spec = JobSpec(("x",), ranks=4, device="gpu", requests=Requests(cpus=1))
    view = view_of(fleet_from_mapping({"nodes": nodes}, "test"), spec)
    assert nodes_of("spread", view)["j0"] == ["n1"] * 4


def test_several_gangs_of_one_decision_do_not_take_the_same_devices() -> None:
    view = view_of(fleet((4, "gpu"), (4, "gpu")), gang(2), gang(4), gang(2), gang(1))
    assert nodes_of("bestfit", view) == {"j0": ["n0"] * 2, "j1": ["n1"] * 4, "j2": ["n0"] * 2}
    assert nodes_of("spread", view) == {"j0": ["n0"] * 2, "j1": ["n1"] * 4, "j2": ["n0"] * 2}


def mixed() -> Fleet:
    models = [("A100", "A100"), ("T4", "A100"), ("T4", "T4")]
    return Fleet(
        nodes=tuple(
            Node(f"n{k}", "", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu", m) for i, m in enumerate(of)))
            for k, of in enumerate(models)
        )
    )


def of_models(
    ranks: int, include: tuple[str, ...] = (), exclude: tuple[str, ...] = (), each: int = 1
) -> JobSpec:
    where = Where(models=Select(include, exclude))
    return JobSpec(("x",), ranks=ranks, devices_per_rank=each, device="gpu", where=where)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_runs_on_the_models_that_it_allows(policy: str) -> None:
    view = view_of(mixed(), of_models(3, ("T4",)), of_models(2, (), ("T4",)))
    plan = registry.policy_named(policy).decide(view, NOW)
    given = {p.job: {s for r in p.places for s in r.slices} for p in plan.places}
    assert given["j0"] == {"n1/0", "n2/0", "n2/1"}
    assert given["j1"] <= {"n0/0", "n0/1", "n1/1"}
    assert len(given["j1"]) == 2


def test_the_reason_counts_only_the_models_that_the_gang_allows() -> None:
    view = view_of(mixed(), of_models(4, ("T4",)), of_models(2, ("T4",), each=2), of_models(3, ("A100",)))
    policy = registry.policy_named("spread")
    specs = [view.jobs[f"j{k}"].spec for k in range(3)]
    assert [policy.ever(view, spec) for spec in specs] == [False, False, True]
    reasons = [policy.why_not(view, spec) for spec in specs]
    assert reasons[0] is not None and reasons[1] is not None and reasons[2] is None
    assert (
        "needs 4 GPUs, and the fleet has 3 that it may use on T4 (of 6 GPUs, models leaves 3): it can never start"
        in reasons[0].text
    )
    assert reasons[0].figures["devices"] == 3
    assert reasons[1].code == "never_fits"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rank_runs_where_its_cpus_and_memory_are(policy: str) -> None:
    nodes = tuple(
        Node(
            f"n{k}",
            "",
            tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu") for i in range(4)),
            cpus=8,
            memory_bytes=memory,
        )
        for k, memory in enumerate((16, 64))
    )
    asks = JobSpec(("x",), ranks=1, device="gpu", requests=Requests(cpus=4, memory_bytes=32))
    view = view_of(Fleet(nodes=nodes), asks, asks, asks)
    assert nodes_of(policy, view) == {"j0": ["n1"], "j1": ["n1"]}
    whole = JobSpec(("x",), ranks=2, device="gpu", requests=Requests(memory_bytes=64))
    assert not registry.policy_named(policy).ever(view, whole)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_changed_since_the_last_decision_is_seen(policy: str) -> None:
    named = registry.policy_named(policy)
    view = view_of(fleet((2, "gpu"), (2, "gpu")), gang(4))
    place = named.decide(view, NOW).places[0]
    tell(view, ev.AttemptPlaced("j0", 1, place.places, place.because))
    tell(view, ev.JobSubmitted("j1", gang(3)))
    assert [wait.because.code for wait in named.decide(view, NOW).waits] == ["no_fit"]
    tell(view, ev.AttemptEnded("j0", 1, "succeeded", place.because))
    assert [p.job for p in named.decide(view, NOW).places] == ["j1"]
    assert named.why_not(view, gang(4)) is None


def test_policies_are_known_by_name_and_a_slip_is_bad_input() -> None:
    assert set(POLICIES) <= set(registry.policy_names())
    with pytest.raises(BadInput, match="did you mean bestfit"):
        registry.policy_named("bestfti")
    with pytest.raises(BadInput, match="known are unidle, firstfit, bestfit, spread"):
        registry.policy_named("?")
    with pytest.raises(ValueError, match="already"):
        registry.register("firstfit", FirstFit)


@st.composite
def views(draw: st.DrawFn) -> View:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    models = st.sampled_from(["A", "B"])
    nodes = tuple(
        Node(f"n{k}", "", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu", draw(models)) for i in range(size)))
        for k, size in enumerate(sizes)
    )
    wanted = st.sampled_from([(), ("A",), ("B",), ("A", "B")])
    jobs = [
        of_models(draw(st.integers(1, 5)), draw(wanted), each=draw(st.sampled_from([1, 1, 2])))
        for _ in range(draw(st.integers(1, 6)))
    ]
    return view_of(Fleet(nodes=nodes), *jobs)


@given(views(), st.sampled_from(POLICIES))
def test_a_simple_policy_places_gangs_whole_on_free_devices_that_they_allow(view: View, name: str) -> None:
    policy: Policy = registry.policy_named(name)
    plan: Plan = policy.decide(view, NOW)
    devices = {d.id: d for d in view.fleet.devices()}
    taken: set[str] = set()
    for place in plan.places:
        spec = view.jobs[place.job].spec
        slices = [s for rank in place.places for s in rank.slices]
        assert len(slices) == len(set(slices)) == spec.devices
        assert taken.isdisjoint(slices)
        taken |= set(slices)
        for rank in place.places:
            assert len(rank.slices) == spec.devices_per_rank
            assert {devices[s].node for s in rank.slices} == {rank.node}
            assert all(may_use(devices[s], spec.where) is None for s in rank.slices)
    assert {p.job for p in plan.places} | {w.job for w in plan.waits} == set(view.jobs)
    assert policy.decide(view, NOW) == plan


@given(views(), st.sampled_from(POLICIES))
def test_on_an_empty_fleet_the_first_gang_that_ever_fits_is_placed(view: View, name: str) -> None:
    policy = registry.policy_named(name)
    fitting = [job.id for job in view.jobs.values() if policy.ever(view, job.spec)]
    plan = policy.decide(view, NOW)
    if fitting:
        assert plan.places[0].job == fitting[0]
    else:
        assert not plan.places


@st.composite
def plain_views(draw: st.DrawFn) -> View:
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["gpu", "cpu"])), min_size=1, max_size=5)
    )
    jobs = [
        gang(draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.sampled_from(["any", "gpu", "cpu"])))
        for _ in range(draw(st.integers(1, 6)))
    ]
    return view_of(fleet(*sizes), *jobs)


@given(plain_views())
def test_first_fit_is_the_one_that_starts_without_numpy_where_jobs_ask_for_devices_only(view: View) -> None:
    plan, plain = registry.policy_named("firstfit").decide(view, NOW), FirstFit().decide(view, NOW)
    assert plan.places == plain.places
    assert [(w.job, w.because.code) for w in plan.waits] == [(w.job, w.because.code) for w in plain.waits]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_that_is_cut_on_demand_is_room_for_a_simple_policy_too(policy: str) -> None:
    gpu = {"count": 1, "kind": "gpu", "memory": "80GiB", "share": {"modes": ["mps"]}}
    view = view_of(fleet_from_mapping({"nodes": [{"id": "n", "devices": gpu}]}, "test"))
    one, two = (
        job_from_mapping({"command": ["x"], "ranks": ranks, "share": {"fraction": 0.6}}, "test", ".")
        for ranks in (1, 2)
    )
    chosen = registry.policy_named(policy)
    assert chosen.ever(view, one)
    assert chosen.why_not(view, one) is None
    assert not chosen.ever(view, two)
    assert chosen.why_not(view, two) is not None
