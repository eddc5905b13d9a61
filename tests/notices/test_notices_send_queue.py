"""What a channel delivers when: order, back-off, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notices.made import notice
from unidle.notices.model import Notice
from unidle.notices.send_queue import (
    PENDING_MOST,
    Delivery,
    DeliveryRecord,
    QueuedNotice,
    SendQueue,
    backoff_s,
)

DONE, AGAIN, REFUSED = (
    Delivery("done"),
    Delivery("again", "answered 500"),
    Delivery("refused", "answered 404"),
)


class Bench:
    """A line with a clock that the test moves."""

    def __init__(self, *notices: Notice) -> None:
        self.now_s, self.record = 0.0, DeliveryRecord()
        self.line = SendQueue(list(notices), self.record, clock=lambda: self.now_s, chance=lambda: 0.0)

    def take(self) -> QueuedNotice | None:
        """What may be sent now; None where that is nothing."""
        if self.line._next()[0] is None:
            return None
        return self.line.take()

    def wait_s(self) -> float | None:
        return self.line._next()[1]

    def pending(self) -> list[Notice]:
        return self.line.snapshot()[1]


def seqs(bench: Bench) -> list[int]:
    """Everything that can be taken at once, left busy."""
    found = []
    while (entry := bench.take()) is not None:
        found.append(entry.notice.seq)
    return found


def test_of_one_subject_one_is_under_way_and_of_several_several() -> None:
    assert seqs(Bench(notice(1, "a"), notice(2, "a"), notice(3, "b"), notice(4, "b"))) == [1, 3]


def test_the_next_of_a_subject_goes_once_the_one_before_was_taken() -> None:
    bench = Bench(notice(1, "a"), notice(2, "a"))
    first = bench.take()
    assert first is not None
    assert bench.take() is None
    bench.line.settle(first, DONE)
    assert seqs(bench) == [2]


def test_a_failing_channel_is_tried_one_at_a_time_and_ever_later() -> None:
    bench = Bench(*(notice(k, f"n{k}") for k in range(3)))
    waits = []
    for _ in range(15):
        entry = bench.take()
        assert entry is not None
        if bench.line._state.failures:
            assert bench.take() is None
        bench.line.settle(entry, AGAIN)
        assert bench.take() is None
        wait_s = bench.wait_s()
        assert wait_s is not None
        waits.append(wait_s)
        bench.now_s += wait_s
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600, 600, 600]
    assert sum(waits) > 3600
    entry = bench.take()
    assert entry is not None
    bench.line.settle(entry, DONE)  # it is back
    assert len(seqs(bench)) == 2
    assert (bench.record.sent, bench.record.tries, bench.record.error) == (1, 16, "answered 500")


def test_failures_at_the_same_time_count_as_one() -> None:
    bench = Bench(*(notice(k, f"n{k}") for k in range(4)))
    entries = [bench.take() for _ in range(4)]
    bench.now_s = 5.0
    for entry in entries:
        assert entry is not None
        bench.line.settle(entry, AGAIN)
    assert bench.wait_s() == 1.0


def test_what_the_receiver_asks_for_is_kept() -> None:
    bench = Bench(notice(1))
    entry = bench.take()
    assert entry is not None
    bench.line.settle(entry, Delivery("again", "answered 429", 90.0))
    assert bench.wait_s() == 90.0
    bench.now_s = 90.0
    assert seqs(bench) == [1]


def test_a_notice_that_is_never_taken_does_not_keep_back_the_others() -> None:
    bench = Bench(notice(0, "poison"), *(notice(k, f"n{k}") for k in range(1, 4)))
    sent = []
    for _ in range(20):
        bench.now_s += 601.0
        entry = bench.take()
        if entry is None:
            break
        if entry.notice.subject == "poison":
            bench.line.settle(entry, AGAIN)
        else:
            sent.append(entry.notice.seq)
            bench.line.settle(entry, DONE)
    assert sent == [1, 2, 3]
    assert [one.seq for one in bench.pending()] == [0]


def test_what_is_refused_for_good_is_not_tried_again() -> None:
    bench = Bench(notice(1, "a"), notice(2, "a"))
    entry = bench.take()
    assert entry is not None
    bench.line.settle(entry, REFUSED)
    assert seqs(bench) == [2]
    assert (bench.record.refused, bench.record.error) == (1, "answered 404")
    assert [past.outcome for past in bench.record.recent] == ["refused"]


def test_a_summary_goes_after_what_is_older_and_before_what_is_newer() -> None:
    bench = Bench(notice(1, "a"), notice(2, "fleet", kind="summary"), notice(3, "b"))
    first = bench.take()
    assert first is not None
    assert first.notice.seq == 1
    assert bench.take() is None
    bench.line.settle(first, DONE)
    second = bench.take()
    assert second is not None
    assert second.notice.seq == 2
    assert bench.take() is None
    bench.line.settle(second, DONE)
    assert seqs(bench) == [3]


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_chance_spreads_the_tries_and_never_makes_them_later(chance: float) -> None:
    waits = [backoff_s(k, chance) for k in range(1, 2000)]
    assert all(0.5 * backoff_s(k, 0.0) <= wait <= backoff_s(k, 0.0) for k, wait in enumerate(waits, 1))
    assert max(waits) <= 600


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["put", "take", "done", "again"])), max_size=200)
)
def test_nothing_is_lost_and_a_subject_is_never_out_of_order(steps: list[tuple[int, str]]) -> None:
    bench, n = Bench(), 0
    busy: list[QueuedNotice] = []
    told: list[Notice] = []
    for subject, step in steps:
        bench.now_s += 1000.0
        if step == "put":
            n += 1
            bench.line.put(notice(n, f"n{subject}"))
        elif step == "take" and (entry := bench.take()) is not None:
            assert entry.notice.subject not in {one.notice.subject for one in busy}
            busy.append(entry)
        elif step in ("done", "again") and busy:
            entry = busy.pop(subject % len(busy))
            bench.line.settle(entry, DONE if step == "done" else AGAIN)
            told += [entry.notice] if step == "done" else []
    assert sorted([one.seq for one in told] + [one.seq for one in bench.pending()]) == list(range(1, n + 1))
    for subject in {one.subject for one in told}:
        of = [one.seq for one in told if one.subject == subject]
        assert of == sorted(of)


@given(st.integers(1, 2000), st.integers(0, 4))
def test_a_channel_that_is_down_holds_a_bounded_number_and_every_change_is_counted(
    count: int, under_way: int
) -> None:
    bench = Bench()
    entries = []
    for k in range(count):
        bench.line.put(notice(k, f"n{k}"))
        if k < under_way and (entry := bench.take()) is not None:
            entries.append(entry)
    pending = bench.pending()
    assert len(pending) <= PENDING_MOST
    assert sum(one.count for one in pending) == count
    assert pending[-1].seq == count - 1
    for entry in entries:
        assert entry.notice in pending  # what is under way is not summed up
        bench.line.settle(entry, DONE)
    assert sum(one.count for one in bench.pending()) == count - len(entries)
