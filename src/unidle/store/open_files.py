"""The files that a SQLite connection has open: whether they still are those at the store's path."""

from __future__ import annotations

import os
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
        self._before = identity(str(path))
        self._opened: dict[str, _Identity] = {}
        self._names = {suffix: f"{path}{suffix}" for suffix in SUFFIXES}  # made once: looked at in each turn

    def opened(self) -> None:
        """The connection has opened all its files. Errors: :class:`StoreGone` if they changed meanwhile."""
        now = identity(self._names[""])
        if now is None or self._before not in (None, now):
            raise self._gone("", now)
        found = {suffix: identity(self._names[suffix]) for suffix in SUFFIXES}
        self._opened = {suffix: key for suffix, key in found.items() if key is not None}

    def verify(self) -> None:
        """Errors: :class:`StoreGone` if a file was deleted, moved or replaced."""
        for suffix, key in self._opened.items():
            now = identity(self._names[suffix])
            if now != key:
                raise self._gone(suffix, now)

    def _gone(self, suffix: str, now: _Identity | None) -> StoreGone:
        was = "deleted or moved" if now is None else "replaced by another file"
        return StoreGone(
            f"{_WHAT[suffix]} was {was} while the store was in use",
            field=self._names[suffix],
            remedy="put the file back, or restore the store from an export, then start again",
        )


def identity(path: str) -> _Identity | None:
    """Device and inode of a file; None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a tenth of the time of a Path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
