"""The order inside a queue: classes of service, turns, and who is stopped for whom."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.fleet.queues import Order, QueueSpec
from unidle.place.model import Backfill, Demand
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.order import CLASSES_US, Came, QueueTurns, next_class_us, service_class
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.tree import QueueTree

HOUR_US = 3_600_000_000
EIGHT = ((0,), (8,))  # what the root and one queue may count on


@pytest.mark.parametrize(
    ("served_us", "expected"),
    [
        (0, 0),
        (HOUR_US // 2 - 1, 0),
        (HOUR_US // 2, 1),
        (4 * HOUR_US, 2),
        (32 * HOUR_US, 3),
        (256 * HOUR_US, 4),
    ],
)
def test_a_job_with_more_service_is_in_a_later_class(served_us: int, expected: int) -> None:
    assert service_class("attained", served_us) == expected
    assert service_class("fair", served_us) == expected
    assert service_class("fifo", served_us) == 0


def test_a_run_time_that_is_given_counts_until_the_job_has_run_for_longer() -> None:
    short, long = service_class("predicted", 0, 60_000_000), service_class("predicted", 0, 100 * HOUR_US)
    assert short < long
    assert service_class("predicted", 100 * HOUR_US, 60_000_000) == long
    assert service_class("predicted", 0, None) <= short
    assert service_class("attained", 0, 100 * HOUR_US) == short


def waiting_line(order: Order, *demands: Demand) -> list[str]:
    books = FairShare(QueueTree.of((QueueSpec("a", order=order),), ("gpu",)), (8_000,), 0)
    waiting = PendingJobs(books, Backfill())
    for demand in demands:
        waiting.add(demand)
    return [demand.job for demand in waiting.of(1, 0)]


def test_a_prediction_sorts_jobs_of_a_class_and_one_that_came_back_stands_where_it_was() -> None:
    minute_ns = 60_000_000_000
    new = Demand("new", "a", "low", 1, 1, (1_000,), 5, guess_ns=600 * minute_ns)
    short = Demand("short", "a", "low", 1, 1, (1_000,), 7, guess_ns=minute_ns)
    served = Demand("served", "a", "low", 1, 1, (1_000,), 9, served_us=HOUR_US, came_ns=1, guess_ns=1)
    again = Demand("again", "a", "low", 1, 1, (1_000,), 8, came_ns=2, guess_ns=600 * minute_ns)
    assert waiting_line("predicted", new, short, served, again) == ["short", "again", "new", "served"]
    assert waiting_line("attained", new, short, served, again) == ["again", "new", "short", "served"]
    assert waiting_line("fifo", new, short, served, again) == ["new", "short", "again", "served"]


def test_a_job_that_is_not_stopped_keeps_its_place_when_it_comes_back_after_a_fault() -> None:
    back = Demand("back", "a", "medium", 1, 1, (1_000,), 9, served_us=500 * HOUR_US, came_ns=1)
    other = Demand("other", "a", "medium", 1, 1, (1_000,), 3)
    assert waiting_line("attained", back, other) == ["back", "other"]


@given(st.integers(0, 100 * HOUR_US), st.sampled_from(["attained", "predicted", "fair"]))
def test_the_next_class_begins_where_it_is_said(served_us: int, order: str) -> None:
    edge = next_class_us(order, served_us)  # type: ignore[arg-type]
    here = service_class(order, served_us)  # type: ignore[arg-type]
    if edge is None:
        assert served_us >= CLASSES_US[-1]
        return
    assert service_class(order, edge - 1) == here < service_class(order, edge)  # type: ignore[arg-type]


def test_a_turn_comes_when_all_before_it_fit_with_it() -> None:
    turns = QueueTurns(EIGHT)
    for at, (job, size) in enumerate([("a", 6), ("b", 4), ("c", 2)]):
        turns.see(job, 1, at, (size,), 100)
        turns.waited(job, ((at, None),))
        turns.come(1, at)
    assert list(turns.late(1, 1_000)) == ["a"]
    assert turns.behind_ns("b", 100) == 0, "a and b do not fit together"
    turns.waited("a", ((0, 10),))
    turns.end("a", 10)
    turns.come(1, 50)
    assert list(turns.late(1, 1_000)) == ["b", "c"]
    assert turns.behind_ns("b", 80) == 30
    turns.waited("b", ((1, 60), (70, None)))
    assert turns.behind_ns("b", 80) == 10 + 10, "while it ran it did not fall behind"


def test_the_few_jobs_with_the_most_service_may_fall_behind_further() -> None:
    hour_ns, bound_ns = 3_600_000_000_000, 12 * 3_600_000_000_000
    turns = QueueTurns(((0,), (8_000,)), bound_ns)
    for k in range(200):  # of so many jobs one may
        turns.see(f"s{k}", 1, k, (1_000,), bound_ns // 2)
        turns.waited(f"s{k}", ((k, k), (k + hour_ns, None)))
        turns.end(f"s{k}", k + hour_ns)
    at_ns = 100 * hour_ns
    for name, ran_h in (("long", 50), ("shorter", 40), ("short", 1)):
        turns.see(name, 1, 300, (1_000,), bound_ns // 2)
        turns.waited(name, ((300, 300), (300 + ran_h * hour_ns, None)))
    turns.come(1, 300)
    assert set(turns.late(1, at_ns)) == {"shorter", "short"}
    assert not turns.is_late("long", at_ns)
    far_ns = turns.next_late_ns(1, at_ns)
    assert far_ns == 300 + 50 * hour_ns + 5 * bound_ns
    assert turns.is_late("long", far_ns)


def test_a_job_larger_than_the_queue_deserves_has_its_turn_once_it_is_the_first() -> None:
    turns = QueueTurns(EIGHT)
    turns.see("large", 1, 0, (16,), 100)
    turns.waited("large", ((0, None),))
    turns.come(1, 5)
    assert turns.behind_ns("large", 9) == 4


Events = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(Events)
def test_jobs_whose_turn_has_come_fit_together(drawn: list[tuple[int, int]]) -> None:
    turns, open_jobs = QueueTurns(EIGHT), dict[str, int]()
    for at, (size, lives) in enumerate(drawn):
        name = f"j{at:02}"
        turns.see(name, 1, at, (size,), 100)
        turns.waited(name, ((at, None),))
        open_jobs[name] = size
        turns.come(1, at)
        if lives < 20 and len(open_jobs) > 1:
            gone = sorted(open_jobs)[lives % len(open_jobs)]
            turns.end(gone, at)
            del open_jobs[gone]
            turns.come(1, at)
        come = sorted(turns.late(1, 1_000))
        assert sorted(come) == sorted(open_jobs)[: len(come)], "the first ones"
        assert sum(open_jobs[job] for job in come) <= 8


def one_job(name: str, submitted_ns: int, order: int, ended_ns: int | None = None) -> SimpleNamespace:
    """What turns read of a job; one that has ended ran from its submission on."""
    ran = () if ended_ns is None else (SimpleNamespace(placed_ns=submitted_ns, ended_ns=ended_ns),)
    return SimpleNamespace(
        id=name, submitted_ns=submitted_ns, order=order, terminal=ended_ns is not None, ended_ns=ended_ns, attempts=ran
    )  # fmt: skip


@pytest.mark.parametrize("moment", [("all", "urgent"), ("urgent", "all")])
@pytest.mark.parametrize("portions", [True, False])
def test_turns_do_not_depend_on_what_came_first_in_one_moment(
    moment: tuple[str, str], portions: bool
) -> None:
    """Of eight devices one job has all, and one for six waits; at 50, it ends and one for six of higher priority comes."""
    hour_ns = HOUR_US * 1_000
    jobs = {"all": one_job("all", 0, 0), "waits": one_job("waits", 20, 1)}
    came = {
        "all": Came(1, 0, (8,), hour_ns),
        "waits": Came(1, 20, (6,), hour_ns),
        "urgent": Came(1, -5, (6,), hour_ns),
    }
    turns = QueueTurns(EIGHT, hour_ns)

    def follow(*names: str, now_ns: int) -> None:
        seen = (jobs[name] for name in dict.fromkeys((*turns.held, *names)))
        turns.follow(seen, lambda job: came[job.id], now_ns)  # type: ignore[arg-type]

    if portions:
        follow("all", now_ns=0)
        follow("waits", now_ns=20)
    for name in moment:
        jobs[name] = one_job("all", 0, 0, ended_ns=50) if name == "all" else one_job("urgent", 50, 2)
        if portions:
            follow(name, now_ns=50)
            assert turns.next_late_ns(1, 50) == 50 + hour_ns // 2  # by then it is known whose turn has come
    follow(*jobs, now_ns=60)
    assert not turns.held
    assert [turns.behind_ns(name, 80) for name in ("urgent", "waits")] == [30, 0]
