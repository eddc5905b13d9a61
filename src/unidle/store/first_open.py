"""Who has a SQLite store open, and what the first one does: it writes the write-ahead log again before it is used.

A sync that fails leaves changes in the log that the disk does not have, though the kernel takes them for written. SQLite
reads them as committed when it makes the log's index again, and its next sync succeeds without writing them. A power cut
while they are moved into the store's file would then leave it torn, and a log that cannot repair it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from unidle.errors import StoreError

_SQLITE: Final = (0x40000002, 510)
"""The bytes that all who use a database lock, see SQLite's os.h. None can move a log into the store while another holds them."""
_OPENING: Final = (0x40000200, 1)
_OPEN: Final = (0x40000201, 1)
"""Beyond SQLite's: who opens the store, one at a time, and who has it open."""
_WAL_VERSIONS: Final = (18, b"\2\2")  # in the head of a database that keeps a write-ahead log
_WAIT_S, _RETRY_S = 10.0, 0.001
_PART_BYTES: Final = 1 << 20
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class OpenLocks:
    """The locks of one connection. They are locks of a descriptor, not of the process: threads count as processes do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd, self._key = _descriptor(path)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While the block opens a connection and calls :meth:`rewrite_log`. Errors: :class:`StoreError`.

        No other process opens the store meanwhile. A connection that is closed, here or elsewhere, leaves the log alone.
        """
        if self._fd < 0:
            yield
            return
        try:
            self._wait(_OPENING, fcntl.F_WRLCK)
            self._wait(_OPEN, fcntl.F_RDLCK)
            if os.pread(self._fd, 2, _WAL_VERSIONS[0]) == _WAL_VERSIONS[1] and not self._is_half_made():
                self._wait(_SQLITE, fcntl.F_RDLCK)
            yield
        except BaseException:
            self._lock(_OPEN, fcntl.F_UNLCK)
            raise
        finally:
            self._lock(_SQLITE, fcntl.F_UNLCK)
            self._lock(_OPENING, fcntl.F_UNLCK)

    def _is_half_made(self) -> bool:
        """The process that made it was killed before it had a log: SQLite needs the file for itself to undo that."""
        return _has_content(self._path.with_name(f"{self._path.name}-journal"))

    def rewrite_log(self, connection: sqlite3.Connection, wal: Path) -> None:
        """Write the log again and sync it, where no other process had the store open before ``connection``.

        Of those that had it open one did this, and SQLite keeps the log's index as long as one is there. Errors: OSError.
        """
        if self._fd < 0 or not self._lock(_OPEN, fcntl.F_WRLCK):
            return
        try:
            if _has_content(wal):
                with _alone(connection):
                    _write_again(wal)
        finally:
            self._lock(_OPEN, fcntl.F_RDLCK)

    def leave(self) -> None:
        """The connection is about to be closed: from now on another one may be the first."""
        if self._fd >= 0:
            self._lock(_OPEN, fcntl.F_UNLCK)

    def left(self) -> None:
        """The connection is closed."""
        if self._fd >= 0:
            _retire(self._fd, self._key)
            self._fd = -1

    def _wait(self, where: tuple[int, int], kind: int) -> None:
        end = time.monotonic() + _WAIT_S
        while not self._lock(where, kind):
            if time.monotonic() > end:
                raise StoreError(
                    "another process keeps the database locked", field=str(self._path), remedy="try again"
                )
            time.sleep(_RETRY_S)

    def _lock(self, where: tuple[int, int], kind: int) -> bool:
        """Whether the lock is set; False where another has it."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, *where, 0))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise StoreError(
                f"cannot be locked: {error.strerror}", field=str(self._path),
                remedy="put the store on a local file system",
            ) from error  # fmt: skip
        return True


class _Descriptors:
    """Of one file. Closing one would drop the locks of all connections of this process (POSIX)."""

    def __init__(self) -> None:
        self.users = 0
        self.free: list[int] = []


_FILES: Final[dict[tuple[int, int], _Descriptors]] = {}
_GUARD: Final = threading.Lock()


def _descriptor(path: Path) -> tuple[int, tuple[int, int]]:
    """One for writing, and the file's device and inode; -1 where this process cannot write to it."""
    with _GUARD:
        try:
            found = path.stat()
            known = _FILES.get((found.st_dev, found.st_ino))
            if known is not None and known.free:
                fd = known.free.pop()
            else:
                if not stat.S_ISREG(found.st_mode):
                    return -1, (0, 0)
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in _REFUSED:
                return -1, (0, 0)
            raise
        opened = os.fstat(fd)
        key = opened.st_dev, opened.st_ino
        _FILES.setdefault(key, _Descriptors()).users += 1
        return fd, key


def _retire(fd: int, key: tuple[int, int]) -> None:
    with _GUARD:
        file = _FILES[key]
        file.users -= 1
        file.free.append(fd)
        if not file.users:
            for unused in file.free:
                os.close(unused)
            del _FILES[key]


@contextmanager
def _alone(connection: sqlite3.Connection) -> Iterator[None]:
    """No program, of whatever kind, changes the log while the block runs."""
    (reads_only,) = connection.execute("PRAGMA query_only").fetchone()
    connection.execute("PRAGMA query_only = OFF")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA query_only = {reads_only}")


def _has_content(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def _write_again(path: Path) -> None:
    """Write a file's own bytes into their place, which makes the kernel write them to the disk at the sync."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        at = 0
        while part := os.pread(fd, _PART_BYTES, at):
            at += os.pwrite(fd, part, at)
        os.fsync(fd)
    finally:
        os.close(fd)
