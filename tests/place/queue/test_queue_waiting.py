"""Waiting jobs in a queue's order, and rounds that stop others for many equal jobs at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from place.queues import HOUR, anywhere, decide, shares
from unidle.errors import BadInput, UnidleError
from unidle.fleet.queues import QueueSpec
from unidle.place.model import Backfill, Demand, Hold, RoundRules, Running, in_order
from unidle.place.queue.pending import PassesOver, PendingJobs, PendingLine
from unidle.place.queue.state import Allocations
from unidle.place.session import Draft

POLICY = Backfill(age_ns=HOUR, starved_ns=10 * HOUR)


def job(name: str, queue: str = "a", ranks: int = 1, **more) -> Demand:
    return Demand(name, queue, more.pop("level", "medium"), ranks, 1, (ranks * 1000,), **more)


def full(nodes: int, per: int) -> Allocations:
    """Queue b runs on all of it, queue a deserves three quarters."""
    total = nodes * per
    books = shares(QueueSpec("a", deserved={"gpu": total * 3 // 4}), QueueSpec("b"), gpus=total)
    held = [
        Running(f"b{k}", "b", "low", 0, {k // per: 1}, (1000,), last_saved_ns=(k * 7 % 11) * HOUR // 10)
        for k in range(total)
    ]
    return Allocations(np.full(nodes, per), books, held)


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(-2, 3), st.sampled_from(["low", "medium", "high"])),
        max_size=12,
    ),
    st.integers(0, 24),
    st.sets(st.integers(0, 11)),
)
def test_a_queue_offers_its_jobs_in_the_policys_order(rows, now, gone):
    books = shares(QueueSpec("a"), QueueSpec("b"), gpus=8)
    waiting = PendingJobs(books, POLICY)
    jobs = [
        job(f"j{k}", submitted_ns=s * HOUR, priority=p, level=level) for k, (s, p, level) in enumerate(rows)
    ]
    for one in jobs:
        waiting.add(one)
    for k in gone & set(range(len(jobs))):
        waiting.remove(f"j{k}")
    left = [one for k, one in enumerate(jobs) if k not in gone]
    assert list(waiting.of(1, now * HOUR)) == in_order(left, now * HOUR, POLICY)
    assert len(waiting) == len(left)
    assert books.waiting[1] == [len(left) * 1000]
    assert list(waiting.of(2, 0)) == []


def test_a_job_may_leave_the_line_while_it_is_gone_through():
    waiting = PendingJobs(shares(QueueSpec("a"), gpus=8), POLICY)
    for k in range(6):
        waiting.add(job(f"j{k}", submitted_ns=k))
    seen = []
    for one in waiting.of(1, 0):
        seen.append(one.job)
        if len(seen) % 2:
            waiting.remove(one.job)
    assert seen == [f"j{k}" for k in range(6)]
    assert sorted(waiting.jobs) == ["j1", "j3", "j5"]


def test_jobs_like_one_that_cannot_start_are_passed_over_as_long_as_that_is_known():
    waiting = PendingJobs(shares(QueueSpec("a"), gpus=8), POLICY)
    for k in range(9):
        waiting.add(job(f"j{k}", ranks=1 + k % 3, submitted_ns=k))
    known, version = {1, 2}, [0]
    over = PassesOver(lambda demand: demand.ranks in known, lambda: version[0])
    line, seen = waiting.of(1, 0, over), []
    for one in line:
        seen.append(one.job)
        over.begun = len(seen) >= 3
        if one.job == "j5":
            known.discard(2)
            version[0] += 1
    assert seen == ["j0", "j1", "j2", "j5", "j7", "j8"], (
        "j4 came before j5, and is not offered once that was passed"
    )


def test_a_job_beyond_the_depth_is_tried_where_no_job_like_it_was():
    books = shares(QueueSpec("a"), gpus=8)
    state, waiting = Allocations(np.full(1, 4), books), PendingJobs(books, POLICY)
    for k in range(6):
        waiting.add(job(f"wide{k}", ranks=6, submitted_ns=k))
    waiting.add(job("small", submitted_ns=9))
    rules = RoundRules(Backfill(heads=0, depth=2))
    done = decide(state, waiting, lambda d: anywhere(d.ranks), HOUR, rules)
    assert [start.job for start in done.starts] == ["small"]


def test_jobs_put_back_are_next_again_in_their_order():
    line = PendingLine(iter([job("a"), job("b"), job("c", ranks=2), job("d")]))
    first = line.next()
    assert first is not None
    like = line.alike(first, 9)
    assert [one.job for one in like] == ["b"]
    line.back([first, *like])
    assert [one.job for one in iter(line.next, None)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("together", [True, False])
def test_a_round_stops_the_same_jobs_for_many_at_once_as_one_by_one(together):
    state, done = round_of(full(4, 8), together=together)
    assert len(done.stops) == 24  # what the queue deserves, and no more
    assert sum(len(stop.victims) for stop in done.stops) == 24
    kept = sorted(run.lost_us(HOUR) for run in state.running.values())
    lost = sorted(full(4, 8).running[v].lost_us(HOUR) for stop in done.stops for v in stop.victims)
    assert lost[-1] <= kept[0]
    assert state.shares.used[1:] == [[24_000], [8_000]]
    assert len(done.waits) == 40


def round_of(state: Allocations, *, together: bool) -> tuple[Allocations, Draft]:
    waiting = PendingJobs(state.shares, POLICY)
    for k in range(40):
        waiting.add(job(f"a{k}", submitted_ns=k))
    allowed = np.ones(len(state.free), np.bool_)
    done = decide(
        state,
        waiting,
        lambda d: anywhere(d.ranks),
        HOUR,
        **({"allowed": lambda _: allowed} if together else {}),
    )
    return state, done


def test_a_job_waits_for_devices_held_for_it_until_they_are_really_free():
    state = full(1, 4)
    waiting = PendingJobs(state.shares, POLICY)
    waiting.add(job("new"))
    decide(state, waiting, lambda d: anywhere(d.ranks), HOUR)
    later = decide(state, waiting, lambda d: anywhere(d.ranks), HOUR + 1, ready=lambda _: False)
    assert (later.starts, later.waits["new"].code) == ([], "gathering")
    last = decide(state, waiting, lambda d: anywhere(d.ranks), HOUR + 2)
    assert [start.job for start in last.starts] == ["new"]


def test_devices_are_never_given_twice():
    state = full(1, 4)
    with pytest.raises(UnidleError, match="fewer devices free"):
        state.hold(Hold("x", "a", (1000,), firm=True, devices={0: 1}))
    with pytest.raises(UnidleError, match="runs already"):
        state.start(state.running["b0"])


def test_a_job_of_an_unknown_queue_is_refused():
    with pytest.raises(BadInput, match="no such queue"):
        PendingJobs(shares(QueueSpec("a"), gpus=8), POLICY).add(job("x", "nowhere"))
