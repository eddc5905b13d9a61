"""A repaired SQLite store in the place of a damaged one, which stays under another name."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from unidle.errors import StoreError, StoreHeld

# SQLite's locks on a file: every open connection of a write-ahead log holds one of them (shared) while it is open.
_LOCKS_AT, _LOCKS_BYTES = 0x40000000, 512
_FLOCK: Final = "hhqqi4x"


def file_of(address: str) -> Path | None:
    """The file of a SQLite store; None for another database."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Path(address)
    return Path(rest[1:]) if scheme == "sqlite" and rest.startswith("/") else None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process has the store open, nor can it open it, while the block runs.

    A store that may only be read is not locked. Errors: :class:`StoreHeld`, :class:`StoreError`.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        fd = -1
    except OSError as error:
        if error.errno != errno.EROFS:
            raise StoreError(
                f"cannot be opened: {error.strerror}", field=str(path), remedy="check the path"
            ) from error
        fd = -1
    try:
        if fd >= 0:
            _lock(fd, path)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, path: Path) -> None:
    wish = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _LOCKS_AT, _LOCKS_BYTES, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wish)
    except OSError as error:
        raise StoreHeld(
            "another process has the store open", field=str(path),
            remedy="stop `unidle up` and other commands on it, then start again",
        ) from error  # fmt: skip


def put_in_place(new: Path, path: Path) -> Path:
    """Give ``new`` the name of the damaged store; the name under which that one stays. Only under :func:`alone`.

    At each moment the damaged file, its write-ahead log and the new file are complete under some name.
    """
    kept = _free_name(path)
    try:
        found = path.stat()
        new.chmod(found.st_mode & 0o777)
        with suppress(PermissionError):
            os.chown(new, found.st_uid, found.st_gid)
        os.link(path, kept)
        # A log that stayed would be replayed into the new file.
        with suppress(FileNotFoundError):
            _with(path, "-wal").rename(_with(kept, "-wal"))
        with suppress(FileNotFoundError):
            _with(path, "-shm").unlink()
        new.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"the repaired store cannot be put in its place: {error.strerror}", field=str(new),
            remedy=f"both files are complete; use the repaired one, or move it to {path}",
        ) from error  # fmt: skip
    return kept


def _free_name(path: Path) -> Path:
    number = 1
    while True:
        name = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not name.exists() and not _with(name, "-wal").exists():
            return name
        number += 1


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
