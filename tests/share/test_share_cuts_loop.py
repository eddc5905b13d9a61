"""Devices cut on demand through the whole loop: tests/scenarios/cuts, and what holds after every event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from share.cutting import World, check_ledger, run, told, used_by
from sim.worlds import S
from unidle.errors import BadInput
from unidle.events.types import AttemptPlaced, JobSubmitted, StopAsked, decode
from unidle.files.snapshot import load_snapshot, write_snapshot
from unidle.fleet import WHOLE_PPM
from unidle.place.nodes.free import FreeSlices
from unidle.place.policy import Unidle
from unidle.place.scheduler import Placed, Scheduler
from unidle.place.slices.devices import SliceMemo
from unidle.place.slices.fit import SliceFit
from unidle.place.slices.offers import SliceOffers
from unidle.view.fold import apply
from unidle.view.placement_input import freeze, thaw, view_of
from unidle.view.state import View

FILE = Path(__file__).parent.parent / "scenarios/cuts/loop.yaml"
SCENARIOS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"].replace(" ", "-") for s in SCENARIOS])
def test_scenario(scenario: dict[str, Any]) -> None:
    world = World.of(scenario)
    for look in scenario["looks"]:
        store, view = run(world, look["at"])
        check_ledger(store)
        for job, expected in look.get("runs", {}).items():
            wanted = expected if isinstance(expected[0], list) else [expected]
            assert told(view, job).runs == [tuple(w) for w in wanted], (job, told(view, job))
        for job, expected in look.get("waits", {}).items():
            code, says = (expected, "") if isinstance(expected, str) else (expected["code"], expected["says"])
            found = told(view, job)
            assert found.code == code and says in found.text, (job, found)
        running = {job.spec.name for job in view.jobs.values() if job.live is not None}
        assert running == set(look.get("runs", {})), "others run"
        for device, shares in look.get("shares", {}).items():
            found_shares = [p.share_ppm for p in view.fleet.slices() if p.device == device]
            assert found_shares == shares
        for queue, used in look.get("queues", {}).items():
            assert used_by(view)[queue] == used


H100 = "NVIDIA H100 80GB HBM3"
_PPM = st.sampled_from([100_000, 250_000, 333_333, 500_000, 700_000, 999_999])


@st.composite
def shares(draw: st.DrawFn) -> dict[str, object]:
    kind = draw(st.sampled_from(["fraction", "memory", "profile"]))
    if kind == "profile":
        return {"profile": draw(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]))}
    mode = draw(st.sampled_from(["any", "any", "mig", "mps", "time"]))
    if kind == "memory":
        return {"memory": f"{draw(st.integers(1, 80))}GiB", "mode": mode}
    return {"fraction": draw(_PPM) / WHOLE_PPM, "mode": mode}


@st.composite
def groups(draw: st.DrawFn) -> dict[str, object]:
    if draw(st.booleans()):
        return {"count": draw(st.integers(1, 2)), "kind": "cpu", "share": {}}
    modes = draw(st.lists(st.sampled_from(["mig", "mps", "time"]), min_size=1, max_size=3, unique=True))
    over = {"compute": draw(st.sampled_from([1, 1.5, 3])), "memory": draw(st.sampled_from([1, 2]))}
    gpu = {"count": draw(st.integers(1, 2)), "kind": "gpu", "model": H100, "memory": "80GiB"}
    if draw(st.integers(0, 3)):
        return gpu | {"share": {"modes": modes, "oversubscribe": over}}
    return gpu | draw(st.sampled_from([{}, {"slices_ppm": [400_000, 600_000]}]))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Mixed devices, jobs that ask for parts and for whole ones, queues at times, and a node that fails."""
    nodes = [
        {"id": f"n{k}", "cpus": 4, "devices": draw(st.lists(groups(), min_size=1, max_size=2))}
        for k in range(draw(st.integers(1, 3)))
    ]
    fleet: dict[str, object] = {"nodes": nodes}
    queued = draw(st.booleans())
    if queued:
        limit = {"gpu": draw(st.sampled_from([0.5, 1, 2])), "cpu": draw(st.sampled_from([0.3, 1]))}
        fleet["queues"] = [{"name": "p", "limit": limit}, {"name": "q"}]
    jobs = {}
    for k in range(draw(st.integers(2, 9))):
        job: dict[str, object] = {"at": draw(st.integers(0, 20)), "work": draw(st.integers(1, 30))}
        job["restart"] = {"max": 3, "backoff_s": 0}
        if draw(st.integers(0, 3)):
            job |= {"share": draw(shares()), "ranks": draw(st.integers(1, 3))}
        else:
            job |= {"ranks": draw(st.integers(1, 2)), "device": draw(st.sampled_from(["gpu", "cpu", "any"]))}
        job |= {"preemption": draw(st.sampled_from(["high", "medium", "low", "low"]))}
        if draw(st.booleans()):
            job |= {"min_runtime_s": draw(st.integers(1, 10)), "estimate_s": draw(st.integers(1, 30))}
        if queued:
            job |= {
                "queue": draw(st.sampled_from(["p", "q"])),
                "device": draw(st.sampled_from(["gpu", "cpu", "any"])),
            }
        share = job.get("share", {})
        assert isinstance(share, dict)
        if job.get("device") == "cpu" and ("profile" in share or share.get("mode", "any") != "any"):
            job["device"] = "any"  # what is of GPUs is refused for CPU devices
        jobs[f"j{k}"] = job
    faults = [[draw(st.integers(1, 20)), "n0", 25]] if draw(st.booleans()) else []
    return World.of({"fleet": fleet, "jobs": jobs, "faults": faults})


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_no_device_is_over_what_may_be_promised_and_its_slices_always_sum_to_all_of_it(world: World) -> None:
    store, view = run(world, 400)
    check_ledger(store)
    for device in view.fleet.devices():
        if not view.live and device.sharing is not None:
            assert device.cut is None, "nobody is left, and it is not whole"


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_the_same_world_gives_the_same_log(world: World) -> None:
    first, second = (run(world, 60)[0] for _ in range(2))
    assert [(e.kind, e.body, e.time_ns) for e in first.read()] == [
        (e.kind, e.body, e.time_ns) for e in second.read()
    ]


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_every_job_ends_or_says_why_it_never_will(world: World) -> None:
    _, view = run(world, 1000)
    assert not view.live
    for job in view.jobs.values():
        assert job.terminal or not Unidle().ever(view, job.spec), told(view, job.spec.name)


def test_a_job_is_charged_for_the_slice_that_is_free_now_not_for_the_one_that_was() -> None:
    gpu = {"count": 1, "kind": "gpu", "model": H100, "memory": "80GiB", "slices_ppm": [400_000, 600_000]}
    job = {"at": 0, "work": 1, "ranks": 1, "device": "gpu", "queue": "p"}
    world = World.of(
        {
            "fleet": {
                "nodes": [{"id": "n0", "devices": gpu}],
                "queues": [{"name": "p", "limit": {"gpu": 0.5}}],
            },
            "jobs": {"first": job | {"preemption": "high"}, "second": job | {"preemption": "medium"}},
            "faults": [],
        }
    )
    _, view = run(
        world, 100
    )  # the second waits first: with the larger slice its queue would be over its limit
    assert [one.state for one in view.jobs.values()] == ["succeeded", "succeeded"]


def test_a_gang_whose_smallest_slices_are_more_than_its_queue_may_use_is_told_never() -> None:
    gpu = {"count": 1, "kind": "gpu", "model": H100, "memory": "80GiB", "slices_ppm": [400_000, 600_000]}
    job = {"at": 0, "work": 1, "device": "gpu", "queue": "p"}
    world = World.of(
        {
            "fleet": {
                "nodes": [{"id": "n0", "devices": gpu}],
                "queues": [{"name": "p", "limit": {"gpu": 0.5}}],
            },
            "jobs": {"two": job | {"ranks": 2}, "one": job | {"ranks": 1}},
            "faults": [],
        }
    )
    _, view = run(world, 100)
    two, one = view.jobs.values()
    assert two.verdict is not None and two.verdict.code == "over_limit" and not Unidle().ever(view, two.spec)
    assert one.state == "succeeded"


@settings(max_examples=30, deadline=None)
@given(worlds())
def test_only_low_jobs_past_their_minimum_runtime_are_stopped_for_others_and_no_queue_is_over_its_limit(
    world: World,
) -> None:
    store, _ = run(world, 300)
    limits = {queue.name: dict(queue.limit or {}) for queue in world.fleet.queues}
    view, stops = View(), 0
    for stored in store.read():
        event = decode(stored.kind, stored.body, stored.seq)
        apply(view, event, stored.seq, stored.time_ns)
        if isinstance(event, StopAsked) and event.why == "preempted":
            stops += 1
            job = view.jobs.open[event.job]
            assert job.spec.preemption == "low"
            assert stored.time_ns - job.attempts[-1].placed_ns >= job.spec.min_runtime_s * S
            assert event.for_job is not None
            assert view.jobs.open[event.for_job].live is None, "it runs, and others are stopped for it"
        if isinstance(event, AttemptPlaced):
            for queue, used in view.usage.queues.items():
                for kind, most in limits.get(queue, {}).items():
                    assert used.used_milli.get(kind, 0) <= most * 1000, (queue, kind)
    assert stops <= len(world.arrivals) ** 2, "jobs stop each other in turn"


def test_those_who_share_a_device_by_mps_are_as_slow_as_the_table_says_and_only_while_they_do() -> None:
    device = {"count": 1, "kind": "gpu", "memory": "80GiB", "share": {"modes": ["mps"]}}
    over = {"oversubscribe": {"compute": 1.5, "memory": 1.5}}
    world = World.of(
        {
            "fleet": {"nodes": [{"id": "n", "devices": device | {"share": device["share"] | over}}]},  # type: ignore[operator]
            "jobs": {
                "a": {"at": 0, "work": 28, "step": 1, "share": {"fraction": 0.7}},
                "b": {"at": 14, "work": 10, "step": 1, "share": {"fraction": 0.7}},
            },
        }
    )
    store, view = run(world)
    check_ledger(store)
    a, b = (view.jobs[name] for name in ("a", "b"))
    # 0.7 and 0.7 of the threads are 1.4 times what there is: b's 10 s take 14 s, in which a does 10 s of its own
    assert (b.ended_ns or 0) - b.attempts[0].placed_ns == 14 * S
    assert (a.ended_ns or 0) - a.attempts[0].placed_ns == (14 + 14 + 4) * S
    assert not any(rank.spans for rank in a.attempts[0].ranks), "no communication is made up"
    # b was never alone, so nothing is known of what a did to it
    assert view.pairs == {("mps", "a", "b"): (1_400_000, 1)}


def test_what_the_log_saw_of_two_kinds_of_work_keeps_them_apart_the_next_time() -> None:
    fleet = {"nodes": [{"id": "n", "devices": {"count": 2, "kind": "gpu", "memory": "80GiB", "share": {}}}]}
    spec = {"share": {"fraction": 0.3, "mode": "mps"}, "work": 50}
    world = World.of({"fleet": fleet, "jobs": {"a": {"at": 0, **spec}, "b": {"at": 1, **spec}}})
    together, apart = view_of(world.fleet), view_of(world.fleet)
    apart.pairs = {("mps", "b", "a"): (10 * 3_000_000, 10)}
    for view, expected in ((together, ["n/0", "n/0"]), (apart, ["n/0", "n/1"])):
        ground = FreeSlices(view)
        round_ = SliceOffers(ground, view, SliceMemo(view.fleet))
        for arrival in world.arrivals:
            apply(view, JobSubmitted(arrival.job, arrival.spec), view.seq + 1, 1)
            given = round_.find(arrival.job, arrival.spec)
            assert isinstance(given, SliceFit)
            round_.take(given)
        assert [p.device for p in round_.recuts() for part in p.cut.parts if part.job] == expected


def test_a_snapshot_knows_what_work_did_to_each_other_and_gives_the_same_part(tmp_path: Path) -> None:
    fleet = {"nodes": [{"id": "n", "devices": {"count": 2, "kind": "gpu", "memory": "80GiB", "share": {}}}]}
    spec = {"share": {"fraction": 0.3, "mode": "mps"}, "work": 50}
    world = World.of({"fleet": fleet, "jobs": {"a": {"at": 0, **spec}, "b": {"at": 100, **spec}}})
    _, view = run(world, 10)
    view.pairs = {("mps", "b", "a"): (10 * 3_000_000, 10), ("time", "x", "y"): (2_000_000, 1)}
    path = tmp_path / "snapshot"
    with path.open("wb") as out:
        write_snapshot(freeze(view), out)
    again = thaw(load_snapshot(path))
    assert list(again.pairs.items()) == list(view.pairs.items())
    late = world.arrivals[1].spec
    found, same = (Scheduler().try_one(v, late) for v in (view, again))
    assert isinstance(found, Placed)
    assert isinstance(same, Placed)
    assert (found.places, found.because) == (same.places, same.because)
    assert [place.slices for place in found.places] == [("n/1#1.0",)], "apart from a, which slowed it down"
    # one of the version before knows none, and loads
    lines = path.read_bytes().splitlines(keepends=True)
    old = json.loads(lines[1])
    del old["pairs"]
    path.write_bytes(
        lines[0].replace(b'"version":3', b'"version":2')
        + json.dumps(old).encode()
        + b"\n"
        + b"".join(lines[2:])
    )
    assert thaw(load_snapshot(path)).pairs == {}
    for newer in (4, 1):
        path.write_bytes(lines[0].replace(b'"version":3', b'"version":%d' % newer) + b"".join(lines[1:]))
        with pytest.raises(BadInput, match="reads versions 2 to 3"):
            load_snapshot(path)
