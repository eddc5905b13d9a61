"""Why nobody is stopped: told where a queue could take something back, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from place.queues import HOUR, anywhere, shares
from unidle.fleet.queues import QueueSpec
from unidle.jobs import Reason
from unidle.place.actions.preempt import preempt
from unidle.place.model import Demand, Running
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import rights, why_no_victims
from unidle.place.session import NoVictims, Preemption

NOW = 10 * HOUR


def run(job: str, queue: str, devices: int, level: str = "low", started: int = 0, **more: int) -> Running:
    return Running(job, queue, level, started, {0: devices}, (devices * 1000,), **more)  # type: ignore[arg-type]


def want(queue: str, ranks: int, level: str = "medium") -> Demand:
    return Demand("new", queue, level, ranks, 1, (ranks * 1000,))  # type: ignore[arg-type]


def state(queues: Sequence[QueueSpec], *running: Running, gpus: int = 10) -> Allocations:
    return Allocations(np.array([gpus]), shares(*queues, gpus=gpus), running)


ORG, GUESTS = QueueSpec("org", deserved={"gpu": 8}), QueueSpec("guests", deserved={"gpu": 2})
KEEPS = QueueSpec("guests", deserved={"gpu": 2}, reclaimable=False)
CASES = {
    "it would use more than it deserves": (
        state((ORG, GUESTS), run("own", "org", 4), run("guest", "guests", 4)), want("org", 6),
        "org uses 4 gpu, would use 10 with it, and deserves 8",
    ),
    "what others use is not reclaimable": (
        state((ORG, KEEPS), run("own", "org", 4), run("guest", "guests", 4)), want("org", 4),
        "guests uses more than deserved, but this is not reclaimable",
    ),
    "the others are not low": (
        state((ORG, GUESTS), run("own", "org", 4), run("guest", "guests", 4, "medium")), want("org", 4),
        "no job of level low runs in guests, and only such jobs can be stopped",
    ),
    "its own queue runs nothing low": (
        state((ORG, GUESTS), run("own", "org", 8, "medium")), want("org", 4, "high"), "org runs no job of level low",
    ),
    "it is public": (
        state((QueueSpec("all", kind="public"), ORG), run("own", "org", 10)), want("all", 1),
        "all is public and reclaims nothing",
    ),
}  # fmt: skip
NOT_TOLD = {
    "a queue that uses all that it deserves": (
        state((ORG, GUESTS), run("own", "org", 8), run("guest", "guests", 2)), want("guests", 1),
    ),
    "nobody uses more than it deserves": (
        state((ORG, GUESTS), run("own", "org", 7), run("guest", "guests", 2)), want("org", 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_reason_why_no_victims_may_be_stopped_is_told(name: str) -> None:
    there, demand, says = CASES[name]
    why = why_no_victims(there, demand)
    assert why == Reason("no_right_to_preempt", says)
    assert isinstance(preempt(there, demand, anywhere(demand.ranks), NOW), Reason)


@pytest.mark.parametrize("name", NOT_TOLD)
def test_nothing_is_told_where_its_queue_could_take_nothing_back(name: str) -> None:
    assert why_no_victims(*NOT_TOLD[name]) is None


def test_jobs_in_their_minimum_runtime_are_named_as_such() -> None:
    young = run("guest", "guests", 6, started=NOW - 1, min_runtime_ns=HOUR)
    answer = preempt(state((ORG, GUESTS), young), want("org", 5), anywhere(5), NOW)
    assert isinstance(answer, Reason) and answer.code == "too_young"
    assert answer.text == "no low job that it could stop has run for its minimum runtime yet"


def test_what_could_be_freed_is_told_where_it_is_not_enough() -> None:
    there = state((ORG, GUESTS), run("own", "org", 1), run("gang", "guests", 3), run("most", "guests", 6))
    answer = preempt(there, want("org", 7), anywhere(7), NOW)
    assert isinstance(answer, Reason) and answer.code == "no_victims"
    assert answer.text == (
        "stopping low jobs could free 3 devices in addition to the 0 free ones without taking a queue below what it deserves, "
        "and it needs 7"
    )


@given(
    own=st.integers(0, 8), guests=st.integers(0, 8), level=st.sampled_from(["low", "medium"]),
    ranks=st.integers(1, 8), reclaimable=st.booleans(),
)  # fmt: skip
def test_a_reason_is_told_only_where_nobody_may_be_stopped(
    own: int, guests: int, level: str, ranks: int, reclaimable: bool
) -> None:
    other = QueueSpec("guests", deserved={"gpu": 2}, reclaimable=reclaimable)
    running = [run("own", "org", own)] * bool(own) + [run("g", "guests", guests, level)] * bool(guests)
    there, demand = state((ORG, other), *running, gpus=16), want("org", ranks)
    may = any(there.soft.get(leaf) for leaf in rights(there.shares, demand).leaves())
    if why_no_victims(there, demand) is not None:
        assert not may
        answer = preempt(there, demand, anywhere(ranks), NOW)
        assert not (isinstance(answer, Preemption) and answer.victims)


def test_a_kind_of_jobs_is_looked_at_once() -> None:
    there, demand, _ = CASES["it would use more than it deserves"]
    known: NoVictims[str] = NoVictims(there)
    assert known.why("like", demand) is None  # nothing was tried for it
    known.setdefault("like")
    first = known.why("like", demand)
    assert first is not None and known.why("like", demand) is first
    known.clear()
    assert known.why("like", demand) is None
