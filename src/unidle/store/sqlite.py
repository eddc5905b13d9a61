"""SQLite: write-ahead log, every commit synced, one connection per store object."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from unidle.atomic import PRIVATE
from unidle.errors import StoreDamaged, StoreError
from unidle.login import login_name
from unidle.store import shared_directory as shared_place
from unidle.store.database import Params, RowTuple, foreign, no_store
from unidle.store.first_open import OpenLocks
from unidle.store.open_files import OpenFiles
from unidle.store.schema import VERSION_TABLE

BUSY_TIMEOUT_MS: Final = 10_000
_SETTINGS: Final = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    "PRAGMA synchronous = FULL",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)
_TABLES: Final = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@'"
)
_SMALLEST_BYTES: Final = 512
_WAL_KEPT_BYTES: Final = 64 << 20
_RETRY_S: Final = (0.0002, 0.002)


class SqliteDatabase:
    """See :class:`unidle.store.database.Database`. ``wall_ns`` is the clock that leases expire by."""

    types: Mapping[str, str] = {
        "key": "INTEGER",
        "int": "BIGINT",
        "blob": "BLOB",
        "serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
        "user": "''",
    }
    signs_requests = False

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        mode: int = PRIVATE,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path.resolve()  # the log stands next to the file, not next to a link to it
        self.url = f"sqlite:///{path.absolute()}"
        self._wall_ns = wall_ns
        self._depth = 0
        self._immutable = False
        self._kept = shared_place.Kept()
        _check_place(path, create=create and not read_only)
        shared_place.refuse_planted(self.path)
        if create and not read_only:
            _make_file(self.path, mode)
        self._files = OpenFiles(self.path)
        try:
            self._locks = OpenLocks(self.path)
            self._open(create=create, read_only=read_only)
        except OSError as error:
            raise _os_error(path, error) from error
        self._connection.create_function("unidle_now_ns", 0, wall_ns)

    def _open(self, *, create: bool, read_only: bool) -> None:
        try:
            with (
                self.translated(),
                self._locks.opening(),
                shared_place.held(self.path, self._connect) as self._kept,
            ):
                self._connection = (
                    self._open_for_reading() if read_only else self._open_for_writing(create=create)
                )
                try:
                    self._locks.rewrite_log(self._connection, self._wal())
                    self._files.opened()
                except BaseException:
                    self._connection.close()
                    raise
        except BaseException:
            self._kept.release()
            self._locks.left()
            raise

    def _open_for_reading(self) -> sqlite3.Connection:
        try:
            return self._connect("mode=rw", "PRAGMA query_only = ON")
        except sqlite3.OperationalError as error:
            if not _name(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR_SHM")):
                raise
            # The log's index cannot be made here (read-only directory, full disk). Without a log
            # there is no writer and nothing to index: the file alone is the whole store.
            if _size(self._wal()):
                raise StoreError(
                    "the store has changes in its write-ahead log that cannot be read from here",
                    field=str(self.path),
                    remedy="open it as a user who may write to its directory, or copy both files elsewhere",
                ) from error
            self._immutable = True
            return self._connect("immutable=1")

    def _open_for_writing(self, *, create: bool) -> sqlite3.Connection:
        if not _writable(self.path):
            raise _read_only_error(self.path)
        connection = self._connect("mode=rwc" if create else "mode=rw")
        try:
            names = {row[0] for row in connection.execute(_TABLES)}
            if VERSION_TABLE not in names and not (create and not names):
                raise foreign(self.url) if names else no_store(self.url)  # its journal mode is left alone
            if not names:
                shared_place.refuse_empty_of_another(self.path)
            mode = _with_log(connection)
            if mode != "wal":
                raise StoreError(
                    "SQLite cannot keep a write-ahead log here",
                    field=str(self.path),
                    value=mode,
                    remedy="put the store on a local file system",
                )
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
            connection.execute(_TABLES).fetchall()  # opens the write-ahead log
            if not _size(self._wal()):
                _sync_directory(self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, mode: str, *more: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            for statement in (*_SETTINGS, *more, _TABLES):  # the last one touches the file
                connection.execute(statement).fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _wal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def user(self) -> str:
        """The user of this process: a file proves nothing of who wrote into it."""
        return login_name()

    def owned_by(self, user: str) -> bool:
        """The owner of the file, and root, who may do all that the owner may."""
        return user in (login_name(self.path.stat().st_uid), login_name(0))

    def query(self, sql: str, params: Params = ()) -> list[RowTuple]:
        with self.translated():
            return self._connection.execute(_rendered(sql), params).fetchall()

    def execute(self, sql: str, params: Params = ()) -> int:
        with self.translated():
            return self._connection.execute(_rendered(sql), params).rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        with self.translated():
            self._connection.executemany(_rendered(sql), rows)

    def insert(self, sql: str, params: Params) -> int:
        with self.translated():
            return self._connection.execute(_rendered(sql), params).lastrowid or 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._depth:
            yield
            return
        with self.translated():
            self._begin()
            self._depth = 1
            try:
                self.verify()
                yield
                self._connection.execute("COMMIT")
            finally:
                self._depth = 0
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _begin(self) -> None:
        """Take the write lock. SQLite's own waiting sleeps up to 0.1 s between tries, and then a writer
        that commits without a pause keeps all others out; short, uneven sleeps find its gaps."""
        execute = self._connection.execute
        deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1e3
        execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if not _name(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                        raise
                time.sleep(random.uniform(*_RETRY_S))
        finally:
            execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    def tables(self) -> set[str]:
        return {row[0] for row in self.query(_TABLES)}

    def verify(self) -> None:
        """The files at the path are those that are open."""
        self._files.verify()

    def reconnect(self) -> None:
        """Nothing to do: a file has no connection that can be lost."""

    def another(self) -> SqliteDatabase:
        return SqliteDatabase(self.path, wall_ns=self._wall_ns)

    def problems(self) -> list[str]:
        rows = self.query("PRAGMA integrity_check(20)")
        return [row[0] for row in rows if row[0] != "ok"]

    def vacuum(self) -> None:
        for statement in ("VACUUM", "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)"):
            self.query(statement)

    def size_bytes(self) -> int:
        return _size(self.path) + _size(self._wal())

    def lock_tables(self) -> None:
        """Nothing to do: BEGIN IMMEDIATE keeps every other writer out."""

    def close(self) -> None:
        self._locks.leave()
        self._connection.close()
        self._kept.release()
        self._locks.left()

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if self._immutable and _size(self._wal()):
                raise StoreError(
                    "a writer began to change the store while it was read",
                    field=str(self.path),
                    remedy="try again",
                ) from error
            raise _translate(error, self.path) from error


def _with_log(connection: sqlite3.Connection) -> str:
    """Have the file keep a write-ahead log; the mode that it has then. SQLite does not wait where several make the same file."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1e3
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if not _name(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*_RETRY_S))


@lru_cache(maxsize=64)
def _rendered(sql: str) -> str:
    return sql.replace("{now}", "unidle_now_ns()")


def _check_place(path: Path, *, create: bool) -> None:
    """Refuse what SQLite has no good words for. The file itself is never opened here: closing it
    would drop the locks that another connection of this process holds on it (POSIX)."""
    try:
        if path.is_dir():
            raise StoreError("is a directory", field=str(path), remedy="name a file for the store")
        if path.exists():
            if create and not path.stat().st_size:
                shared_place.refuse_empty_of_another(path)
            if 0 < path.stat().st_size < _SMALLEST_BYTES:  # SQLite takes a file of one byte for an empty one
                raise foreign(str(path))
            return
        if not create:
            raise no_store(str(path))
        if not path.parent.is_dir():
            raise StoreError(
                "its directory does not exist", field=str(path), remedy=f"mkdir -p {path.parent}"
            )
    except OSError as error:
        raise _os_error(path, error) from error


def _sync_directory(path: Path) -> None:
    """Have the name of a new write-ahead log on the disk. SQLite does so too, and passes over an error."""
    fd = -1
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(fd)
    except OSError as error:
        # Others: a directory that may not be read, a file system without such a sync.
        if error.errno == errno.EIO:
            raise _io_error(str(path), str(error.strerror)) from error
    finally:
        if fd >= 0:
            os.close(fd)


def _make_file(path: Path, mode: int) -> None:
    """Make the file with exactly this mode, whatever the umask; SQLite gives its log and index the same one."""
    if not os.access(path.parent, os.W_OK):
        return  # reported as read-only
    if not path.exists() and shared_place.is_shared(path):
        with suppress(OSError, sqlite3.Error):  # a file system without hard links
            shared_place.make_file(path, mode)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # it is there, or SQLite reports why it cannot be made
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _writable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK) and (os.access(path, os.W_OK) or not path.exists())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "")


def _read_only_error(path: Path) -> StoreError:
    return StoreError(
        "the store cannot be written",
        field=str(path),
        remedy="check the owner and mode of the file and its directory",
    )


def _os_error(path: Path, error: OSError) -> StoreError:
    if error.errno == errno.EIO:
        return _io_error(str(path), str(error.strerror))
    return StoreError(f"cannot be read: {error.strerror}", field=str(path), remedy="check its owner and mode")


def _io_error(field: str, text: str) -> StoreError:
    return StoreError(
        f"the disk reported an I/O error: {text}",
        field=field,
        remedy="check the disk and its file system (`dmesg`), then start again; what was acknowledged stays",
    )


def _translate(error: sqlite3.Error, path: Path) -> StoreError:
    name, field = _name(error), str(path)
    if name.startswith("SQLITE_BUSY") or name == "SQLITE_LOCKED":
        return StoreError("another process keeps the database locked", field=field, remedy="try again")
    if name == "SQLITE_FULL" or name == "SQLITE_IOERR_SHMSIZE":
        return StoreError(
            "no space is left on the disk", field=field, remedy="free some space and start again"
        )
    if name.startswith("SQLITE_IOERR"):
        return _io_error(field, f"{error} ({name})")
    if name == "SQLITE_NOTADB":
        return foreign(field)
    if name.startswith("SQLITE_READONLY"):
        return _read_only_error(path)
    if name.startswith("SQLITE_CORRUPT") or "decode to UTF-8" in str(error):
        return StoreDamaged(
            f"the database is damaged: {error}", field=field, remedy="run `unidle store check`"
        )
    if isinstance(error, sqlite3.IntegrityError) or str(error).startswith("no such"):
        return StoreDamaged(
            f"the tables contradict each other: {error}", field=field, remedy="run `unidle store check`"
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreError(
            "cannot be opened", field=field, remedy="check its owner, its mode and its directory's"
        )
    return StoreError(f"SQLite: {error}", field=field, remedy="run `unidle store check`")
