"""Backfill on nodes alone: profiles, planned starts, ageing and the starvation bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from place.queues import HOUR, anywhere
from unidle.place.model import Backfill, Demand, Ends, Fits, Running, expected_end_ns, in_order
from unidle.place.queue.backfill import FreeProfile, Planned, Planner, StartSlot

S = 1_000_000_000


def job(name: str, ranks: int, hours: float | None = 1.0, each: int = 1, **more) -> Demand:
    estimate = None if hours is None else int(hours * HOUR)
    fields = {"level": "medium", **more}
    return Demand(name, "q", ranks=ranks, each=each, charged=(0,), estimate_ns=estimate, **fields)


def busy(name: str, devices: dict[int, int], hours: float) -> Running:
    return Running(name, "q", "medium", 0, devices, (0,), estimate_ns=int(hours * HOUR))


def fits(demand: Demand) -> Fits:
    return anywhere(demand.ranks)


def plan(free, running, demands, fits_of, now_ns, policy) -> list[Planned]:
    """A planned start for each waiting job, in the order of the policy."""
    ends = [(expected_end_ns(run, now_ns, policy.otherwise_ns), run.devices) for run in running]
    planner = Planner(lambda: FreeProfile(free, now_ns, ends), fits_of, now_ns, policy)
    found = []
    for demand in in_order(demands, now_ns, policy):
        counts = fits_of(demand)(planner.room_now(demand))
        found.append(planner.later(demand) if counts is None else planner.start(demand, counts))
    return found


def plans(free, running, jobs, **policy) -> dict[str, Planned]:
    found = plan(np.array(free), running, jobs, fits, 0, Backfill(**policy))
    return {p.job: p for p in found}


def test_the_head_gets_a_reservation_and_later_jobs_start_where_they_do_not_delay_it():
    running = [busy("r", {0: 4}, 2)]
    jobs = [job("head", 8, 1), job("long", 2, 3), job("short", 2, 2)]
    found = plans([0, 4], running, jobs)
    assert found["head"].start_ns == 2 * HOUR and found["head"].reserved
    assert not found["long"].now and found["long"].start_ns == 3 * HOUR
    assert found["short"].now


def test_a_long_job_starts_where_it_does_not_need_what_is_reserved():
    found = plans([0, 4], [busy("r", {0: 4}, 2)], [job("head", 6, 1), job("long", 2, 9)])
    assert found["head"].start_ns == 2 * HOUR
    assert found["long"].now


def test_conservative_reserves_for_every_job_and_easy_for_the_first():
    running = [busy("r", {0: 3}, 2)]
    jobs = [job("a", 4, 1), job("b", 4, 1), job("c", 1, 4)]
    easy, strict = plans([1], running, jobs), plans([1], running, jobs, rule="conservative")
    assert [easy[k].reserved for k in "abc"] == [True, False, False]
    assert [strict[k].reserved for k in "abc"] == [True, True, True]
    assert [strict[k].start_ns for k in "abc"] == [2 * HOUR, 3 * HOUR, 4 * HOUR]


def test_a_job_that_nothing_makes_room_for_has_no_planned_start():
    found = plans([2], [busy("r", {0: 2}, 1)], [job("huge", 5)])
    assert found["huge"].start_ns is None
    assert found["huge"].because.code == "never_free"


def test_level_then_age_with_priority_decides_and_the_starved_come_first():
    policy = Backfill(age_ns=HOUR, starved_ns=10 * HOUR)
    jobs = [
        job("new", 1, submitted_ns=19 * HOUR),
        job("wanted", 1, submitted_ns=19 * HOUR, priority=3),
        job("old", 1, submitted_ns=17 * HOUR),
        job("low", 1, submitted_ns=11 * HOUR, level="low"),
        job("top", 1, submitted_ns=20 * HOUR, level="high"),
        job("starved", 1, submitted_ns=10 * HOUR, level="low"),
    ]
    order = [d.job for d in in_order(jobs, 20 * HOUR, policy)]
    assert order == ["starved", "top", "wanted", "old", "new", "low"]


def test_a_job_that_outlived_its_estimate_is_expected_to_go_on_for_a_while():
    late = busy("r", {0: 1}, 1)
    assert expected_end_ns(late, HOUR // 2, HOUR) == HOUR
    assert expected_end_ns(late, HOUR, HOUR) == HOUR + HOUR // 2 + 1
    assert expected_end_ns(late, 20 * HOUR, HOUR) > 20 * HOUR
    assert expected_end_ns(Running("r", "q", "low", 0, {0: 1}, (0,)), 0, 3 * HOUR) == 3 * HOUR


def test_with_many_ends_a_plan_may_be_late_but_never_early():
    ends = [(k * S, {0: 1}) for k in range(1, 1001)]
    coarse, fine = (
        FreeProfile(np.array([0]), 0, ends, rows_most=10),
        FreeProfile(np.array([0]), 0, ends, rows_most=2000),
    )
    for ranks in (1, 17, 500, 1000):
        late, exact = (p.earliest(ranks, 1, S, anywhere(ranks)) for p in (coarse, fine))
        assert late is not None and exact is not None
        assert exact.start_ns == ranks * S <= late.start_ns <= exact.start_ns + 100 * S
    assert len(coarse) == 11


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), max_size=8),
    st.sampled_from(["easy", "conservative"]),
)
def test_plans_never_use_more_than_there_is_and_are_the_same_again(free, held, jobs, rule):
    running = [busy(f"r{k}", {n % len(free): d}, h) for k, (h, d, n) in enumerate(held)]
    demands = [job(f"j{k}", ranks, hours) for k, (ranks, hours) in enumerate(jobs)]
    found = plan(np.array(free), running, demands, fits, 0, Backfill(rule))
    again = plan(np.array(free), running, demands, fits, 0, Backfill(rule))
    assert [(p.job, p.start_ns, p.now) for p in found] == [(p.job, p.start_ns, p.now) for p in again]
    hours = {d.job: d.estimate_ns or 0 for d in demands}
    kept = [p for p in found if p.start_ns is not None and (p.now or p.reserved)]
    times = sorted({p.start_ns for p in kept if p.start_ns is not None})
    for at in times:
        room = np.array(free)
        for run in running:
            if (run.estimate_ns or 0) <= at:
                for node, devices in run.devices.items():
                    room[node] += devices
        for p in kept:
            if (
                p.start_ns is not None
                and p.counts is not None
                and p.start_ns <= at < p.start_ns + hours[p.job]
            ):
                room = room - p.counts
        assert (room >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 3)), max_size=6))
def test_a_profile_is_the_sum_of_what_is_taken(slots):
    profile = FreeProfile(np.array([20]), 0, [(10, {0: 5}), (30, {0: 5})])
    for start, length, ranks in slots:
        profile.take(StartSlot(start, np.array([ranks])), 1, length)
    for at in range(80):
        want = 20 + 5 * (at >= 10) + 5 * (at >= 30)
        want -= sum(ranks for start, length, ranks in slots if start <= at < start + length)
        assert int(profile.room(at, 1, 1)[0]) == want


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 4)), max_size=3),
    st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 14), st.integers(0, 12)),
)
def test_the_earliest_start_is_the_first_of_all_that_could_be_tried(free, ends, slots, asked):
    profile = FreeProfile(np.array(free), 0, [(at, {node: count}) for at, node, count in ends])
    for at, length, ranks in slots:
        taken = profile.earliest(ranks, 1, length, anywhere(ranks), at)
        if taken is not None:
            profile.take(taken, 1, length)
    ranks, each, length, after = asked
    found = profile.earliest(ranks, each, length, anywhere(ranks), after)
    starts = sorted({max(at, after) for at in [*profile.times, after]})
    first = next((at for at in starts if int(profile.room(at, length, each).sum()) >= ranks), None)
    assert (None if found is None else found.start_ns) == first


@given(
    st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 30)), max_size=12),
    st.sets(st.integers(0, 11)),
    st.integers(0, 60),
)
def test_expected_ends_stay_in_order_as_jobs_come_and_go(rows, gone, now):
    runs = [
        Running(f"r{k}", "q", "low", start, {0: 1}, (0,), estimate_ns=length)
        for k, (start, length) in enumerate(rows)
    ]
    ends = Ends(runs[::2])
    for run in runs[1::2]:
        ends.add(run)
    left = [run for k, run in enumerate(runs) if k not in gone]
    for k in gone & set(range(len(runs))):
        ends.remove(runs[k])
    expected = sorted((expected_end_ns(run, now, 20), run.job) for run in left)
    assert [(end, run.job) for end, run in ends.after(now, 20)] == expected


def test_a_job_that_is_expected_to_take_no_time_still_takes_its_devices():
    found = plans([4], [], [job("a", 4, 0), job("b", 4, 0)])
    assert found["a"].now
    assert not found["b"].now
