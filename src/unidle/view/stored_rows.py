"""Parts of a view that are not in memory: what a snapshot leaves out is looked up in the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from unidle.errors import StoreDamaged
from unidle.store.protocol import Store, ViewRow
from unidle.words import counted


class Shelf(Protocol):
    """Rows of one part of a view, in the order of their positions."""

    def get(self, key: str) -> bytes | None: ...

    def all(self, *, backwards: bool = False) -> Iterator[ViewRow]: ...


class StoredRows:
    """The rows of one part that a snapshot up to event ``seq`` left out, ``count`` in all, as the store has them.

    ``count`` is None where some rows of the part are out of date: who reads all of them has to find out which.
    """

    def __init__(self, store: Store, fold_version: int, part: str, seq: int, count: int | None) -> None:
        self._store, self._of, self._count = store, (fold_version, part, seq), count

    def get(self, key: str) -> bytes | None:
        return None if self._count == 0 else self._store.view_row(*self._of, key)

    def all(self, *, backwards: bool = False) -> Iterator[ViewRow]:
        """Errors: :class:`StoreDamaged` at the end, if some are missing."""
        if self._count == 0:
            return
        found = 0
        for row in self._store.view_rows(*self._of, backwards=backwards):
            found += 1
            yield row
        if self._count is not None and found != self._count:
            lost = self._count - found
            raise StoreDamaged(
                f"{counted(lost, self._of[1])} {'is' if lost == 1 else 'are'} missing", field=self._store.url,
                remedy="the next controller of the store makes them again: `unidle up`",
            )  # fmt: skip

    def __deepcopy__(self, memo: object) -> StoredRows:
        return self  # a copy of a view reads the same rows
