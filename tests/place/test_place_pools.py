"""Pools: what a gang may use together, whatever the fleet and the jobs are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.files.snapshot import load_snapshot, write_snapshot
from unidle.fleet import Device, Fleet, Node
from unidle.fleet.queues import QueueSpec
from unidle.jobs import Hardware, JobSpec, RankPlace, Reason, Select, Where
from unidle.jobs.speeds import Known, SpeedRun
from unidle.place.dispatch import judge
from unidle.place.nodes.hardware import DevicePool, FleetPools
from unidle.place.protocol import Plan
from unidle.place.scheduler import Placed, Scheduler
from unidle.place.summary import summary_of
from unidle.store.memory import MemoryStore
from unidle.view.fold import apply
from unidle.view.placement_input import freeze, thaw, view_of
from unidle.view.state import View

MODELS = (
    ("nvidia", "H100"),
    ("nvidia", "A100"),
    ("amd", "MI300X"),
    ("amd", "MI250"),
    ("ascend", "Ascend 910B"),
)


def gpus(node: str, *models: tuple[str, str]) -> Node:
    devices = tuple(
        Device(f"{node}/{k}", node, k, "gpu", model, vendor=vendor)  # type: ignore[arg-type]
        for k, (vendor, model) in enumerate(models)
    )
    return Node(node, "", devices)


def tell(view: View, event: ev.Event) -> None:
    apply(view, event, view.seq + 1, 1)


class Same(Scheduler):
    """Decides as one that is new, and as one that was given a snapshot of the view."""

    def decide(self, view: View, now_ns: int) -> Plan:
        kept = super().decide(view, now_ns)
        assert kept == Scheduler().decide(view, now_ns)
        return kept


hardware = st.builds(
    Hardware,
    st.sampled_from(["none", "speed", "cost"]),
    st.sampled_from(["any", "any", "nvidia", "amd", "ascend"]),
    st.sampled_from([False, False, True]),
)
names = st.sampled_from([(), (), (), ("H100",), ("A100", "MI300X"), ("MI300X",)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(MODELS), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 6), st.integers(1, 60), hardware, names, st.sampled_from("ab")),
        min_size=1, max_size=10,
    ),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_no_gang_mixes_vendors_nor_models_without_need(nodes, drawn, queued: bool, priced: bool):
    there = Fleet(
        nodes=tuple(gpus(f"n{k}", *models) for k, models in enumerate(nodes)),
        queues=(QueueSpec("a"), QueueSpec("b")) if queued else (),
        prices_per_device_hour={model: 1.0 + k for k, (_, model) in enumerate(MODELS)} if priced else {},
    )
    model_of = {d.id: (d.vendor, d.model) for d in there.devices()}
    arrivals, works = [], {}
    for k, (at_s, ranks, work_s, wish, include, queue) in enumerate(drawn):
        spec = JobSpec(
            ("x",), name="train", user="ann", ranks=ranks, device="gpu", queue=queue, hardware=wish,
            where=Where(models=Select(include=include)),
        )  # fmt: skip
        arrivals.append(Arrival(1 + at_s * S, f"j{k}", spec))
        works[f"j{k}"] = work_s

    def workload(command: StartGang) -> SimJob:
        slowest = max(MODELS.index(model_of[s]) + 1 for place in command.places for s in place.slices)
        return SimJob(works[command.job] * S, step_ns=slowest * S // 4)

    view = simulate(MemoryStore(), there, arrivals, workload, Same())
    most: dict[tuple[str, str], int] = {}
    for model in model_of.values():
        most[model] = most.get(model, 0) + 1
    held: dict[str, list[tuple[int, int]]] = {}
    for job in view.jobs.values():
        wish, include = job.spec.hardware, job.spec.where.models.include
        for attempt in job.attempts:
            used = {model_of[s] for place in attempt.places for s in place.slices}
            assert len({vendor for vendor, _ in used}) == 1
            assert wish.vendor == "any" or {v for v, _ in used} == {wish.vendor}
            assert not include or {m for _, m in used} <= set(include)
            if len(used) > 1 and not wish.mix:
                alone = [m for m in most if wish.vendor in ("any", m[0]) and (not include or m[1] in include)]
                assert all(most[m] < job.spec.ranks for m in alone)
            for place in attempt.places:
                for slice_id in place.slices:
                    held.setdefault(slice_id, []).append((attempt.placed_ns, attempt.ended_ns or 10**18))
        if not job.attempts:
            assert job.verdict is not None and job.verdict.code == "never_fits"
    for spans in held.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(MODELS), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 6), hardware, names, st.data(),
)  # fmt: skip
def test_other_clusters_are_told_of_models_what_the_scheduler_does(
    nodes, ranks, wish, include, data: st.DataObject
):
    there = Fleet(nodes=tuple(gpus(f"n{k}", *models) for k, models in enumerate(nodes)))
    view = view_of(there)
    for k, device in enumerate(there.devices()):
        if data.draw(st.booleans()):
            tell(view, ev.JobSubmitted(f"h{k}", JobSpec(("x",))))
            tell(
                view,
                ev.AttemptPlaced(f"h{k}", 1, (RankPlace(0, device.node, (device.id,)),), Reason("t", "")),
            )
    spec = JobSpec(
        ("x",), ranks=ranks, device="gpu", hardware=wish, where=Where(models=Select(include=include))
    )
    verdict, scheduler = judge("c", summary_of(view, 1), spec), Scheduler()
    assert (verdict.state == "now") == isinstance(scheduler.try_one(view, spec), Placed)
    assert (verdict.state == "never") == (not scheduler.ever(view, spec))


def test_one_model_is_one_pool_whatever_the_job_wishes():
    pools = FleetPools(Fleet(nodes=(gpus("n", MODELS[0], MODELS[0]),)))
    for wish in (Hardware(), Hardware("cost"), Hardware("speed", mix=True)):
        (option,) = pools.options(JobSpec(("x",), device="gpu", hardware=wish), View())
        assert option.pool == DevicePool("gpu")


def test_models_that_are_mixed_are_one_pool_whatever_is_known_of_their_speeds():
    pools = FleetPools(
        Fleet(nodes=(gpus("n", *MODELS[:2]),), prices_per_device_hour={"H100": 2.0, "A100": 1.0})
    )
    spec = JobSpec(("x",), name="t", user="u", ranks=2, device="gpu", hardware=Hardware("speed", mix=True))
    view = View()
    view.speeds["u"] = {
        "t": Known(
            [
                SpeedRun(m, 2, 50, ns, (ns, ns + k))
                for k in (1, 2)
                for m, ns in (("H100", S), ("A100", 3 * S))
            ],
            4,
        )
    }
    known, unknown = pools.options(spec, view), pools.options(spec)
    assert [option.name for option in known[:2]] == ["H100", "A100"]
    assert [option.name for option in unknown[:2]] == ["A100", "H100"]
    assert known[2].pool == unknown[2].pool == DevicePool("gpu", "nvidia", ("H100", "A100"))


def test_a_model_is_named_as_people_write_it():
    fleet = Fleet(
        nodes=(gpus("a", ("nvidia", "NVIDIA A100-SXM4-80GB")), gpus("h", ("nvidia", "NVIDIA H100 80GB HBM3")))
    )
    spec = JobSpec(("x",), device="gpu", where=Where(models=Select(include=("H100",))))
    (option,) = FleetPools(fleet).options(spec, View())
    assert option.pool.models == ("NVIDIA H100 80GB HBM3",)


def test_a_snapshot_knows_the_speeds_that_the_decision_went_by(tmp_path: Path):
    fleet = Fleet(nodes=(gpus("a", MODELS[1]), gpus("h", MODELS[0])))
    step_ns = {"a/0": S, "h/0": S // 4}
    arrivals = [
        Arrival(1, "a", JobSpec(("x",), name="t", where=Where(models=Select(include=("A100",))))),
        Arrival(2, "h", JobSpec(("x",), name="t", where=Where(models=Select(include=("H100",))))),
    ]
    view = simulate(
        MemoryStore(),
        fleet,
        arrivals,
        lambda c: SimJob(40 * S, step_ns=step_ns[c.places[0].slices[0]]),
        Same(),
    )
    file = tmp_path / "snapshot"
    with file.open("wb") as out:
        write_snapshot(freeze(view), out)
    again = thaw(load_snapshot(file))
    assert again.speeds == view.speeds
    spec = JobSpec(("x",), name="t", hardware=Hardware("speed"))
    first, copy = Scheduler().try_one(view, spec), Scheduler().try_one(again, spec)
    assert first.because == copy.because
    assert "4x faster than A100" in first.because.text


@pytest.mark.parametrize("vendor", ["amd", "ascend"])
def test_a_vendor_that_the_fleet_does_not_have_can_never_start(vendor: str):
    view = view_of(Fleet(nodes=(gpus("n", MODELS[0]),)))
    because = Scheduler().why_not(view, JobSpec(("x",), device="gpu", hardware=Hardware(vendor=vendor)))
    assert because is not None and because.code == "never_fits"
    assert "the fleet has 0 that it may use" in because.text
