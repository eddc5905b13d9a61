"""Declared slices that count differently, under queues: what a job is charged is what it gets, and never too much."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import Fleet
from unidle.jobs import Reason
from unidle.place.policy import Unidle
from unidle.place.protocol import Plan
from unidle.place.snapshot import snapshot_of
from unidle.view.fold import apply
from unidle.view.placement_input import view_of
from unidle.view.state import View


@dataclass(slots=True)
class World:
    """A view to which jobs are submitted and in which plans come true."""

    view: View
    now_ns: int = 1

    @classmethod
    def of(cls, slices: list[list[int]], limit: float, models: bool = False, **more: Any) -> World:
        """A node for each list of slices, in thousandths, with one device; two queues, ``q`` with this limit."""
        nodes = [
            {
                "id": f"n{k}",
                "devices": {
                    "count": 1,
                    "kind": "cpu",
                    "slices_ppm": [s * 1_000 for s in cut],
                    **({"model": f"m{k}"} if models else {}),
                },
            }
            for k, cut in enumerate(slices)
        ]
        queues = [{"name": "q", "limit": {"cpu": limit}, **more}, {"name": "free"}]
        return cls(view_of(fleet_from_mapping({"nodes": nodes, "queues": queues}, "fleet")))

    def submit(self, *asks: dict[str, Any]) -> None:
        for given_ask in asks:
            name = f"j{len(self.view.jobs)}"
            data = {"command": ["x"], "user": "u", "queue": "q", "device": "cpu", **given_ask}
            self._tell(ev.JobSubmitted(name, job_from_mapping(data, name, ".")))

    def decide(self) -> Plan:
        """One plan, which comes true as far as jobs start."""
        plan = Unidle().decide(self.view, self.now_ns)
        for stop in plan.stops:
            self.end(stop.job)
        for place in plan.places:
            self._tell(ev.AttemptPlaced(place.job, 1, place.places, place.because))
        return plan

    def end(self, job: str) -> None:
        self._tell(ev.AttemptEnded(job, 1, "succeeded", Reason("done", "")))
        self._tell(ev.JobEnded(job, "succeeded", Reason("done", "")))

    def used(self) -> int:
        """Thousandths of a device that running jobs of the queue ``q`` hold."""
        share = {piece.id: piece.share_ppm // 1_000 for piece in self.fleet.slices()}
        live = [self.view.jobs[job] for job in self.view.live if self.view.jobs[job].spec.queue == "q"]
        return sum(share[s] for job in live for place in job.attempts[-1].places for s in place.slices)

    def told(self) -> int:
        """The same as the books of the next round have it."""
        report = snapshot_of(self.view, self.now_ns).shares.report()
        return next(
            share.used[0] if len(share.used) == 1 else max(share.used)
            for share in report
            if share.queue == "q"
        )

    @property
    def fleet(self) -> Fleet:
        return self.view.fleet

    def _tell(self, event: ev.Event) -> None:
        self.now_ns += 1
        apply(self.view, event, self.view.seq + 1, self.now_ns)


def part(fraction: float, **more: Any) -> dict[str, Any]:
    return {"share": {"fraction": fraction}, **more}


def on(plan: Plan) -> dict[str, list[str]]:
    return {p.job: [s for rank in p.places for s in rank.slices] for p in plan.places}


def test_of_two_jobs_at_one_moment_the_second_does_not_get_a_slice_that_passes_the_limit() -> None:
    world = World.of([[400, 600]], 0.8)
    world.submit(part(0.3), part(0.3))
    plan = world.decide()
    assert on(plan) == {"j0": ["n0/0#0"]}
    assert plan.waits[0].because.text.startswith("q uses 0.4 cpu of at most 0.8, and the job needs 0.6")
    assert not plan.stops


def test_both_start_where_the_limit_lets_them() -> None:
    world = World.of([[400, 600]], 1)
    world.submit(part(0.3), part(0.3))
    assert on(world.decide()) == {"j0": ["n0/0#0"], "j1": ["n0/0#1"]}
    assert world.used() == world.told() == 1000


def test_a_job_goes_where_its_slice_counts_little_enough() -> None:
    world = World.of([[500, 500], [300, 700]], 0.4)
    world.submit(part(0.2))
    assert on(world.decide()) == {"j0": ["n1/0#0"]}


def test_a_gang_gets_slices_that_the_limit_lets_it_have_together() -> None:
    world = World.of([[500, 500], [300, 700], [450, 550]], 0.76)
    world.submit(part(0.2, ranks=2))
    assert on(world.decide()) == {"j0": ["n1/0#0", "n2/0#0"]}
    assert world.used() == 750


def test_devices_of_several_models_count_what_their_slices_count() -> None:
    world = World.of([[500, 500], [300, 700]], 0.6, models=True)
    world.submit(part(0.6))
    plan = world.decide()
    assert not plan.places
    world.submit(part(0.4))
    assert on(world.decide()) == {"j1": ["n0/0#0"]}


def test_a_job_without_a_wish_for_a_part_is_charged_the_slices_that_it_gets() -> None:
    world = World.of([[700, 300]], 0.9)
    world.submit({}, {})
    assert on(world.decide()) == {"j0": ["n0/0#1"]}
    assert world.used() == world.told() == 300


def test_nobody_is_stopped_for_a_job_that_only_the_limit_keeps_out() -> None:
    world = World.of([[400, 600], [200, 800]], 0.8)
    world.submit(part(0.7, queue="free", preemption="low"))
    world.decide()
    world.submit(part(0.3), part(0.3))
    plan = world.decide()
    assert on(plan) == {"j1": ["n0/0#0"]}
    assert not plan.stops
    assert [wait.because.code for wait in plan.waits] == ["quota"]


SIZES = st.sampled_from(
    [[500, 500], [400, 600], [600, 400], [300, 700], [100, 200, 300, 400], [250, 750], [1000]]
)


@st.composite
def asks(draw: st.DrawFn) -> dict[str, Any]:
    job: dict[str, Any] = {
        "ranks": draw(st.integers(1, 3)),
        "queue": draw(st.sampled_from(["q", "q", "free"])),
    }
    if draw(st.integers(0, 4)):
        job["share"] = {"fraction": draw(st.sampled_from([0.1, 0.2, 0.25, 0.35, 0.45, 0.6]))}
    job["preemption"] = draw(st.sampled_from(["low", "medium", "high"]))
    return job


@settings(max_examples=100, deadline=None)
@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.sampled_from([0.3, 0.4, 0.5, 0.8, 1, 1.2, 1.7, 2]),
    st.lists(st.lists(asks(), min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_limit_is_never_passed_and_a_single_rank_waits_for_it_only_where_no_free_slice_is_small_enough(
    slices: list[list[int]], limit: float, rounds: list[list[dict[str, Any]]], models: bool, chance: Any
) -> None:
    world = World.of(slices, limit, models)
    for jobs in rounds:
        world.submit(*jobs)
        plan = world.decide()
        assert world.used() == world.told() <= limit * 1000
        if not plan.stops and not world.view.promised:
            for wait in plan.waits:
                if wait.because.code in ("quota", "no_room"):  # not behind others
                    _is_kept_out(world, wait.job, limit)
        live = sorted(world.view.live)
        for job in chance.sample(live, chance.randint(0, len(live))):
            world.end(job)


def _is_kept_out(world: World, name: str, limit: float) -> None:
    """No free slices would do for the job, or the queue may not have them."""
    spec = world.view.jobs[name].spec
    if spec.ranks > 2:
        return
    devices = {d.id: d for d in world.fleet.devices()}
    some_whole = any(len(d.slices_ppm) == 1 for d in devices.values())
    able = []
    for piece in world.fleet.slices():
        whole = len(devices[piece.device].slices_ppm) == 1
        fits = (
            not whole and piece.share_ppm >= spec.share.compute_ppm if spec.share else whole or not some_whole
        )
        if fits and world.view.occupancy.is_free(piece.id):
            able.append((devices[piece.device].model, piece.share_ppm // 1_000))
    left = limit * 1000 - world.used() if spec.queue == "q" else 1e9
    one_model = [some for some in combinations(able, spec.ranks) if len({m for m, _ in some}) == 1]
    assert all(sum(milli for _, milli in some) > left for some in one_model), (name, spec, able, left)
