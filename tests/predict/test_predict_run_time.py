"""Run times from history, and expected starts from the planned schedule."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from unidle.predict.run_time import KEPT, RunHistory, quantile_estimate, remaining_ns
from unidle.predict.start import Departure, Waiter, planned_starts


def test_the_bounds_are_order_statistics_with_the_level_that_they_carry() -> None:
    found = quantile_estimate(list(range(1, 20)), "x", level=0.9)
    assert found is not None
    assert (found.low_ns, found.value_ns, found.high_ns, found.level_ppm) == (1, 10, 19, 900_000)
    found = quantile_estimate([30, 10, 20], "x", level=0.9)
    assert found is not None
    assert (found.low_ns, found.value_ns, found.high_ns, found.level_ppm) == (10, 20, 30, 500_000)
    found = quantile_estimate([7], "x")
    assert found is not None
    assert (found.low_ns, found.high_ns, found.level_ppm, found.samples) == (7, 7, 0, 1)
    assert quantile_estimate([], "x") is None


def test_the_next_duration_is_within_bounds_as_often_as_promised() -> None:
    chance = random.Random(2)
    inside = 0
    for _ in range(600):
        past = [round(chance.lognormvariate(10, 2)) for _ in range(39)]
        found = quantile_estimate(past, "x", level=0.9)
        assert found is not None
        assert found.level_ppm == 900_000
        inside += found.low_ns <= round(chance.lognormvariate(10, 2)) <= found.high_ns
    assert 0.87 < inside / 600 < 0.93


def test_a_history_of_the_same_name_comes_before_that_of_the_user() -> None:
    history = RunHistory()
    for ran in (10, 12, 11):
        history.add("ann", "small", ran)
    history.add("ann", "large", 1000)
    small, large, new = (history.estimate("ann", name) for name in ("small", "large", "new"))
    assert small is not None and large is not None and new is not None
    assert (small.value_ns, large.value_ns, new.value_ns) == (11, 1000, 11)
    assert (small.by, new.by) == ("3 earlier jobs small of ann", "4 earlier jobs of ann")
    assert history.estimate("bob", "small") is None
    history.add("", "trace", 7)
    known, other = history.estimate("", "trace"), history.estimate("", "other")
    assert known is not None and other is not None
    assert (known.by, other.by) == ("one earlier job trace without a user", "one earlier job without a user")


def test_only_the_latest_runs_count() -> None:
    history = RunHistory()
    for ran in [1] * KEPT + [500] * KEPT:
        history.add("ann", "x", ran)
    found = history.estimate("ann", "x")
    assert found is not None
    assert (found.low_ns, found.samples) == (500, KEPT)


def test_a_job_that_runs_longer_than_most_has_what_the_longest_had_left() -> None:
    assert remaining_ns([10, 20, 40], 15) == 25
    assert remaining_ns([10, 20, 40], 50) == 50


def test_waiting_jobs_start_in_turn_and_smaller_ones_pass_what_does_not_fit() -> None:
    starts = planned_starts(
        1, [Departure(100, 3), Departure(50, 1)],
        [Waiter("big", 4, 10), Waiter("small", 1, 20), Waiter("next", 2, 5)], 0,
    )  # fmt: skip
    assert starts == {"small": 0, "next": 50, "big": 100}


def test_a_job_without_an_end_in_sight_leaves_those_behind_it_unforetold() -> None:
    assert planned_starts(0, [], [Waiter("a", 1, 5)], 7) == {}
    assert planned_starts(1, [], [Waiter("a", 1, None), Waiter("b", 1, 5)], 7) == {"a": 7}
    assert planned_starts(1, [Departure(3, 1)], [Waiter("a", 9, 5), Waiter("b", 2, 5)], 7) == {"b": 7}


WAITERS = st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(0, 50)), max_size=12)
HOLDERS = st.lists(st.builds(Departure, st.integers(-20, 60), st.integers(1, 4)), max_size=5)


@given(st.integers(0, 6), HOLDERS, WAITERS)
def test_a_plan_never_gives_more_devices_than_there_are(free: int, holders: list[Departure], waiting) -> None:
    waiters = [Waiter(f"j{k}", devices, runs) for k, (devices, runs) in enumerate(waiting)]
    starts = planned_starts(free, holders, waiters, 0)
    total = free + sum(h.devices for h in holders)
    spans = [(0, max(h.ends_ns, 0), h.devices) for h in holders]
    for w in waiters:
        if w.job in starts:
            end = 10**9 if w.runs_ns is None else starts[w.job] + w.runs_ns
            spans.append((starts[w.job], end, w.devices))
    for at in {s for s, _, _ in spans}:
        assert sum(n for s, e, n in spans if s <= at < e) <= total
    assert all(start >= 0 for start in starts.values())
    if all(w.runs_ns is not None for w in waiters):
        assert set(starts) == {w.job for w in waiters if w.devices <= total}
