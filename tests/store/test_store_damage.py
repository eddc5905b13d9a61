"""Damaged, foreign and truncated stores: one clear error, never other events than were appended."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unidle.errors import StoreDamaged, StoreError
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent, Segment, Snapshot, StoredEvent, ViewRow
from unidle.store.tools import check, export, import_

COUNT = 300


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A closed store of 300 events, a request, a snapshot, a segment and twenty ended jobs."""
    path = tmp_path_factory.mktemp("whole") / "store.db"
    store = open_store(str(path), create=True)
    lease = store.acquire("test")
    store.append(lease, [NewEvent(n, "rank 1", n, "rank_saw", b'{"n":%d}' % n) for n in range(1, COUNT + 1)])
    segment = Segment(0, 9, 7, 1, 2, 3, b"PAR1" * 100)
    ended = [ViewRow("job", f"job-{k}", k, b"ended" * 10) for k in range(20)]
    store.save_snapshot(lease, Snapshot(COUNT, 7, b"state" * 100), [segment], ended)
    store.request("submit", b'{"job": 1}')
    store.close()
    assert not path.with_name("store.db-wal").exists()
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "store.db"))


def change(path: Path, statement: str, *params: object) -> None:
    """Change a row behind the store's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, params).rowcount == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("time_ns", 78),
        ("source", "rank 2"),
        ("source_seq", 1),
        ("kind", "rank_sax"),
        ("body", b'{"n":78}'),
        ("body", "text"),
        ("time_ns", "text"),
        ("crc", 0),
    ],
)
def test_a_changed_field_is_told_by_the_number_of_its_event(copy, column, value):
    change(copy, f"UPDATE unidle_events SET {column} = ? WHERE seq = 77", value)
    with closing(open_store(str(copy), create=False)) as store:
        events = store.read()
        assert [next(events).seq for _ in range(76)] == list(range(1, 77))
        with pytest.raises(StoreDamaged, match=r"event 77: its checksum is wrong; .*unidle store check"):
            next(events)
        assert len(list(store.read(after=77))) == COUNT - 77
        report = check(store)
        assert not report.ok
        assert "event 77: its checksum is wrong" in report.problems


def test_a_missing_event_is_told(copy):
    change(copy, "DELETE FROM unidle_events WHERE seq = 77")
    with closing(open_store(str(copy), create=False)) as store:
        with pytest.raises(StoreDamaged, match="event 77: is missing"):
            list(store.read())
        assert "event 77: is missing from the log" in check(store).problems


def test_a_log_that_lost_its_end_is_told(copy):
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("DELETE FROM unidle_events WHERE seq > 290")
    with closing(open_store(str(copy), create=False)) as store:
        with pytest.raises(StoreDamaged, match="ends at event 290, but 300 were acknowledged"):
            export(store, io.BytesIO())
        with pytest.raises(StoreDamaged, match="ends at event 290, but 300 were acknowledged"):
            list(store.read())
        assert [e.seq for e in store.read(after=280, limit=5)] == [281, 282, 283, 284, 285]
        assert not check(store).ok
        # and nothing is put after the hole
        assert store.append(store.acquire("test"), [NewEvent(COUNT, "s", 1, "k", b"{}")]) == COUNT + 1
        assert not check(store).ok


def test_a_damaged_head_is_told_and_lets_nobody_write(copy):
    change(copy, "UPDATE unidle_writer SET last_seq = 299")
    with closing(open_store(str(copy), create=False)) as store:
        for use in (store.last, store.holder, lambda: store.acquire("test"), lambda: list(store.read())):
            with pytest.raises(StoreDamaged, match="head of the log is damaged"):
                use()
        assert not check(store).ok
        assert check(store).events == COUNT
        out = io.BytesIO()
        assert export(store, out) == COUNT
    out.seek(0)
    with closing(open_store(str(copy.with_name("new.db")), create=True)) as new:
        assert import_(new, out) == COUNT
        assert check(new).ok


def test_an_export_of_a_damaged_log_fails(copy):
    change(copy, "UPDATE unidle_events SET kind = 'x' WHERE seq = 77")
    with (
        closing(open_store(str(copy), create=False)) as store,
        pytest.raises(StoreDamaged, match="event 77: is damaged"),
    ):
        export(store, io.BytesIO())
    change(copy, "DELETE FROM unidle_events WHERE seq = 77")
    with (
        closing(open_store(str(copy), create=False)) as store,
        pytest.raises(StoreDamaged, match="event 77: is damaged"),
    ):
        export(store, io.BytesIO())


def test_a_damaged_snapshot_is_passed_over(copy):
    change(copy, "UPDATE unidle_snapshots SET body = ?", b"other")
    with closing(open_store(str(copy), create=False)) as store:
        assert store.load_snapshot(7) is None
        assert len(list(store.read())) == COUNT
        assert check(store).problems == ("snapshot 300: its checksum is wrong (it is skipped)",)


@pytest.mark.parametrize(
    ("column", "value"), [("body", b"others"), ("position", 99), ("seq", 1), ("key", "no")]
)
def test_a_damaged_record_of_an_ended_job_is_told(copy, column, value):
    change(copy, f"UPDATE unidle_view_rows SET {column} = ? WHERE position = 3", value)
    with closing(open_store(str(copy), create=False)) as store:
        with pytest.raises(StoreDamaged, match="its record is damaged"):
            store.view_row(7, "job", COUNT, "no" if column == "key" else "job-3")
        assert store.view_row(7, "job", COUNT, "job-4") == b"ended" * 10
        assert not store.has_view_rows(7, "job", COUNT, 20)
        assert store.has_view_rows(8, "job", COUNT, 0)
        [problem] = check(store).problems
        assert problem.endswith("its checksum is wrong (the next controller makes it again)")


@pytest.mark.parametrize(("column", "value"), [("body", b"PAR2"), ("end_ns", 4)])
def test_a_damaged_segment_is_told(copy, column, value):
    change(copy, f"UPDATE unidle_segments SET {column} = ?", value)
    with closing(open_store(str(copy), create=False)) as store:
        with pytest.raises(StoreDamaged, match="segment 1: its checksum is wrong"):
            store.segment_body(store.segments(7)[0].id)
        assert not check(store).ok


@pytest.mark.parametrize(
    ("column", "value"), [("body", b'{"job": 2}'), ("kind", b"\xff"), ("body", "text"), ("time_ns", "text")]
)
def test_a_damaged_request_is_passed_over_and_reported(copy, column, value):
    change(copy, f"UPDATE unidle_requests SET {column} = ?", value)
    with closing(open_store(str(copy), create=False)) as store:
        after = store.request("cancel", b"{}")
        assert [one.id for one in store.requests()] == [after]
        assert [one.id for one in store.damaged_requests()] == [1]
        assert "request 1: its checksum is wrong (it is passed over)" in check(store).problems


def test_a_request_whose_text_cannot_be_decoded_is_passed_over(copy):
    change(copy, "UPDATE unidle_requests SET kind = CAST(x'ff' AS TEXT)")
    with closing(open_store(str(copy), create=False)) as store:
        after = store.request("cancel", b"{}")
        assert [one.id for one in store.requests()] == [after]
        assert [one.id for one in store.damaged_requests()] == [1]


def test_a_body_that_is_not_json_is_found_by_the_check(copy):
    with closing(open_store(str(copy), create=False)) as store:
        store.append(store.acquire("test"), [NewEvent(COUNT, "s", 1, "k", b"{not JSON")])
        assert check(store).problems == ("event 301: its body is not JSON",)


def outcome(path: Path, *, read_only: bool = False) -> list[StoredEvent] | StoreError:
    """All events of a store, or the error in their place."""
    try:
        with closing(open_store(str(path), create=False, read_only=read_only)) as store:
            return list(store.read())
    except StoreError as error:
        return error


def everything(path: Path, *, read_only: bool) -> dict[str, object]:
    """All that a store holds; an error in the place of what it will not give."""
    found: dict[str, object] = {}
    try:
        with closing(open_store(str(path), create=False, read_only=read_only)) as store:
            asked = {
                "events": lambda: list(store.read()),
                "requests": lambda: (store.requests(), bool(store.damaged_requests())),
                "ended": lambda: list(store.view_rows(7, "job", COUNT)),
                "snapshot": lambda: store.load_snapshot(7),
                "segments": lambda: [(s, store.segment_body(s.id)) for s in store.segments(7)],
                "healthy": lambda: check(store).ok,
            }
            for name, ask in asked.items():
                try:
                    found[name] = ask()
                except StoreError as error:
                    found[name] = error
    except StoreError as error:
        found["opened"] = error
    return found


def test_a_flipped_byte_anywhere_is_told_or_changes_nothing(whole, tmp_path):
    data, dice, told = whole.read_bytes(), random.Random(3), 0
    expected = everything(whole, read_only=True)
    assert expected["healthy"] is True
    for number in range(400):
        at = dice.randrange(len(data))
        broken = bytearray(data)
        broken[at] ^= 1 << dice.randrange(8)
        path = tmp_path / f"{number}.db"
        path.write_bytes(broken)
        all_found = everything(path, read_only=dice.random() < 0.5)
        for name, found in all_found.items():
            if isinstance(found, StoreError):
                told += 1
                assert found.field, found
                assert found.remedy, found
            elif name == "snapshot":
                assert found in (expected[name], None), f"byte {at}"
            elif name == "ended":
                assert found == expected[name] or all_found["healthy"] is not True, f"byte {at}"
            elif name == "requests":
                assert found in (expected[name], ([], True)), f"byte {at}"
            elif name != "healthy":
                assert found == expected[name], f"byte {at}: {name}"
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()
    assert told > 50


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_a_truncated_file_is_told(copy, share):
    data = copy.read_bytes()
    copy.write_bytes(data[: int(len(data) * share)])
    found = outcome(copy)
    assert isinstance(found, StoreError)
    assert found.remedy


def test_a_torn_write_ahead_log_keeps_every_whole_append(tmp_path):
    """As after a power cut: the log's file ends anywhere."""
    source = tmp_path / "s.db"
    store = open_store(str(source), create=True)
    lease = store.acquire("test")
    ends = []
    wal = tmp_path / "s.db-wal"
    for n in range(1, 21):
        store.append(lease, [NewEvent(n, "s", n, "k", b'{"fill":"%s"}' % (b"x" * 3000)) for _ in range(2)])
        ends.append(wal.stat().st_size)
    database, log = source.read_bytes(), wal.read_bytes()
    store.close()
    dice = random.Random(5)
    for number in range(40):
        cut = dice.randrange(len(log) + 1)
        path = tmp_path / f"torn{number}.db"
        path.write_bytes(database)
        tail = log[:cut] + dice.choice([b"", bytes(100), dice.randbytes(5000)])
        path.with_name(path.name + "-wal").write_bytes(tail)
        whole = sum(end <= cut for end in ends)
        found = outcome(path)
        if isinstance(found, StoreError):
            assert "there is no store" in str(found)  # cut before the tables were there
            assert cut < ends[0]
            continue
        assert [event.seq for event in found] == list(range(1, 2 * whole + 1))
        with closing(open_store(str(path), create=False)) as again:
            assert check(again).ok
            with again.transaction():  # the holder is this process, which lives
                again.writer.set(again.writer.read(), holder=None)
            assert again.append(again.acquire("test"), [NewEvent(99, "s", 1, "k", b"{}")]) == 2 * whole + 1


FOREIGN = [
    b"",
    b"x",
    b"name: job\n",
    b"\x7fELF" + bytes(5000),
    bytes(5000),
    b"SQLite format 3\0",
    b"SQLite format 3\0" * 400,
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    for create, read_only in [(False, False), (False, True), *([(True, False)] if content else [])]:
        with pytest.raises(StoreError, match=r"notes: .*; "):
            open_store(str(path), create=create, read_only=read_only)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE birds (name TEXT)")
    content = path.read_bytes()
    for create in (False, True):
        with pytest.raises(StoreError, match="not a store of unidle"):
            open_store(str(path), create=create)
    assert path.read_bytes() == content


def test_a_store_of_a_newer_version_is_refused_and_left_alone(copy):
    change(copy, "UPDATE unidle_schema SET version_num = '0999'")
    content = copy.read_bytes()
    for create, read_only in [(False, False), (True, False), (False, True)]:
        with pytest.raises(StoreError, match=r"newer version .*'0999'.*upgrade unidle"):
            open_store(str(copy), create=create, read_only=read_only)
    assert copy.read_bytes() == content
