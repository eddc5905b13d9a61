"""Damaged SQLite files: every row that is whole is saved, and nothing that was never written."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unidle.errors import BadInput, StoreError, StoreHeld
from unidle.store import file_swap as swap
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf
from unidle.store.protocol import Bookmark, NewEvent, StoredEvent
from unidle.store.salvage import Salvage, of_file, of_rows
from unidle.store.tools import check, fill, import_, write_export

COUNT = 600


def body(n: int) -> bytes:
    return b'{"n":%d,"fill":"%s"}' % (n, b"x" * (9000 if n % 97 == 0 else n % 50))


EVENTS = [StoredEvent(n, n * 10, "rank 1", n, "rank_saw", body(n)) for n in range(1, COUNT + 1)]


ARCHIVES = {
    "one-a": [b"small"],
    "two-b": [random.Random(1).randbytes(20_000), random.Random(2).randbytes(9_000), b"end"],
    "six-c": [b"c" * 5000],
}


def archives(found: Salvage) -> dict[str, list[bytes]]:
    return {job: list(parts()) for job, parts in found.archives.items()}


def written(path: Path) -> None:
    store = open_store(str(path), create=True)
    lease = store.acquire("test")
    done = [store.request("submit", b'{"job": "%d"}' % k + b" " * 500) for k in range(40)]
    store.append(lease, [NewEvent(*event[1:]) for event in EVENTS], done_requests=done)
    store.save_bookmark(lease, Bookmark("notices", 5, b"here"))
    ProfileShelf(store, lease.token).add([ProfileRow("j", 1, 1, 0, 5, 2, b"p" * 100)])
    for job, parts in ARCHIVES.items():
        ArchiveShelf(store, lease.token).write(job, parts)
    store.request("cancel", b'{"job": "a"}')
    store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "s.db"
    written(path)
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "s.db"))


def test_of_a_whole_file_everything_is_found(copy: Path) -> None:
    before = copy.read_bytes()
    found = of_file(copy)
    assert list(found.events()) == EVENTS
    assert (found.last_seq, found.last_time_ns) == (COUNT, COUNT * 10)
    assert [(one.kind, one.body) for one in found.requests] == [
        ("cancel", b'{"job": "a"}')
    ]  # not those that are done
    assert found.bookmarks == [Bookmark("notices", 5, b"here")]
    assert [one.body for one in found.profiles] == [b"p" * 100]
    assert archives(found) == ARCHIVES
    assert (found.traces, found.notes, found.holder) == ({}, [], None)
    assert copy.read_bytes() == before
    assert sorted(file.name for file in copy.parent.iterdir()) == ["s.db"]


def test_what_stands_in_the_log_counts_and_what_was_not_committed_does_not(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = open_store(str(path), create=True)
    lease = store.acquire("unidle up")
    store.append(lease, [NewEvent(*event[1:]) for event in EVENTS[:300]])
    store.append(lease, [NewEvent(*event[1:]) for event in EVENTS[300:400]])
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / f"copy.db{suffix}")
    store.close()
    found = of_file(tmp_path / "copy.db")
    assert list(found.events()) == EVENTS[:400] and found.notes == []
    assert '"unidle up"' in (found.holder or "")
    log = bytearray((tmp_path / "copy.db-wal").read_bytes())
    log[-1] ^= 1  # the last commit is torn: SQLite would pass over it, too
    (tmp_path / "copy.db-wal").write_bytes(log)
    found = of_file(tmp_path / "copy.db")
    assert list(found.events()) == EVENTS[:300]
    assert found.last_seq == 300
    [note] = found.notes
    assert "ends with a part of a commit" in note
    (tmp_path / "copy.db-wal").write_bytes(
        log[:-5000]
    )  # the last frame is gone, and a part of the one before
    assert of_file(tmp_path / "copy.db").notes == [note]


def test_a_damaged_frame_in_the_middle_of_the_log_costs_only_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = open_store(str(path), create=True)
    lease = store.acquire("test")
    for k in range(6):
        store.append(lease, [NewEvent(*event[1:]) for event in EVENTS[k * 50 : k * 50 + 50]])
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / f"copy.db{suffix}")
    store.close()
    log = bytearray((tmp_path / "copy.db-wal").read_bytes())
    log[len(log) // 2] ^= 0x10
    (tmp_path / "copy.db-wal").write_bytes(log)
    found = of_file(tmp_path / "copy.db")
    assert found.last_seq == 300
    assert len(found.seqs) > 200
    assert all(event == EVENTS[event.seq - 1] for event in found.events())


def test_a_flipped_byte_anywhere_costs_little_and_changes_nothing(whole: Path, tmp_path: Path) -> None:
    data, dice = whole.read_bytes(), random.Random(11)
    path, saved = tmp_path / "s.db", 0
    for _ in range(150):
        broken = bytearray(data)
        broken[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(broken)
        found = of_file(path)
        assert all(event == EVENTS[event.seq - 1] for event in found.events())
        assert len(found.seqs) >= COUNT - 100  # at most the rows of one page
        assert found.last_seq in (COUNT, None)
        assert [one.kind for one in found.requests] in (["cancel"], [])
        saved += len(found.seqs) == COUNT
    assert saved > 50


@pytest.mark.parametrize("fill_with", [b"\0", b"\xff", None])
def test_each_page_can_be_lost(whole: Path, tmp_path: Path, fill_with: bytes | None) -> None:
    data, dice, path = whole.read_bytes(), random.Random(5), tmp_path / "s.db"
    for at in range(0, len(data), 4096):
        page = dice.randbytes(4096) if fill_with is None else fill_with * 4096
        path.write_bytes(data[:at] + page + data[at + 4096 :])
        found = of_file(path)
        assert len(found.seqs) >= COUNT - 100
        assert all(event == EVENTS[event.seq - 1] for event in found.events())


def test_a_torn_last_page_costs_only_what_stood_there(copy: Path) -> None:
    data = copy.read_bytes()
    for cut in (1, 2000, 4096, 10_000):
        copy.write_bytes(data[:-cut])
        found = of_file(copy)
        assert len(found.seqs) >= COUNT - 300
        assert all(event == EVENTS[event.seq - 1] for event in found.events())


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0" * 500, bytes(100_000)])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.db").write_bytes(content)
    with pytest.raises(StoreError, match="no row of a store of unidle"):
        of_file(tmp_path / "s.db")


def test_a_damaged_event_leaves_its_trace(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("UPDATE unidle_events SET crc = 0 WHERE seq = 77")
        connection.execute("UPDATE unidle_requests SET crc = 0")
    found = of_file(copy)
    assert found.seqs == [n for n in range(1, COUNT + 1) if n != 77]
    assert found.traces[77] == ("rank_saw", EVENTS[76].body)
    assert found.requests == []
    assert any("its checksum is wrong" in note for note in found.notes)


def test_a_new_store_is_filled_with_all_that_was_saved(copy: Path, tmp_path: Path) -> None:
    found = of_file(copy)
    with closing(open_store(str(tmp_path / "new.db"), create=True)) as new:
        fill(new, found, found.events())
        assert check(new).ok
        assert list(new.read()) == EVENTS
        assert new.load_bookmark("notices") == Bookmark("notices", 5, b"here")
        (request,) = new.requests()
        assert request[1:] == found.requests[0][1:]
        assert [info.n_bytes for info in ProfileShelf(new).infos("j", 9)] == [100]
        with pytest.raises(StoreError, match="not empty"):
            fill(new, found, found.events())


def test_a_store_that_another_connection_has_open_is_not_touched(copy: Path) -> None:
    store = open_store(str(copy), create=False)
    with pytest.raises(StoreHeld, match="another process has the store open"), swap.alone(copy):
        pass
    store.close()
    with swap.alone(copy):
        pass


def test_a_damaged_file_stays_under_another_name(copy: Path, tmp_path: Path) -> None:
    damaged = copy.read_bytes()
    Path(f"{copy}-wal").write_bytes(b"log")
    copy.chmod(0o640)
    for name in ("s.db.damaged", "s.db.damaged-2"):
        (tmp_path / "new.db").write_bytes(b"new")
        before = copy.read_bytes()
        kept = swap.put_in_place(tmp_path / "new.db", copy)
        assert kept.name == name
        assert kept.read_bytes() == before
        assert copy.read_bytes() == b"new"
        assert copy.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "s.db.damaged").read_bytes() == damaged
    assert (tmp_path / "s.db.damaged-wal").read_bytes() == b"log"
    assert not Path(f"{copy}-wal").exists()


def lose(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount == 1


def test_archives_that_are_whole_are_saved_and_the_others_named(copy: Path, tmp_path: Path) -> None:
    lose(copy, "UPDATE unidle_archives SET body = substr(body, 2) WHERE job = 'two-b' AND part = 1")
    lose(copy, "DELETE FROM unidle_archives WHERE job = 'six-c'")
    lose(copy, "INSERT INTO unidle_archives VALUES ('half-d', 0, 0, 1, 7, x'00')")
    found = of_file(copy)
    assert archives(found) == {"one-a": ARCHIVES["one-a"]}
    assert found.notes == [
        "archive of half-d: part 0 is damaged or missing; the archive is left out",
        "archive of two-b: part 1 is damaged or missing; the archive is left out",
    ]
    with closing(open_store(str(copy), create=False, read_only=True)) as opened:
        rows = of_rows(opened)  # as of a database server
        assert (archives(rows), rows.notes) == (archives(found), found.notes)
        assert rows.profiles == found.profiles
    with closing(open_store(str(tmp_path / "new.db"), create=True)) as new:
        fill(new, found, found.events())
        assert check(new).ok
        assert list(ArchiveShelf(new).read("one-a")) == ARCHIVES["one-a"]
        assert ArchiveShelf(new).jobs() == {"one-a"}


def test_an_archive_whose_pages_are_lost_is_named_by_what_the_index_has(copy: Path) -> None:
    damaged = bytearray(copy.read_bytes())
    at = damaged.index(ARCHIVES["two-b"][0][:64])
    start = at // 4096 * 4096
    damaged[start : start + 4096] = bytes(4096)
    copy.write_bytes(damaged)
    found = of_file(copy)
    lost = ARCHIVES.keys() - found.archives.keys()
    assert "two-b" in lost
    assert found.notes == [
        f"archive of {job}: part 0 is damaged or missing; the archive is left out" for job in sorted(lost)
    ]


def test_an_export_of_what_was_saved_has_the_archives(copy: Path, tmp_path: Path) -> None:
    found, out = of_file(copy), io.BytesIO()
    write_export(out, found.requests, found.events(), found.archives)
    with closing(open_store(str(tmp_path / "new.db"), create=True)) as new:
        out.seek(0)
        assert import_(new, out) == COUNT
        for job, parts in ARCHIVES.items():
            assert list(ArchiveShelf(new).read(job)) == parts
    lines = out.getvalue().splitlines(keepends=True)
    part = next(k for k, line in enumerate(lines) if b'"part":1' in line)
    for wrong, problem in (
        (lines[:part] + lines[part + 1 :], "part 1 of the archive was expected"),
        ([*lines[:-1], lines[0]], "cannot be read"),
        (lines[:-1], "ends without its last line"),
        ([*lines[: part - 1], lines[part - 1].replace(b"two-b", b"../x"), *lines[part:]], "file's name"),
        ([*lines[:-1], lines[1]], "only archives and the last line"),
        ([line.replace(b"c21hbGw=", b"c21lbGw=") for line in lines], "do not match the lines before"),
    ):
        with closing(open_store(str(tmp_path / "other.db"), create=True)) as other:
            with pytest.raises(BadInput, match=problem):
                import_(other, io.BytesIO(b"".join(wrong)))
            assert other.last() == (0, 0) and not ArchiveShelf(other).jobs()
