"""Another user makes a store's log, index or journal after they were checked, and before SQLite opens them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import open_parent
from security.two_users import OTHER, SOURCES, command, needs_root
from unidle.errors import StoreError
from unidle.store import shared_directory as shared_place
from unidle.store.schema import VERSION_TABLE
from unidle.store.sqlite import SqliteDatabase

pytestmark = needs_root
READ = "SELECT purpose FROM kept"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A closed store in a directory as ``/tmp`` is."""
    place = Path(tempfile.mkdtemp(prefix="unidle-shared-", dir=open_parent()))
    place.chmod(0o1777)
    made = SqliteDatabase(place / "store.db", create=True)
    made.execute("CREATE TABLE kept (purpose)")
    made.execute("INSERT INTO kept VALUES ('own')")
    made.execute(f"CREATE TABLE {VERSION_TABLE} (version_num)")
    made.close()
    yield place / "store.db"
    shutil.rmtree(place)


@pytest.fixture
def forged(store: Path, tmp_path: Path) -> bytes:
    """A log that fits the store and changes it."""
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    connection = sqlite3.connect(copy)
    connection.execute("UPDATE kept SET purpose = 'forged'")
    connection.commit()
    log = Path(f"{copy}-wal").read_bytes()
    connection.close()
    assert log
    return log


def plant(name: Path, content: bytes) -> None:
    name.write_bytes(content)
    name.chmod(0o666)
    os.chown(name, OTHER, OTHER)


def kept(store: Path) -> list[tuple[str]]:
    """What is in the store itself, without any log."""
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)
    connection = sqlite3.connect(f"file:{store}?immutable=1", uri=True)
    try:
        return connection.execute(READ).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_that_appears_after_the_check_is_refused(
    store: Path, forged: bytes, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    check = shared_place.refuse_planted

    def and_then(path: Path) -> None:
        check(path)
        plant(Path(f"{path}-wal"), forged)

    monkeypatch.setattr(shared_place, "refuse_planted", and_then)
    with pytest.raises(StoreError, match=f"belongs to {OTHER}, who may not write to the store"):
        SqliteDatabase(store, read_only=read_only)
    assert kept(store) == [("own",)]


def test_the_last_user_of_a_store_does_not_remove_the_log_that_was_checked(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another user could make one in its place, before SQLite opens it."""
    last = SqliteDatabase(store)
    connect = SqliteDatabase._connect
    seen = []

    def and_before(self: SqliteDatabase, mode: str, *more: str) -> sqlite3.Connection:
        if mode == "mode=rw":
            before = Path(f"{store}-wal").stat().st_ino
            last.close()
            seen.append((before, Path(f"{store}-wal").stat().st_ino))
        return connect(self, mode, *more)

    monkeypatch.setattr(SqliteDatabase, "_connect", and_before)
    database = SqliteDatabase(store)
    assert database.query(READ) == [("own",)]
    database.execute("INSERT INTO kept VALUES ('more')")
    database.close()
    assert seen and seen[0][0] == seen[0][1]
    assert sorted(store.parent.iterdir()) == [store]  # and the last one does remove it
    assert kept(store) == [("own",), ("more",)]


def test_a_journal_that_appears_while_the_store_is_opened_changes_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.execute("UPDATE kept SET purpose = 'forged'")
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("BEGIN")
    connection.execute("UPDATE kept SET purpose = 'other'")
    connection.execute("PRAGMA cache_size = 1")
    connection.execute(
        "CREATE TABLE more AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9000) SELECT x FROM n"
    )
    journal = Path(f"{copy}-journal").read_bytes()
    connection.execute("ROLLBACK")
    connection.close()
    assert b"forged" in journal
    connect = SqliteDatabase._connect

    def and_before(self: SqliteDatabase, mode: str, *more: str) -> sqlite3.Connection:
        if mode == "mode=rw":
            plant(Path(f"{store}-journal"), journal)
        return connect(self, mode, *more)

    monkeypatch.setattr(SqliteDatabase, "_connect", and_before)
    monkeypatch.setattr("unidle.store.sqlite._SETTINGS", ("PRAGMA busy_timeout = 50",))
    with pytest.raises(StoreError, match="locked"):
        SqliteDatabase(store)
    assert kept(store) == [("own",)]


def test_the_files_that_are_made_are_the_owners_and_no_journal_stays(store: Path) -> None:
    os.chown(store, 64322, 64322)
    database = SqliteDatabase(store)
    names = [Path(f"{store}{suffix}") for suffix in ("", "-wal", "-shm")]
    assert [(name.stat().st_uid, stat.S_IMODE(name.stat().st_mode)) for name in names] == [(64322, 0o600)] * 3
    assert sorted(store.parent.iterdir()) == sorted(names)
    database.close()
    assert list(store.parent.iterdir()) == [store]


def test_nothing_is_made_next_to_a_database_of_another_program(store: Path) -> None:
    other = store.with_name("other.db")
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        SqliteDatabase(other)
    assert sorted(store.parent.iterdir()) == [other, store]
    connection = sqlite3.connect(other)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()
    other.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="is not a store"):
        SqliteDatabase(other)
    assert sorted(store.parent.iterdir()) == [other, store]


def test_commands_work_in_such_a_directory(store: Path) -> None:
    words = ["submit", "--store", "new.db", "--hold", "true"]
    assert command(words, store.parent).returncode == 0
    assert command(words, store.parent).returncode == 0
    done = command(["list", "--store", "new.db"], store.parent)
    assert done.returncode == 0 and done.stdout.count("true-") == 2, done.stdout + done.stderr
    assert sorted(path.name for path in store.parent.iterdir() if path.is_file()) == ["new.db", "store.db"]


def test_processes_that_open_and_close_a_store_in_turn_lose_nothing(store: Path) -> None:
    """The last one removes the log that the next one has just made, or finds its lock."""
    code = (
        "import sys; from pathlib import Path; from unidle.store.sqlite import SqliteDatabase\n"
        "for _ in range(60):\n"
        "    database = SqliteDatabase(Path(sys.argv[1]))\n"
        "    database.execute(\"INSERT INTO kept VALUES ('more')\")\n"
        "    database.close()\n"
    )
    words = [sys.executable, "-P", "-c", code, str(store)]
    started = [subprocess.Popen(words, env=os.environ | {"PYTHONPATH": SOURCES}) for _ in range(2)]
    assert [process.wait(60) for process in started] == [0, 0]
    assert len(kept(store)) == 121


def test_a_store_is_let_go_with_its_last_connection_and_not_before(store: Path) -> None:
    def descriptors() -> int:
        names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
        return sum(Path(name).readlink() == store for name in names if os.path.lexists(name))

    first, second = SqliteDatabase(store), SqliteDatabase(store)
    first.execute("BEGIN IMMEDIATE")
    assert descriptors() == 5, "two connections, the locks of each, and what keeps the locks of SQLite"
    second.close()
    writes = f"import sqlite3; sqlite3.connect({str(store)!r}, timeout=0).execute(\"INSERT INTO kept VALUES ('x')\")"
    other = subprocess.run([sys.executable, "-c", writes], capture_output=True, text=True, check=False)
    assert "database is locked" in other.stderr
    first.execute("ROLLBACK")
    first.close()
    assert descriptors() == 0
