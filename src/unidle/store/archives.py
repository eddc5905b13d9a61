"""Archives next to the log: the compressed files of jobs that have ended, in parts of a few MiB.

An archive exists once its last part is there. Parts of one that was interrupted by ``kill -9`` are replaced when it is
written again. The writer's token is the fence, as for profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from unidle.errors import StoreDamaged
from unidle.store import statements as sql
from unidle.store.checksum import blob_crc
from unidle.store.profiles import fenced
from unidle.store.sql import SqlStore

TABLE: Final = "unidle_archives"


class ArchiveShelf:
    """The archives of one store. ``token``: of the controller on whose behalf they are written; None to read only.

    For one thread at a time. Errors: :class:`unidle.errors.StoreError`.
    """

    def __init__(self, store: SqlStore, token: int | None = None) -> None:
        self._store, self._token = store, token
        self._db = store.database

    def write(self, job: str, parts: Iterable[bytes]) -> int:
        """Store the archive of a job in place of what there is, part by part; its size in bytes."""
        self.drop_jobs([job])
        written, number, held = 0, 0, b""
        for part in parts:
            if held:
                self._add(job, number, last=0, body=held)
                number += 1
            written += len(part)
            held = part
        self._add(job, number, last=1, body=held)
        return written

    def drop_jobs(self, jobs: Iterable[str]) -> None:
        """Drop the archives of these jobs."""
        with fenced(self._store, self._token):
            self._db.execute_many(sql.DROP_ARCHIVE, [(job,) for job in jobs])

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each archive that is complete."""
        return {job: int(size) for job, size, last in self._totals() if last}

    def size(self, job: str) -> int:
        """The bytes of one job's parts; 0 if there are none."""
        rows = self._db.query(sql.ARCHIVE_SIZE, (job,)) if self._there() else []
        return int(rows[0][0]) if rows and rows[0][0] is not None else 0

    def jobs(self) -> set[str]:
        """Jobs with any part of an archive."""
        return {job for job, _, _ in self._totals()}

    def has(self, job: str) -> bool:
        """Whether there is a complete archive of the job."""
        return self._there() and bool(self._db.query(sql.ARCHIVE_ENDS, (job,)))

    def read(self, job: str) -> Iterator[bytes]:
        """The parts of an archive, in order. Errors: :class:`StoreDamaged` if a part is damaged or missing."""
        number, last = 0, 0
        while not last:
            rows = self._db.query(sql.ARCHIVE_PART, (job, number))
            if not rows or blob_crc(rows[0][3], job, number, rows[0][0], rows[0][1]) != rows[0][2]:
                raise StoreDamaged(
                    "a part of an archive is damaged or missing", field=self._store.url,
                    value=f"{job}, part {number}", remedy="run `unidle store check`; its time is still in the ledger",
                )  # fmt: skip
            last = rows[0][0]
            yield rows[0][3]
            number += 1

    def first_fault(self, job: str) -> int | None:
        """The number of the first part that is damaged or missing; None if the archive is whole."""
        number = 0
        try:
            for _ in self.read(job):
                number += 1
        except StoreDamaged:
            return number
        return None

    def _add(self, job: str, number: int, *, last: int, body: bytes) -> None:
        crc = blob_crc(body, job, number, last, len(body))
        with fenced(self._store, self._token):
            self._db.execute_many(sql.ADD_ARCHIVE, [(job, number, last, len(body), crc, body)])

    def _totals(self) -> list[tuple[str, int, int]]:
        return self._db.query(sql.ARCHIVE_TOTALS) if self._there() else []

    def _there(self) -> bool:
        """A store of an earlier version that is only read has no such table."""
        return TABLE in self._db.tables()


def archive_faults(store: SqlStore) -> Iterator[str]:
    """Archives with a damaged part, in sentences."""
    shelf = ArchiveShelf(store)
    for job in shelf.sizes():
        try:
            for _ in shelf.read(job):
                pass
        except StoreDamaged as error:
            yield str(error)
