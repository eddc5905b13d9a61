"""The files that a SQLite connection has open: whether they still are those at the store's path."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from unidle.errors import StoreGone

SUFFIXES: Final = ("", "-wal", "-shm")
_Identity: TypeAlias = tuple[int, int]  # device and inode
_WHAT: Final = {"": "its file", "-wal": "its write-ahead log", "-shm": "the index of its write-ahead log"}


class OpenFiles:
    """The identity of each file, as it was when the connection opened it.

    SQLite writes on into a deleted file without an error, so that everything acknowledged after that is lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = identity(path)
        self._opened: dict[str, _Identity] = {}

    def opened(self) -> None:
        """The connection has opened all its files. Errors: :class:`StoreGone` if they changed meanwhile."""
        now = identity(self._path)
        if now is None or self._before not in (None, now):
            raise self._gone("", now)
        found = {suffix: identity(self._file(suffix)) for suffix in SUFFIXES}
        self._opened = {suffix: key for suffix, key in found.items() if key is not None}

    def verify(self) -> None:
        """Errors: :class:`StoreGone` if a file was deleted, moved or replaced."""
        for suffix, key in self._opened.items():
            now = identity(self._file(suffix))
            if now != key:
                raise self._gone(suffix, now)

    def _file(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _gone(self, suffix: str, now: _Identity | None) -> StoreGone:
        was = "deleted or moved" if now is None else "replaced by another file"
        return StoreGone(
            f"{_WHAT[suffix]} was {was} while the store was in use",
            field=str(self._file(suffix)),
            remedy="put the file back, or restore the store from an export, then start again",
        )


def identity(path: Path) -> _Identity | None:
    """Device and inode of a file; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
