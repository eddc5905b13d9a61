"""Packed records of jobs that rest and are in the store instead of in memory: the row of each, and rows that are out of date."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from unidle.errors import StoreDamaged
from unidle.store.protocol import ViewRow
from unidle.view.stored_rows import Shelf

WAITING_JOBS: Final = "waiting job"
"""The part of the view whose rows these are: a key is the job and the event of the snapshot that left it out."""
_ROWS: Final = 1 << 24  # positions of one snapshot
_STALE: Final = 4_000  # rows that are out of date stay a while, for readers of an earlier snapshot
_DROPPED: Final = 2_000  # with one snapshot at most: a turn is not to take long


class WaitingRecords:
    """``rows``: of each job that has one, the event of its row. Records of them are looked up on the shelf."""

    __slots__ = ("_due", "_old", "_shelf", "rows")

    def __init__(self, rows: dict[str, int] | None = None) -> None:
        self.rows = rows if rows is not None else {}
        self._shelf: Shelf | None = None
        self._old: list[str] = []  # keys of rows that are out of date, the oldest first
        self._due = 0  # so many of them can go at once

    def look_up(self, shelf: Shelf) -> None:
        """From now on on this shelf."""
        self._shelf = shelf

    def keys(self) -> set[str]:
        """Of all rows that are needed."""
        return {_key(job, seq) for job, seq in self.rows.items()}

    def new_rows(self, records: Mapping[str, bytes], seq: int) -> list[ViewRow]:
        """The records by job as rows of a snapshot up to event ``seq``."""
        return [
            ViewRow(WAITING_JOBS, _key(job, seq), seq * _ROWS + k, record)
            for k, (job, record) in enumerate(records.items())
        ]

    def get(self, job: str) -> bytes:
        """The record of one of ``rows``. Errors: :class:`StoreDamaged` if it is not in the store."""
        found = self._shelf.get(_key(job, self.rows[job])) if self._shelf is not None else None
        if found is None:
            raise StoreDamaged(
                "its record is missing", field=f"{WAITING_JOBS} {job}",
                remedy="run the command again; if that does not help, the next `unidle up` makes it again",
            )  # fmt: skip
        return found

    def all(self, jobs: Container[str]) -> Iterator[tuple[str, bytes]]:
        """The records of these jobs, read at once, as far as they are in the store."""
        job_of = {_key(job, seq): job for job, seq in self.rows.items() if job in jobs}
        for row in self._shelf.all() if self._shelf is not None else ():
            if (job := job_of.get(row.key)) is not None:
                yield job, row.body

    def forget(self, job: str) -> None:
        """The job does not rest any more: its row, if it has one, is out of date."""
        seq = self.rows.pop(job, None)
        if seq is not None:
            self._old.append(_key(job, seq))

    def found(self, keys: Iterable[str]) -> None:
        """Rows of the store when a writer begins: what is not needed can go."""
        needed = self.keys()
        self._old = [key for key in keys if key not in needed]
        self._due = len(self._old)

    def outdated(self, written: Iterable[ViewRow]) -> list[str]:
        """Keys of rows that go with the next snapshot, which has ``written``."""
        if self._due:  # a log that was folded again has the events of before
            again = {row.key for row in written}
            stay = [key for key in self._old[: self._due] if key not in again]
            self._old[: self._due] = stay
            self._due = len(stay)
        return self._old[: min(max(self._due, len(self._old) - _STALE), _DROPPED)]

    def dropped(self, keys: list[str]) -> None:
        """These, which were :meth:`outdated`, are not in the store any more."""
        del self._old[: len(keys)]
        self._due = max(self._due - len(keys), 0)


def _key(job: str, seq: int) -> str:
    return f"{job} {seq}"
