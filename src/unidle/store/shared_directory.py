"""A store in a directory to which other users can write: they can make its log, index or journal before SQLite does.

SQLite takes changes to the store from these files, and as root it gives them to the store's owner. So their owner,
checked before SQLite opens them or after that, proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from unidle import private
from unidle.errors import StoreError
from unidle.login import login_name
from unidle.store.schema import VERSION_TABLE

_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_SHARED_FIRST: Final = 0x40000002
_SHARED_SIZE: Final = 510
"""The bytes of a database's file that all its users lock, see SQLite's os.h."""
_WAIT_S: Final = 10.0
_RETRY_S: Final = 0.002


def refuse_planted(path: Path) -> None:
    """Refuse a log or index of another user next to a store that this user may not write. Errors: :class:`StoreError`."""
    try:
        store = path.lstat()
    except FileNotFoundError:
        store = None
    if store is not None and store.st_mode & _OTHERS_WRITE:
        return  # other users may write to the store itself
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            name = Path(f"{path}{suffix}")
            _check(name, name.lstat(), store)


def refuse_empty_of_another(path: Path) -> None:
    """Refuse a file without any table that another user made: a store of this user's would be that user's file.

    Errors: :class:`StoreError` with its owner, OSError.
    """
    owner = path.stat().st_uid
    if not private.trusted(owner, root=True):
        raise StoreError(
            f"is an empty file that belongs to {login_name(owner)}, so it is not used for a new store",
            field=str(path.resolve()),
            remedy=f"use a store in a directory of your own, or have {login_name(owner)} make the store",
        )


def is_shared(path: Path) -> bool:
    """Whether other users can make files next to a store."""
    place = path.parent.stat()
    owners = {path.stat().st_uid} if path.exists() else set()
    return bool(place.st_mode & _OTHERS_WRITE) or not (
        private.trusted(place.st_uid, root=True) or place.st_uid in owners
    )


class Kept:
    """What a connection to a store in a shared directory needs until it is closed. Then call :meth:`release`."""

    def __init__(self) -> None:
        self._lock: _Lock | None = None

    def keep(self, lock: _Lock) -> None:
        """The connection is open."""
        lock.connections += 1
        self._lock = lock

    def release(self) -> None:
        """The connection is closed."""
        if self._lock is not None:
            with _GUARD:
                self._lock.connections -= 1
                self._lock.close_unused()
                self._lock = None


@contextmanager
def held(path: Path, connect: Callable[[str], sqlite3.Connection]) -> Iterator[Kept]:
    """While the block opens a store at ``path``, the log and index next to it are this user's or its owner's.

    A lock keeps the last user of the store from removing them meanwhile, and SQLite from taking anything from a journal.
    Under the lock those that are missing are made, and no other user can replace one in a directory with the sticky bit.
    ``connect`` opens the store with options of SQLite's URI.

    Errors: :class:`StoreError` where another user made one, or the lock is not to be had.
    """
    opened = Kept()
    if not is_shared(path) or not os.access(path, os.R_OK) or not _is_ours(path, connect):
        yield opened
        return
    with _locked(path, opened), ExitStack() as stack:
        try:
            kept = {name: _kept(name, path, stack) for name in (Path(f"{path}-wal"), Path(f"{path}-shm"))}
        except OSError:  # nor can SQLite make them
            kept = {}
        yield opened
        if not all(_is_same(name, fd) for name, fd in kept.items()):
            raise StoreError(
                "its write-ahead log was replaced while it was opened", field=str(path),
                remedy="put the store into a directory of your own",
            )  # fmt: skip


def make_file(path: Path, mode: int) -> None:
    """Make an empty store that has a write-ahead log from the beginning, under a name that is not taken. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name[:64]}-", dir=path.parent) as place:
        draft = Path(place) / "new"
        connection = sqlite3.connect(draft)
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        finally:
            connection.close()
        draft.chmod(mode)
        with suppress(FileExistsError):
            os.link(draft, path)


def _is_ours(path: Path, connect: Callable[[str], sqlite3.Connection]) -> bool:
    """Whether it is a store that no other user may write: next to a database of another program nothing is made."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return False
    if state.st_mode & _OTHERS_WRITE or not state.st_size:
        return False
    if Path(f"{path}-wal").exists():
        return True
    try:
        connection = connect("immutable=1")
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:  # a writer has just begun, or the real connection says it better
        return error.sqlite_errorname != "SQLITE_NOTADB"
    return not rows or (VERSION_TABLE,) in rows


class _Lock:
    """A descriptor of a store. Closing it drops the locks of this process's connections (POSIX): it is open as long as these."""

    def __init__(self, key: tuple[int, int], fd: int) -> None:
        self.key, self.fd, self.users, self.connections = key, fd, 0, 0

    def set(self, kind: int) -> None:
        """A lock of the descriptor, not of the process, on the bytes that SQLite locks. Errors: OSError."""
        flock = struct.pack("hhqqi4x", kind, os.SEEK_SET, _SHARED_FIRST, _SHARED_SIZE, 0)
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, flock)

    def close_unused(self) -> None:
        """Close it with the last connection."""
        if not self.users and not self.connections and _LOCKS.pop(self.key, None) is self:
            os.close(self.fd)


_LOCKS: Final[dict[tuple[int, int], _Lock]] = {}
_GUARD: Final = threading.Lock()


@contextmanager
def _locked(path: Path, opened: Kept) -> Iterator[None]:
    """Hold SQLite's shared lock: no process has the store for itself, as it must to remove the log or to use a journal."""
    end = time.monotonic() + _WAIT_S
    lock = None
    while lock is None:
        try:
            with _GUARD:
                lock = _shared_lock(path)
        except BlockingIOError:
            pass
        except OSError as error:
            raise StoreError(
                f"cannot be locked: {error.strerror}", field=str(path), remedy="put the store on a local file system"
            ) from error  # fmt: skip
        if lock is None:
            if time.monotonic() > end:
                raise StoreError(
                    "another process keeps the database locked", field=str(path), remedy="try again"
                )
            time.sleep(_RETRY_S)
    try:
        yield
        with _GUARD:
            opened.keep(lock)
    finally:
        with _GUARD:
            lock.users -= 1
            if not lock.users:
                lock.set(fcntl.F_UNLCK)
            lock.close_unused()


def _shared_lock(path: Path) -> _Lock:
    state = path.stat()
    lock = _LOCKS.get((state.st_dev, state.st_ino))
    if lock is None:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        opened = os.fstat(fd)
        key = opened.st_dev, opened.st_ino
        lock = _LOCKS.setdefault(key, _Lock(key, fd))
    if not lock.users:
        try:
            lock.set(fcntl.F_RDLCK)
        except OSError:
            lock.close_unused()
            raise
    lock.users += 1
    return lock


def _kept(name: Path, path: Path, stack: ExitStack) -> int:
    """A descriptor that keeps the number of a file's inode from being given to another one; the file is made if missing.

    The file is not opened: closing it would drop the locks that another connection of this process holds (POSIX).
    """
    store = path.stat()
    try:
        os.mknod(name, stat.S_IFREG | 0o600)
        made = True
    except FileExistsError:
        made = False
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    found = os.fstat(fd)
    _check(name, found, store)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise StoreError(
            "is a link, or has a second name", field=str(name), remedy="see what it is, and remove it"
        )
    if made:
        if os.geteuid() == 0:
            os.chown(f"/proc/self/fd/{fd}", store.st_uid, store.st_gid)
        Path(f"/proc/self/fd/{fd}").chmod(stat.S_IMODE(store.st_mode))
    return fd


def _check(name: Path, found: os.stat_result, store: os.stat_result | None) -> None:
    if not private.trusted(found.st_uid, root=True) and (store is None or found.st_uid != store.st_uid):
        raise StoreError(
            f"belongs to {login_name(found.st_uid)}, who may not write to the store",
            field=str(name), remedy="remove it, or put the store into a directory of your own",
        )  # fmt: skip


def _is_same(name: Path, fd: int) -> bool:
    try:
        return os.path.samestat(name.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False
