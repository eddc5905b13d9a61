"""Profiles next to the log: profiles of running jobs, one row per job, attempt, rank and window.

The process that looks writes them over a connection of its own, so that neither a full disk nor a slow disk there holds the
controller up. Rows may be missing after ``kill -9``; one that is there is whole. The writer's token is the fence:
who was started by a controller that has lost the store writes nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from unidle.errors import LeaseLost
from unidle.store import statements as sql
from unidle.store.checksum import blob_crc
from unidle.store.database import RowTuple
from unidle.store.sql import SqlStore


class ProfileKey(NamedTuple):
    """Names one row."""

    job: str
    start_ns: int
    attempt: int
    rank: int


class ProfileInfo(NamedTuple):
    """One row without its body. ``looks``: how many looks were put together in it."""

    job: str
    start_ns: int
    attempt: int
    rank: int
    end_ns: int
    looks: int
    n_bytes: int

    @property
    def key(self) -> ProfileKey:
        return ProfileKey(*self[:4])


class ProfileRow(NamedTuple):
    """One row; times are on the clock of the log, ``end_ns`` excluded. ``body`` is its writer's."""

    job: str
    start_ns: int
    attempt: int
    rank: int
    end_ns: int
    looks: int
    body: bytes


class Held(NamedTuple):
    """What the rows of one job take, without what the database adds, and when the first begins."""

    n_bytes: int
    oldest_ns: int


@contextmanager
def fenced(store: SqlStore, token: int | None) -> Iterator[None]:
    """One transaction of a process or thread that belongs to the controller with this token, all or nothing.

    Errors: :class:`LeaseLost` if another controller holds the store.
    """
    with store.transaction():
        if token is None or store.token() != token:
            raise LeaseLost(
                "the controller that this writer belongs to does not hold the store any more",
                field=store.url, remedy="nothing was written; the next controller starts its own",
            )  # fmt: skip
        yield


class ProfileShelf:
    """The profiles of one store. ``token``: of the controller on whose behalf rows are written; None to read only.

    For one thread at a time. Errors: :class:`unidle.errors.StoreError`.
    """

    def __init__(self, store: SqlStore, token: int | None = None) -> None:
        self._store, self._token = store, token
        self._db = store.database
        self.damaged = 0  # rows that were passed over since the shelf was made

    # -- writing ---------------------------------------------------------------------------------

    def change(self) -> AbstractContextManager[None]:
        """One transaction, all or nothing. Errors: :class:`LeaseLost` if another controller holds the store."""
        return fenced(self._store, self._token)

    def add(self, rows: Iterable[ProfileRow]) -> None:
        """Keep rows; one that is there already stays as it is."""
        with self.change():
            self._db.execute_many(sql.ADD_PROFILE, [_packed(row) for row in rows])

    def replace(self, old: Iterable[ProfileKey], new: Iterable[ProfileRow]) -> None:
        """Rows in place of others."""
        with self.change():
            self._db.execute_many(sql.DROP_PROFILE, list(old))
            self._db.execute_many(sql.ADD_PROFILE, [_packed(row) for row in new])

    def drop_before(self, time_ns: int) -> int:
        """Drop what ended before ``time_ns``, of all jobs; how many rows that were."""
        with self.change():
            return self._db.execute(sql.DROP_PROFILES_BEFORE, (time_ns,))

    def drop_jobs(self, jobs: Iterable[str]) -> None:
        """Drop all rows of these jobs."""
        with self.change():
            self._db.execute_many(sql.DROP_PROFILES_OF, [(job,) for job in jobs])

    # -- reading ---------------------------------------------------------------------------------

    def rows(self, job: str, since_ns: int, until_ns: int) -> Iterator[ProfileRow]:
        """Rows of a job that overlap ``[since_ns, until_ns)``, in order of time; damaged ones are passed over."""
        for info in self.infos_between(job, since_ns, until_ns):
            row = self.row(info.key)
            if row is not None:
                yield row

    def infos_between(self, job: str, since_ns: int, until_ns: int) -> list[ProfileInfo]:
        """As :meth:`rows`, without the bodies."""
        return [ProfileInfo(*row) for row in self._db.query(sql.PROFILE_SPANS, (job, until_ns, since_ns))]

    def row(self, key: ProfileKey) -> ProfileRow | None:
        """One row; None if it does not exist or is damaged."""
        for row in self._db.query(sql.PROFILE, key):
            found = _unpacked(row)
            if found is not None:
                return found
            self.damaged += 1
        return None

    def infos(self, job: str, limit: int) -> list[ProfileInfo]:
        """The oldest rows of a job, without their bodies."""
        return [ProfileInfo(*row) for row in self._db.query(sql.PROFILE_INFOS, (job, limit))]

    def all_keys(self) -> list[ProfileKey]:
        """Of all rows."""
        return [ProfileKey(*key) for key in self._db.query(sql.PROFILE_KEYS)]

    def held(self) -> dict[str, Held]:
        """What each job's rows take."""
        return {job: Held(int(size), int(oldest)) for job, size, oldest in self._db.query(sql.PROFILE_TOTALS)}


def faults(store: SqlStore) -> Iterator[str]:
    """Rows whose checksum is wrong, in sentences."""
    database = store.database
    for key in database.query(sql.PROFILE_KEYS):
        for row in database.query(sql.PROFILE, key):
            if _unpacked(row) is None:
                name = f"profile of {key[0]!r} attempt {key[2]!r} rank {key[3]!r} from {key[1]!r}"
                yield f"{name}: its checksum is wrong (it is skipped)"


def _packed(row: ProfileRow) -> RowTuple:
    fields = (*row[:6], len(row.body))
    return (*fields, blob_crc(row.body, *fields), row.body)


def _unpacked(row: Sequence[object]) -> ProfileRow | None:
    *fields, crc, body = row
    if blob_crc(body, *fields) != crc:  # type: ignore[arg-type]
        return None
    return ProfileRow._make((*fields[:6], body))
