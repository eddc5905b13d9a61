"""What every store keeps, whatever it is made of."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unidle.errors import LeaseLost, StoreError, StoreHeld
from unidle.store.memory import MemoryStore
from unidle.store.open import open_store
from unidle.store.protocol import Bookmark, NewEvent, Segment, Snapshot, StoredEvent, ViewRow


def test_a_new_log_is_empty(store):
    assert store.last() == (0, 0)
    assert list(store.read()) == []
    assert store.requests() == []
    assert store.holder() is None


def test_events_come_back_in_order_and_unchanged(store, event):
    lease = store.acquire("test")
    assert store.append(lease, [event(1), event(2)]) == 2
    assert store.append(lease, [event(3, body='{"text": "gr\u00fc\u00df \U0001f600"}\n'.encode())]) == 3
    assert list(store.read()) == [
        StoredEvent(1, *event(1)),
        StoredEvent(2, *event(2)),
        StoredEvent(3, *event(3, body='{"text": "gr\u00fc\u00df \U0001f600"}\n'.encode())),
    ]
    assert all(type(found) is StoredEvent and type(found.body) is bytes for found in store.read())
    assert store.last() == (3, 30)


def test_numbers_of_64_bits_survive(store):
    lease = store.acquire("test")
    big = NewEvent(2**63 - 1, "s", 2**63 - 1, "k", b"{}")
    store.append(lease, [big])
    assert list(store.read()) == [StoredEvent(1, *big)]


def test_reading_can_start_anywhere_and_stop_anywhere(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(n) for n in range(1, 2501)])  # more than one page
    for after, limit, expected in [
        (0, 3, [1, 2, 3]),
        (2498, None, [2499, 2500]),
        (2498, 1, [2499]),
        (2500, None, []),
        (9000, None, []),
        (5, 0, []),
    ]:
        assert [found.seq for found in store.read(after, limit)] == expected
    assert [found.seq for found in store.read()] == list(range(1, 2501))


def test_a_reader_meets_events_that_are_appended_while_it_reads(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    reader = store.read()
    assert next(reader).seq == 1
    store.append(lease, [event(2)])
    assert [found.seq for found in store.read()] == [1, 2]


def test_an_append_of_nothing_changes_nothing(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    assert store.append(lease, []) == 1
    assert store.last() == (1, 10)


def test_an_event_older_than_the_last_one_is_refused_and_nothing_of_its_batch_is_kept(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(1, time_ns=100)])
    with pytest.raises(StoreError, match="older than the one before"):
        store.append(lease, [event(2, time_ns=99)])
    with pytest.raises(StoreError, match="older than the one before"):
        store.append(lease, [event(2, time_ns=200), event(3, time_ns=199)])
    assert store.append(lease, [event(2, time_ns=100)]) == 2
    assert [found.time_ns for found in store.read()] == [100, 100]


def test_a_batch_that_fails_halfway_leaves_no_trace(store, event):
    lease = store.acquire("test")
    request = store.request("submit", b"{}")

    def broken():
        yield from (event(n) for n in range(1, 1800))
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.append(lease, broken(), done_requests=[request])
    assert store.last() == (0, 0)
    assert list(store.read()) == []
    assert [found.id for found in store.requests()] == [request]
    assert store.append(lease, [event(1)]) == 1


# The lease


def test_a_second_writer_is_told_who_holds_the_store(place):
    first, second = place.open(), place.open()
    first.acquire("unidle up")
    assert "unidle up" in first.holder()
    with pytest.raises(StoreHeld, match="held by unidle up"):
        second.acquire("unidle run")


def test_a_released_store_can_be_taken_and_the_old_lease_is_fenced_off(place, event):
    first, second = place.open(), place.open()
    old = first.acquire("first")
    first.append(old, [event(1)])
    first.release(old)
    assert first.holder() is None
    with pytest.raises(LeaseLost):
        first.append(old, [event(2)])
    new = second.acquire("second")
    assert new.token > old.token
    second.append(new, [event(2)])
    for use in (
        lambda: first.append(old, [event(3)]),
        lambda: first.append(old, []),
        lambda: first.renew(old),
        lambda: first.save_snapshot(old, Snapshot(2, 1, b"x")),
        lambda: first.save_bookmark(old, Bookmark("notices", 1, b"x")),
        lambda: first.compact(old),
    ):
        with pytest.raises(LeaseLost):
            use()
    first.release(old)  # no error, and the new holder keeps it
    second.renew(new)
    assert [found.source_seq for found in second.read()] == [1, 2]


# The inbox


def test_requests_need_no_lease_and_leave_with_the_append_that_took_them_over(place, event):
    writer, client = place.open(), place.open()
    lease = writer.acquire("test")
    first = client.request("submit", b'{"job": 1}')
    second = client.request("cancel", b'{"job": 2}')
    assert [(r.id, r.kind, r.body) for r in writer.requests()] == [
        (first, "submit", b'{"job": 1}'),
        (second, "cancel", b'{"job": 2}'),
    ]
    writer.append(lease, [event(1)], done_requests=[first])
    assert [r.id for r in writer.requests()] == [second]
    writer.append(lease, [], done_requests=[second, 4711])
    assert writer.requests() == []
    assert client.request("submit", b"{}") > second  # an id never comes back


# What is derived


def segment(seq: int, body: bytes = b"PAR1") -> Segment:
    return Segment(0, seq, 7, seq * 10, seq * 10 + 5, 3, body)


def test_the_newest_snapshot_of_a_fold_version_is_kept(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(n) for n in range(1, 10)])
    assert store.load_snapshot(7) is None
    store.save_snapshot(lease, Snapshot(3, 7, b"three"))
    store.save_snapshot(lease, Snapshot(5, 7, b"five" * 100_000))
    store.save_snapshot(lease, Snapshot(4, 8, b"other"))
    assert store.load_snapshot(7) == Snapshot(5, 7, b"five" * 100_000)
    assert store.load_snapshot(8) == Snapshot(4, 8, b"other")
    store.save_snapshot(lease, Snapshot(5, 7, b"again"))
    assert store.load_snapshot(7) == Snapshot(5, 7, b"again")


def test_ended_jobs_are_kept_with_the_snapshot_that_leaves_them_out(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(n) for n in range(1, 10)])
    store.save_snapshot(
        lease, Snapshot(3, 7, b"s"), [], [ViewRow("job", "b", 1, b"B"), ViewRow("job", "a", 0, b"A")]
    )
    store.save_snapshot(
        lease, Snapshot(5, 7, b"s"), [], [ViewRow("job", "d", 3, b"D"), ViewRow("job", "c", 2, b"C" * 10**6)]
    )
    assert [(one.position, one.key) for one in store.view_rows(7, "job", 5)] == list(enumerate("abcd"))
    assert [one.key for one in store.view_rows(7, "job", 5, backwards=True)] == list("dcba")
    assert store.view_row(7, "job", 5, "c") == b"C" * 10**6
    # a reader of the snapshot before has the others in its view
    assert [one.body for one in store.view_rows(7, "job", 3)] == [b"A", b"B"]
    assert store.view_row(7, "job", 3, "c") is None
    assert store.view_row(8, "job", 5, "a") is None
    assert store.view_row(7, "job", 5, "e") is None
    store.save_snapshot(lease, Snapshot(9, 7, b"s"), [], [ViewRow("job", "a", 0, b"A again")])
    assert store.view_row(7, "job", 9, "a") == b"A again"
    assert store.has_view_rows(7, "job", 9, 4)
    assert not store.has_view_rows(7, "job", 9, 5)


def test_many_ended_jobs_are_streamed_in_order(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    jobs = [ViewRow("job", f"job {k}", k, b"%d" % k) for k in range(0, 6000, 2)]
    store.save_snapshot(lease, Snapshot(1, 7, b"s"), [], jobs)
    assert list(store.view_rows(7, "job", 1)) == jobs
    assert list(store.view_rows(7, "job", 1, backwards=True)) == jobs[::-1]


def test_segments_are_described_without_their_bodies(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(n) for n in range(1, 10)])
    store.save_snapshot(lease, Snapshot(4, 7, b"s"), [segment(2), segment(4, b"P" * 1_000_000)])
    found = store.segments(7)
    assert [(s.seq, s.fold_version, s.start_ns, s.end_ns, s.rows, s.body) for s in found] == [
        (2, 7, 20, 25, 3, None),
        (4, 7, 40, 45, 3, None),
    ]
    assert store.segment_body(found[0].id) == b"PAR1"
    assert store.segment_body(found[1].id) == b"P" * 1_000_000
    assert store.segments(8) == []
    with pytest.raises(StoreError, match="no such segment"):
        store.segment_body(found[1].id + 1)


def test_a_snapshot_and_its_segments_are_kept_together_or_not_at_all(store, event):
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    with pytest.raises(StoreError, match="body"):
        store.save_snapshot(lease, Snapshot(1, 7, b"s"), [segment(1), Segment(0, 1, 7, 0, 1, 1)])
    assert store.load_snapshot(7) is None
    assert store.segments(7) == []


def test_events_that_were_appended_survive_the_store_being_closed(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    store.append(lease, [event(1), event(2)])
    store.request("submit", b"{}")
    store.save_snapshot(lease, Snapshot(2, 7, b"s"), [segment(2)])
    store.close()
    again = durable.open(create=False)
    assert [found.seq for found in again.read()] == [1, 2]
    assert len(again.requests()) == len(again.segments(7)) == 1
    assert again.load_snapshot(7) == Snapshot(2, 7, b"s")
    assert again.holder() is None  # closing gave the lease back
    assert again.append(again.acquire("test"), [event(3)]) == 3


def test_a_store_opened_for_reading_reads_beside_the_writer_and_writes_nothing(durable, event):
    writer = durable.open()
    lease = writer.acquire("unidle up")
    writer.append(lease, [event(1)])
    reader = durable.open(create=False, read_only=True)
    writer.append(lease, [event(2)])
    assert [found.seq for found in reader.read()] == [1, 2]
    assert "unidle up" in reader.holder()
    for use in (
        lambda: reader.request("submit", b"{}"),
        lambda: reader.acquire("test"),
        lambda: reader.append(lease, [event(3)]),
    ):
        with pytest.raises(StoreError, match="reading only"):
            use()


events = st.builds(
    NewEvent,
    st.integers(0, 2**62),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.integers(-(2**62), 2**62),
    st.sampled_from(["rank_saw", "job_submitted", "x"]),
    st.binary(max_size=300),
)


@given(st.lists(st.lists(events, max_size=5), max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_events_come_back_as_they_were_given(batches):
    flat = sorted(found.time_ns for batch in batches for found in batch)
    times = iter(flat)
    batches = [[e._replace(time_ns=next(times)) for e in batch] for batch in batches]
    expected = [StoredEvent(seq, *e) for seq, e in enumerate((e for b in batches for e in b), 1)]
    with tempfile.TemporaryDirectory() as directory:
        for store in (MemoryStore(), open_store(str(Path(directory, "s.db")), create=True)):
            lease = store.acquire("test")
            for batch in batches:
                store.append(lease, batch)
            assert list(store.read()) == expected
            store.close()


# Bookmarks


def test_a_bookmark_is_kept_in_place_of_the_one_before_and_survives_compaction(store):
    assert store.load_bookmark("notices") is None
    lease = store.acquire("test")
    store.save_bookmark(lease, Bookmark("notices", 3, b"first"))
    store.save_bookmark(lease, Bookmark("other", 1, b""))
    store.save_bookmark(lease, Bookmark("notices", 7, b"second"))
    store.compact(lease)
    assert store.load_bookmark("notices") == Bookmark("notices", 7, b"second")
    assert store.load_bookmark("other") == Bookmark("other", 1, b"")
    assert list(store.faults()) == []
