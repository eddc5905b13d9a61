"""The order inside a queue: classes of service, turns, and who is stopped for whom."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.fleet.queues import Order, QueueSpec
from unidle.place.model import Backfill, Demand
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.order import CLASSES_US, QueueTurns, next_class_us, service_class
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
    turns.end("a")
    turns.come(1, 50)
    assert list(turns.late(1, 1_000)) == ["b", "c"]
    assert turns.behind_ns("b", 80) == 30
    turns.waited("b", ((1, 60), (70, None)))
    assert turns.behind_ns("b", 80) == 10 + 10, "while it ran it did not fall behind"


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
            turns.end(gone)
            del open_jobs[gone]
            turns.come(1, at)
        come = sorted(turns.late(1, 1_000))
        assert sorted(come) == sorted(open_jobs)[: len(come)], "the first ones"
        assert sum(open_jobs[job] for job in come) <= 8
