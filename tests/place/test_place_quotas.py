"""Queues, levels and planned starts in the real loop on the simulated engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unidle.control.forecast import Forecaster
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Requests, Select, Topology, Where
from unidle.place.protocol import Plan
from unidle.place.scheduler import Scheduler
from unidle.store.memory import MemoryStore
from unidle.view.fold import apply
from unidle.view.state import View


class Twice(Scheduler):
    """What a policy keeps between rounds must not change what it decides."""

    def decide(self, view: View, now_ns: int) -> Plan:
        fresh = Scheduler().decide(view, now_ns)
        kept = super().decide(view, now_ns)
        assert kept == fresh
        return kept


def fleet(nodes: int, gpus: int, *queues: QueueSpec) -> Fleet:
    return Fleet(
        nodes=tuple(
            Node(f"n{k}", "", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu") for i in range(gpus)))
            for k in range(nodes)
        ),
        queues=queues,
    )


def job(at_s: float, name: str, ranks: int, work_s: float = 100, **more: object) -> tuple[Arrival, SimJob]:
    spec = JobSpec(("x",), name=name, ranks=ranks, device="gpu", **more)  # type: ignore[arg-type]
    return Arrival(1 + int(at_s * S), name, spec), SimJob(int(work_s * S))


def run(
    there: Fleet,
    *jobs: tuple[Arrival, SimJob],
    forecaster: Forecaster | None = None,
    until_s: int | None = None,
) -> tuple[View, list[ev.Event]]:
    store = MemoryStore()
    behaviour = {arrival.job: sim for arrival, sim in jobs}
    view = simulate(store, there, [arrival for arrival, _ in jobs], lambda command: behaviour[command.job], Twice(), options=SimulationOptions(forecaster=forecaster, until_ns=None if until_s is None else until_s * S))  # fmt: skip
    return view, [ev.decode(e.kind, e.body, e.seq) for e in store.read()]


def began_s(view: View, name: str) -> float:
    """When the job's last attempt was placed, in seconds from the start."""
    return (view.jobs[name].attempts[-1].placed_ns - 1) / S


def stops(events: Sequence[ev.Event]) -> list[tuple[str, str | None]]:
    return [(e.job, e.for_job) for e in events if isinstance(e, ev.StopAsked)]


def test_a_job_that_starves_has_its_turn_though_jobs_like_it_of_higher_priority_keep_coming():
    wanted = [job(7200 * k, f"wanted-{k}", 1, 7300, priority=5) for k in range(18)]
    view, _ = run(fleet(1, 1), *wanted, job(1, "late", 1, 10), until_s=7200 * 16)
    assert 12 * 3600 < began_s(view, "late") <= 12 * 3600 + 7300 + 1  # the usual bound


def test_a_high_job_takes_the_place_of_low_ones_and_they_wait_again():
    view, events = run(
        fleet(2, 4),
        job(0, "low-a", 4, preemption="low"),
        job(0, "low-b", 4, 300, preemption="low"),
        job(10, "high", 4, preemption="high"),
    )
    assert {name: view.jobs[name].state for name in view.jobs} == dict.fromkeys(
        ("low-a", "low-b", "high"), "succeeded"
    )
    assert len(stops(events)) == 1 and stops(events)[0][1] == "high"
    assert began_s(view, "high") < 30
    victim = stops(events)[0][0]
    assert view.jobs[victim].attempts[0].outcome == "preempted"
    assert len(view.jobs[victim].attempts) == 2


def test_medium_jobs_are_never_stopped_and_never_stop_others():
    view, events = run(
        fleet(1, 4), job(0, "first", 4), job(5, "second", 4, preemption="high"), job(6, "third", 4)
    )
    assert stops(events) == []
    assert began_s(view, "second") >= 100


def test_a_minimum_runtime_is_kept_before_a_job_is_stopped():
    _, events = run(
        fleet(1, 4),
        job(0, "low", 4, 1000, preemption="low", min_runtime_s=200),
        job(10, "high", 4, preemption="high"),
    )
    asked = [e for e in events if isinstance(e, ev.StopAsked)]
    assert all(e.job == "low" for e in asked)


def test_a_queue_takes_back_what_it_lent_and_no_more():
    queues = (QueueSpec("a", deserved={"gpu": 4}), QueueSpec("b", deserved={"gpu": 4}))
    view, events = run(
        fleet(2, 4, *queues),
        *(job(0, f"b{k}", 1, 1000, queue="b", preemption="low") for k in range(8)),
        *(job(50, f"a{k}", 1, 100, queue="a", preemption="low") for k in range(6)),
    )
    first = [e for e in events if isinstance(e, ev.StopAsked)]
    assert len(first) == 4  # b keeps what it deserves
    assert all(e.job.startswith("b") and (e.for_job or "").startswith("a") for e in first)
    assert all(job.state == "succeeded" for job in view.jobs.values())


HALVES = (QueueSpec("a", deserved={"gpu": 2}), QueueSpec("b", deserved={"gpu": 2}))


def test_a_queue_takes_back_for_a_job_that_asks_for_cpus():
    asks = Requests(cpus=4)
    _, events = run(
        fleet(1, 4, *HALVES),
        *(job(k, f"low{k}", 2, 500, queue="b", preemption="low", requests=asks) for k in range(2)),
        job(10, "own", 2, 50, queue="a", requests=asks),
    )
    assert stops(events) == [("low1", "own")]


def test_the_cpus_that_stopped_jobs_leave_count_when_room_is_made():
    """Devices are free everywhere; what is in the way is CPU, which one low job and one firm job hold."""
    nodes = tuple(
        Node(f"n{k}", "", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu") for i in range(4)), cpus=8)
        for k in range(2)
    )
    view, events = run(
        Fleet(nodes=nodes),
        job(0, "firm", 1, 500, requests=Requests(cpus=7)),
        job(1, "low", 1, 500, preemption="low", requests=Requests(cpus=7)),
        job(10, "high", 2, 50, preemption="high", requests=Requests(cpus=4)),
    )
    assert stops(events) == [("low", "high")]
    assert began_s(view, "high") < 60
    assert {place.node for place in view.jobs["high"].attempts[0].places} == {"n1"}
    assert began_s(view, "low") > began_s(view, "high") + 49


def test_nobody_is_stopped_while_the_cpus_of_a_node_are_in_the_way():
    node = Node("n0", "", tuple(Device(f"n0/{i}", "n0", i, "gpu") for i in range(4)), cpus=8)
    view, events = run(
        Fleet(nodes=(node,), queues=HALVES),
        job(0, "firm", 1, 100, queue="b", requests=Requests(cpus=8)),
        *(job(k, f"low{k}", k, 500, queue="b", preemption="low") for k in (1, 2)),
        job(10, "own", 2, 50, queue="a", requests=Requests(cpus=4)),
    )
    assert began_s(view, "own") >= 100
    assert all(
        attempt.ended_ns is not None and attempt.ended_ns >= 100 * S
        for name, _ in stops(events)
        for attempt in view.jobs[name].attempts
    )


def test_a_limit_is_never_exceeded_and_the_reason_names_it():
    queues = (QueueSpec("small", limit={"gpu": 2}), QueueSpec("large"))
    view, events = run(
        fleet(1, 8, *queues),
        *(job(0, f"s{k}", 1, 100, queue="small") for k in range(4)),
        job(0, "l", 4, queue="large"),
    )
    judged = [e for e in events if isinstance(e, ev.JobJudged)]
    assert {e.because.code for e in judged} == {"quota"}
    assert all("small uses 2 gpu of at most 2" in e.because.text for e in judged)
    assert sorted(began_s(view, f"s{k}") > 50 for k in range(4)) == [False, False, True, True]
    assert began_s(view, "l") < 1


def test_a_job_of_a_queue_that_does_not_exist_waits_with_that_reason():
    view, events = run(fleet(1, 2, QueueSpec("a")), job(0, "lost", 1, queue="nope"))
    (judged,) = [e for e in events if isinstance(e, ev.JobJudged)]
    assert "no queue nope" in judged.because.text and "a" in judged.because.text
    assert view.jobs["lost"].state == "queued"


def test_short_jobs_fill_the_gap_before_a_planned_start_and_do_not_delay_it():
    view, events = run(
        fleet(1, 4),
        job(0, "now", 2, 100, estimate_s=100.0),
        job(1, "wide", 4, 100, estimate_s=100.0),
        job(2, "short", 2, 50, estimate_s=50.0),
        job(3, "long", 2, 500, estimate_s=500.0),
    )
    assert began_s(view, "short") < 3
    assert 99 <= began_s(view, "wide") <= 105
    assert began_s(view, "long") >= 199
    wide = next(e for e in events if isinstance(e, ev.JobJudged) and e.job == "wide")
    assert abs(int(wide.because.figures["planned_start_ns"]) / S - 101) < 3


def test_a_run_time_that_was_foretold_stands_in_for_an_estimate():
    """Whoever ran before is known by name and user; a job's own estimate goes first."""
    early = [job(k, f"run{k}", 4, 100) for k in range(6)]
    history = [replace(arrival, spec=replace(arrival.spec, name="daily")) for arrival, _ in early]
    late = [
        job(700, "now", 2, 100),
        job(701, "wide", 4, 100),
        job(702, "short", 2, 50, estimate_s=50.0),
        job(703, "long", 2, 500, estimate_s=500.0),
    ]
    named = [
        (replace(a, spec=replace(a.spec, name="daily")), sim) if a.job in ("now", "wide") else (a, sim)
        for a, sim in late
    ]
    jobs = [*zip(history, [sim for _, sim in early], strict=True), *named]
    view, _ = run(fleet(1, 4), *jobs, forecaster=Forecaster())
    assert view.jobs["now"].predictions[0].high_ns >= 100 * S
    assert began_s(view, "short") < 703  # in the gap before the start that is reserved for the wide one
    assert began_s(view, "wide") < 810
    assert began_s(view, "long") >= 799


def test_guarantees_above_the_fleet_are_bad_input_when_the_queues_are_made():
    queues = (QueueSpec("a", guarantee={"gpu": 2}), QueueSpec("b", parent="a", guarantee={"gpu": 3}))
    with pytest.raises(BadInput, match="guarantee"):
        run(fleet(1, 2, *queues), job(0, "x", 1, queue="b"))


levels = st.sampled_from(["low", "medium", "high"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.integers(1, 6), st.integers(1, 200), levels, st.sampled_from(["a", "b", "c"]),
            st.booleans(),
        ),
        min_size=1, max_size=14,
    )
)  # fmt: skip
@example(
    [(0, 1, 1, "low", "a", False)] * 3
    + [
        (0, 2, 71, "low", "a", False), (0, 2, 124, "low", "c", False), (0, 6, 148, "low", "a", False),
        (71, 3, 149, "low", "b", False), (218, 1, 123, "high", "a", False), (219, 4, 122, "high", "b", False),
    ]
)  # fmt: skip
def test_every_job_ends_no_slice_is_shared_and_nobody_is_stopped_twice_for_the_same_job(
    drawn: list[tuple[int, int, int, str, str, bool]],
) -> None:
    queues = (
        QueueSpec("a", deserved={"gpu": 3}), QueueSpec("b", weight=2), QueueSpec("c", limit={"gpu": 6}, kind="public"),
    )  # fmt: skip
    jobs = [
        job(
            at_s,
            f"j{k}",
            ranks,
            work_s,
            preemption=level,
            queue=queue,
            estimate_s=float(work_s) if known else None,
        )
        for k, (at_s, ranks, work_s, level, queue, known) in enumerate(drawn)
    ]
    view, events = run(fleet(3, 3, *queues), *jobs)
    for one in view.jobs.values():
        blocked = one.verdict.code if one.verdict else None
        assert one.state == "succeeded" or blocked in ("quota", "no_right_to_preempt"), (
            one.id,
            one.state,
            one.verdict,
        )
    asked = stops(events)
    assert len(asked) == len(set(asked))
    spans: dict[str, list[tuple[int, int]]] = {}
    for one in view.jobs.values():
        for attempt in one.attempts:
            for place in attempt.places:
                for slice_id in place.slices:
                    spans.setdefault(slice_id, []).append((attempt.placed_ns, attempt.ended_ns or 10**18))
    for held in spans.values():
        held.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(held))


def test_who_waits_under_queues_is_told_what_is_in_the_way_and_when_it_is_gone():
    tiers = (Tier("s", "site"), Tier("a", "leaf", "s"), Tier("b", "leaf", "s"))
    nodes = tuple(
        Node(f"{leaf}{k}", leaf, tuple(Device(f"{leaf}{k}/{i}", f"{leaf}{k}", i, "gpu") for i in range(2)))
        for leaf in "ab"
        for k in range(2)
    )
    near = Topology(require="leaf")
    _, events = run(
        Fleet(tiers, nodes, queues=(QueueSpec("q"),)),
        job(0, "one", 3, 50, queue="q", estimate_s=50.0, topology=near),
        job(1, "two", 3, 100, queue="q", estimate_s=100.0, topology=near),
        job(2, "near", 2, 10, queue="q", estimate_s=10.0, topology=near),
    )
    (why,) = [e.because for e in events if isinstance(e, ev.JobJudged) and e.job == "near"]
    assert "the gang within one leaf: 2 of 2 have room, at most 1 of 2 ranks fit" in why.text
    assert why.text.endswith("room is reserved for it, in 48 s")
    assert (why.figures["needs"], why.figures["largest"], why.figures["free"]) == (2, 1, 2)


def test_every_job_that_waits_has_a_reason_however_far_back_it_is():
    view, events = run(
        fleet(1, 1, QueueSpec("q")), *(job(0, f"j{k:03d}", 1, 10, queue="q") for k in range(260)), until_s=5
    )
    judged = {e.job: e.because for e in events if isinstance(e, ev.JobJudged)}
    waiting = [name for name in view.jobs if view.jobs[name].state == "queued"]
    assert len(waiting) == 259 and set(waiting) <= set(judged)
    assert "needs 1 GPU, 0 of 1 are free" in judged["j001"].text
    assert judged["j259"].code == "depth"
    assert "behind the first 200 jobs" in judged["j259"].text


def test_a_limit_of_a_model_binds_jobs_that_name_it_in_short() -> None:
    h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
    nodes = tuple(
        Node(n, "", tuple(Device(f"{n}/{i}", n, i, "gpu", model) for i in range(4)))
        for n, model in (("n0", h100), ("n1", a100))
    )
    queue = QueueSpec("q", limit={f"gpu:{h100}": 1.0})
    spec = JobSpec(("x",), device="gpu", queue="q", where=Where(Select(include=("h100",))))
    view = View()
    told: list[ev.Event] = [ev.FleetSeen(Fleet(nodes=nodes, queues=(queue,)))]
    told += [ev.JobSubmitted(f"j{k}", spec) for k in range(3)]
    for event in told:
        apply(view, event, view.seq + 1, view.seq + 1)
    plan = Scheduler().decide(view, 10)
    assert [place.job for place in plan.places] == ["j0"]
    assert {wait.because.code for wait in plan.waits} == {"quota"}
    apply(view, ev.AttemptPlaced("j0", 1, plan.places[0].places, plan.places[0].because), view.seq + 1, 11)
    assert view.usage.held["j0"][1] == {"gpu": 1000, f"gpu:{h100}": 1000}
