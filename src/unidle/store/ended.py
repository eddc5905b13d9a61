"""Views of jobs that have ended, each in a row next to the snapshots: a snapshot stays as small as what is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unidle.errors import StoreDamaged
from unidle.store import statements as sql
from unidle.store.checksum import blob_crc
from unidle.store.database import Database, RowTuple
from unidle.store.protocol import EndedJob

TABLE: Final = "unidle_ended"
_PAGE: Final = 1024
_BEYOND: Final = 1 << 62  # no position is as high


def add(db: Database, fold_version: int, seq: int, ended: Sequence[EndedJob]) -> None:
    """Add jobs that the snapshot up to event ``seq`` leaves out."""
    rows = (
        (fold_version, one.job, one.position, seq, blob_crc(one.body, fold_version, one.job, one.position, seq), one.body)
        for one in ended
    )  # fmt: skip
    db.execute_many(sql.ADD_ENDED, rows)


def body_of(db: Database, fold_version: int, seq: int, job: str) -> bytes | None:
    """See :meth:`unidle.store.protocol.Store.ended_job`."""
    for row in db.query(sql.ENDED, (fold_version, seq, job)):
        return _checked(fold_version, row).body
    return None


def jobs_of(db: Database, fold_version: int, seq: int, *, backwards: bool) -> Iterator[EndedJob]:
    """See :meth:`unidle.store.protocol.Store.ended_jobs`."""
    statement, last = (sql.ENDED_DOWN, _BEYOND) if backwards else (sql.ENDED_UP, -1)
    while rows := db.query(statement, (fold_version, seq, last, _PAGE)):
        for row in rows:
            yield _checked(fold_version, row)
        last = rows[-1][0]


def damaged(db: Database) -> Iterator[str]:
    """Jobs whose row is damaged."""
    if TABLE not in db.tables():
        return
    for (version,) in db.query(sql.ENDED_VERSIONS):
        last = -1
        while rows := db.query(sql.ENDED_UP, (version, _BEYOND, last, _PAGE)):
            for row in rows:
                try:
                    _checked(version, row)
                except StoreDamaged:
                    yield str(row[1])
            last = rows[-1][0]


def _checked(fold_version: int, row: RowTuple) -> EndedJob:
    position, job, seq, crc, body = row
    if blob_crc(body, fold_version, job, position, seq) != crc:
        raise StoreDamaged(
            "its record is damaged", field=f"ended job {job}",
            remedy="the next controller of the store makes it again: `unidle up`",
        )  # fmt: skip
    return EndedJob(job, position, bytes(body))
