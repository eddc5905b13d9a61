"""Jobs that were removed: no list shows them, and they have no files any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from unidle.store.protocol import ViewRow
from unidle.view.records import Removal
from unidle.view.stored_rows import Shelf

REMOVED_JOBS: Final = "removed job"
"""The part of the view whose rows are removals."""


class RemovedJobs(Mapping[str, Removal]):
    """By job, in the order of removal. Those before the last snapshot are looked up on the ``shelf``."""

    __slots__ = ("_here", "_shelf", "shelved")

    def __init__(self, here: dict[str, Removal] | None = None, shelved: int = 0) -> None:
        self._here = here if here is not None else {}
        self.shelved = shelved  # how many are on the shelf
        self._shelf: Shelf | None = None

    def add(self, job: str, removal: Removal) -> None:
        """The job, which was not removed before, is."""
        self._here[job] = removal

    def rows(self) -> list[ViewRow]:
        """Those in memory, as the store keeps them."""
        return [
            ViewRow(REMOVED_JOBS, job, self.shelved + place, _PACK.encode(removal))
            for place, (job, removal) in enumerate(self._here.items())
        ]

    def shelve(self, shelf: Shelf, gone: int = 0) -> None:
        """The removals that the shelf has are looked up there; ``gone``, the number of all in memory, leave it for the shelf."""
        self._shelf = shelf
        if gone:
            assert gone == len(self._here)
            self._here = {}
            self.shelved += gone

    def plain(self, *, gone: bool) -> dict[str, Any]:
        """As a snapshot keeps it; ``gone``: those in memory go to the shelf with it."""
        here: dict[str, Removal] = {} if gone else self._here
        return {"here": here, "shelved": self.shelved + (len(self._here) if gone else 0)}

    @classmethod
    def of(cls, plain: Any) -> RemovedJobs:
        """From :meth:`plain`. Errors: :class:`msgspec.ValidationError`, KeyError, TypeError."""
        here = msgspec.convert(plain["here"], dict[str, Removal])
        return cls(here, msgspec.convert(plain["shelved"], int))

    def __getitem__(self, job: str) -> Removal:
        removal = self._here.get(job)
        if removal is None:
            body = self._on_shelf(job)
            if body is None:
                raise KeyError(job)
            removal = _UNPACK.decode(body)
        return removal

    def __contains__(self, job: object) -> bool:
        return job in self._here or (isinstance(job, str) and self._on_shelf(job) is not None)

    def __iter__(self) -> Iterator[str]:
        if self._shelf is not None and self.shelved:
            yield from (row.key for row in self._shelf.all())
        yield from self._here

    def __reversed__(self) -> Iterator[str]:
        yield from reversed(self._here)
        if self._shelf is not None and self.shelved:
            yield from (row.key for row in self._shelf.all(backwards=True))

    def __len__(self) -> int:
        return self.shelved + len(self._here)

    def _on_shelf(self, job: str) -> bytes | None:
        return self._shelf.get(job) if self._shelf is not None and self.shelved else None


_PACK: Final = msgspec.msgpack.Encoder()
_UNPACK: Final = msgspec.msgpack.Decoder(Removal)
