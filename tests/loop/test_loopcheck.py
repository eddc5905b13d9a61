"""The checker itself: each invariant is broken once by a log made by hand, and the checker names it."""

from __future__ import annotations

import pytest

from loopcheck import Checker, S, Violation
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Layout, RankPlace, Reason, Requests, Topology, Where

FLEET = Fleet(
    (Tier("spine", "spine"), Tier("l0", "leaf", "spine"), Tier("l1", "leaf", "spine")),
    tuple(
        Node(f"n{k}", f"l{k // 2}", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu") for i in range(2)), cpus=4.0, taints=("t",) * (k == 3))
        for k in range(4)
    ),
    queues=(QueueSpec("a", limit={"gpu": 4}), QueueSpec("b"), QueueSpec("g", guarantee={"gpu": 2})),
)  # fmt: skip
WHY = Reason("x", "x")


def job(name: str, ranks: int = 1, **more: object) -> ev.JobSubmitted:
    spec = JobSpec(("x",), ranks=ranks, device="gpu", **{"queue": "b", **more})  # type: ignore[arg-type]
    return ev.JobSubmitted(name, spec)


def placed(name: str, *slices: str, attempt: int = 1) -> ev.AttemptPlaced:
    places = (RankPlace(k, piece.partition("/")[0], (piece,)) for k, piece in enumerate(slices))
    return ev.AttemptPlaced(name, attempt, tuple(places), WHY)


def stop(name: str, for_job: str | None = None, attempt: int = 1) -> ev.StopAsked:
    return ev.StopAsked(name, attempt, "preempted" if for_job else "cancelled", 0, WHY, for_job=for_job)


def ended(name: str, attempt: int = 1) -> ev.AttemptEnded:
    return ev.AttemptEnded(name, attempt, "preempted", WHY)


LOW = {"preemption": "low"}
HIGH = {"preemption": "high"}
BROKEN: dict[str, list[ev.Event]] = {
    "no half gang": [job("a", 2), placed("a", "n0/0")],
    "no half rank": [job("a", 1, devices_per_rank=2), placed("a", "n0/0")],
    "no device over its capacity": [job("a"), job("b"), placed("a", "n0/0"), placed("b", "n0/0")],
    "only slices of the fleet": [job("a"), placed("a", "n0/9")],
    "only a job that waits": [job("a"), placed("a", "n0/0"), placed("a", "n0/1", attempt=2)],
    "that was cancelled is not placed": [job("a"), ev.CancelAsked("a", "ann"), placed("a", "n0/0")],
    "attempts count up": [job("a"), placed("a", "n0/0", attempt=2)],
    "on what is down": [job("a"), ev.HealthSet("n0", "fault", WHY), placed("a", "n0/0")],
    "taints keep jobs off": [job("a"), placed("a", "n3/0")],
    "hard wishes hold": [job("a", 2, topology=Topology("leaf")), placed("a", "n0/0", "n2/0")],
    "hard wishes hold: a attempt 1: tp": [
        job("a", 4, layout=Layout(2, 2, 1), topology=Topology(groups={"tp": "node"})),
        placed("a", "n0/0", "n1/0", "n0/1", "n1/1"),
    ],
    "no node over its CPU": [job("a", 2, requests=Requests(cpus=3)), placed("a", "n0/0", "n0/1")],
    "a restart waits": [
        job("a"), placed("a", "n0/0"), ended("a"), ev.RetryPlanned("a", 100 * S, WHY), placed("a", "n0/0", attempt=2),
    ],
    "quota held": [
        *(job(f"a{k}", queue="a") for k in range(5)), *(placed(f"a{k}", f"n{k // 2}/{k % 2}") for k in range(5)),
    ],
    "guarantee held": [
        job("a", 6), job("b", 1, where=Where(tolerate=("t",))), placed("a", "n0/0", "n0/1", "n1/0", "n1/1", "n2/0", "n2/1"), placed("b", "n3/0"),
    ],
    "only what runs is stopped": [job("a"), stop("a")],
    "only low jobs are preempted": [job("a"), job("b", **HIGH), placed("a", "n0/0"), stop("a", "b")],
    "only for one that waits": [job("a", **LOW), job("b"), placed("a", "n0/0"), placed("b", "n0/1"), stop("a", "b")],
    "minimum runtime kept": [job("a", min_runtime_s=9.0, **LOW), job("b", **HIGH), placed("a", "n0/0"), stop("a", "b")],
    "within a queue only high": [job("a", **LOW), job("b"), placed("a", "n0/0"), stop("a", "b")],
    "no job is stopped twice": [
        job("a", **LOW), job("b", **HIGH), placed("a", "n0/0"), stop("a", "b"), ended("a"), placed("a", "n0/0", attempt=2),
        stop("a", "b", attempt=2),
    ],
    "all of a gang is kept": [job("a", 2), ev.Promised("a", "gpu", {"n0": 1}, 10**12, WHY)],
    "freed quota reaches the preemptor": [
        job("a", 2, **HIGH), job("b"), ev.Promised("a", "gpu", {"n0": 2}, 10**12, WHY), placed("b", "n0/0"),
    ],
    "an attempt ends once": [job("a"), placed("a", "n0/0"), ended("a"), ended("a")],
    "a job ends once": [job("a"), ev.JobEnded("a", "failed", WHY), ev.JobEnded("a", "failed", WHY)],
    "over holds nothing": [job("a"), placed("a", "n0/0"), ev.JobEnded("a", "succeeded", WHY)],
    "cancelled is over": [job("a"), ev.CancelAsked("a", "ann")],
}  # fmt: skip


@pytest.mark.parametrize("invariant", BROKEN)
def test_a_log_that_breaks_an_invariant_is_found_out(invariant: str) -> None:
    *before, last = BROKEN[invariant]
    checker = Checker()
    feed(checker, [ev.FleetSeen(FLEET), *before])
    with pytest.raises(Violation, match=invariant):
        feed(checker, [last], settled=True)


def feed(checker: Checker, events: list[ev.Event], *, settled: bool = False) -> None:
    for event in events:
        checker.see(event, 1)
    if settled:
        checker.settled(1)


def test_a_log_in_good_order_passes() -> None:
    checker = Checker()
    checker.see(ev.FleetSeen(FLEET), 1)
    good = [
        job("low", 2, **LOW), job("high", 2, **HIGH), placed("low", "n0/0", "n0/1"),
        ev.Promised("high", "gpu", {"n0": 2}, 10**12, WHY), stop("low", "high"), ended("low"), ev.Requeued("low", WHY),
        placed("high", "n0/0", "n0/1"), placed("low", "n1/0", "n1/1", attempt=2), ended("high"),
        ev.JobEnded("high", "succeeded", WHY),
    ]  # fmt: skip
    for k, event in enumerate(good):
        checker.see(event, k + 2)
    checker.settled(len(good) + 2)
    assert checker.stops == [("low", 1, "high", 6)]


def test_time_that_runs_backwards_is_found_out() -> None:
    checker = Checker()
    checker.see(ev.FleetSeen(FLEET), 5)
    with pytest.raises(Violation, match="time runs forward"):
        checker.see(job("a"), 4)
