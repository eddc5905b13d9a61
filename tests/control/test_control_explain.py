"""What `unidle explain` tells: whose job made room for whose, when a start cannot be known, and in which order."""

from __future__ import annotations

from dataclasses import replace

from loop.drive import Loop
from unidle.cli.up import adopted
from unidle.control.queries import describe
from unidle.control.queries.explanation import predicted
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Reason

FLEET = Fleet(
    (Tier("rack", "rack"),),
    (Node("n0", "rack", tuple(Device(f"n0/{k}", "n0", k, "gpu") for k in range(2))),),
    queues=(QueueSpec("q"),),
)
LOW = JobSpec(("x",), user="ann", queue="q", device="gpu", preemption="low")
HIGH = JobSpec(("x",), user="bob", queue="q", device="gpu", preemption="high", priority=3, ranks=2)


def crowded() -> Loop:
    """Two low jobs of ann, and bob's high one comes."""
    loop = Loop(FLEET, {job: SimJob(100 * S) for job in ("low-1", "low-2", "big-1")}, 1_000 * S)
    loop.controller.submit("low-1", LOW)
    loop.controller.submit("low-2", LOW)
    loop.to(1_010 * S)
    loop.controller.submit("big-1", HIGH)
    loop.settle()
    return loop


def decisions(loop: Loop, job: str) -> list[tuple[str, str]]:
    story = describe.explain(loop.view, loop.view.jobs[job])
    times = [one["time_ns"] for one in story["decisions"]]
    assert times == sorted(times)
    return [(one["what"], one["text"]) for one in story["decisions"]]


def test_both_explanations_say_whose_job_was_stopped_for_whose() -> None:
    loop = crowded()
    ((_, why),) = [line for line in decisions(loop, "low-1") if line[0] == "stop"]
    assert why.startswith("stopped to make room for job big-1 of user bob (queue q, priority 3): ")
    ((_, room),) = [line for line in decisions(loop, "big-1") if line[0] == "room for it"]
    assert room == (
        "stopped to make room for it: job low-1 of user ann (queue q, priority 0), "
        "job low-2 of user ann (queue q, priority 0)"
    )
    assert describe.job_line(loop.view.jobs["low-1"])["reason"] != ""


def test_a_stop_in_an_older_log_is_told_with_whose_job_it_was_for() -> None:
    loop = crowded()
    attempt = loop.view.jobs["low-1"].attempts[0]
    attempt.stop = ev.StopAsked(
        "low-1", 1, "preempted", 0, Reason("preempt", "it frees room"), for_job="big-1"
    )
    ((_, why),) = [line for line in decisions(loop, "low-1") if line[0] == "stop"]
    assert why == "stopped to make room for job big-1 of user bob (queue q, priority 3): it frees room"


def test_a_start_that_cannot_be_known_is_unknown_with_what_is_missing() -> None:
    loop = Loop(FLEET, {job: SimJob(100 * S) for job in ("one", "two", "behind")}, 1_000 * S)
    middle = replace(LOW, preemption="medium")
    loop.controller.submit("one", middle)
    loop.controller.submit("two", replace(middle, estimate_s=100.0))
    loop.settle()
    loop.controller.submit("behind", replace(middle, ranks=2))
    loop.settle()
    waiting = describe.explain(loop.view, loop.view.jobs["behind"])["waiting"]
    assert waiting["because"].endswith("; the end of running jobs is unknown")
    assert waiting["expected_start_ns"] is None
    assert waiting["start_unknown"] == (
        "the run time of one is unknown, and it runs; "
        "set estimate_s in the job file, or finish a job of the same name"
    )


def test_nothing_starts_with_the_next_decision_where_no_controller_runs_to_decide() -> None:
    loop = Loop(FLEET, {"one": SimJob(100 * S)}, 1_000 * S)
    loop.controller.submit("one", LOW)  # no decision is made yet
    for running, text, unknown in (
        (True, "there is room for the job: it starts with the next decision", None),
        (False, "there is room for the job", "no controller runs on this store"),
    ):
        view = replace(loop.view, running=running)
        waits = describe.explain(view, view.jobs["one"])["waiting"]
        assert (waits["now"]["text"], waits["start_unknown"]) == (text, unknown)


def test_a_start_that_is_known_is_not_unknown() -> None:
    loop = Loop(FLEET, {job: SimJob(100 * S) for job in ("one", "behind")}, 1_000 * S)
    known = replace(LOW, preemption="medium", ranks=2, estimate_s=100.0)
    loop.controller.submit("one", known)
    loop.settle()
    loop.controller.submit("behind", known)
    loop.settle()
    waiting = describe.explain(loop.view, loop.view.jobs["behind"])["waiting"]
    assert (waiting["expected_start_ns"], waiting["start_unknown"]) == (1_100 * S, None)


def test_a_prediction_is_told_in_few_figures_and_never_as_a_power_of_ten() -> None:
    said = {
        "what": "step_time",
        "low_ns": 999_999,
        "high_ns": 1_234_567_891,
        "level": 0.9,
        "by": "x",
        "error_ns": None,
    }
    told = [
        predicted({**said, "value_ns": ns}).partition(" (")[0]
        for ns in (7, 45_678, 1_058_300, 59_940_000_000)
    ]
    assert told == ["step time 7 ns", "step time 45.7 us", "step time 1.06 ms", "step time 59.9 s"]
    assert "(1000 us to 1.23 s with 90 %)" in predicted({**said, "value_ns": 1})
    cost = {"value": 0.00001234, "low": 0.001, "high": 1.2345678, "error": 0.5, "currency": "USD"}
    assert predicted({**said, "what": "cost", "cost": cost}) == (
        "cost 0.000012 USD (0.001 to 1.23 with 90 %), from x; it was 0.50 more"
    )


def test_a_controller_lists_what_it_adopts() -> None:
    loop = crowded()
    loop.to(1_030 * S)
    lines = list(adopted(loop.view))
    assert lines[0].startswith("adopted big-1: 2 ranks, running since ")
    assert lines[1:] == ["2 jobs wait"]
