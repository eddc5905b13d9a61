"""The row of ``unidle_writer``: who writes the store, until when, and where its log ends."""

from __future__ import annotations

from typing import NamedTuple

from unidle.clock import boottime_ns
from unidle.errors import LeaseLost, StoreDamaged
from unidle.store import lease_owner
from unidle.store import statements as sql
from unidle.store.checksum import fields_crc
from unidle.store.database import Database
from unidle.store.lease_time import LEASE_TTL_NS
from unidle.store.protocol import Lease


class Writer(NamedTuple):
    """The row of ``unidle_writer``, and the time at which it was read."""

    token: int
    holder: str | None
    expires_ns: int
    last_seq: int
    last_time_ns: int
    now_ns: int
    read_ns: int  # the same moment by CLOCK_BOOTTIME of this machine


class WriterRow:
    """Reads and changes the row. Every change is made only where the row is as it was read."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def read(self) -> Writer:
        """Errors: :class:`StoreDamaged`."""
        rows = self._db.query(sql.WRITER)
        if not rows or fields_crc(*rows[0][:5]) != rows[0][5]:
            raise StoreDamaged(
                "the head of the log is damaged",
                field=self._db.url,
                remedy="run `unidle store repair`",
            )
        return Writer._make((*rows[0][:5], rows[0][6], boottime_ns()))

    def held(self, lease: Lease) -> Writer:
        """The row, whose lease this is. Errors: :class:`LeaseLost`."""
        writer = self.read()
        if writer.token != lease.token or writer.holder is None:
            raise self._lost(writer)
        return writer

    def extend(self, old: Writer, **changes: int) -> None:
        """Change the row and extend the lease from now, not from the start of a transaction that took long."""
        passed_ns = boottime_ns() - old.read_ns
        self.set(old, expires_ns=old.now_ns + passed_ns + LEASE_TTL_NS, **changes)

    def set(self, old: Writer, **changes: int | str | None) -> None:
        """Change the row. Errors: :class:`LeaseLost` where another writer changed it."""
        while True:
            new = old._replace(**changes)  # type: ignore[arg-type]
            fields = new[:5]
            if self._db.execute(sql.SET_WRITER, (*fields, fields_crc(*fields), old.token, old.expires_ns)):
                return
            now = self.read()
            if now[:2] != old[:2] or ("last_seq" in changes and now.last_seq != old.last_seq):
                raise self._lost(now)
            old = now  # PostgreSQL: the other connection of this writer changed it meanwhile

    def _lost(self, writer: Writer) -> LeaseLost:
        by = f" to {words_of(writer.holder)}" if writer.holder is not None else ""
        return LeaseLost(
            f"this writer lost the store{by}",
            field=self._db.url,
            remedy="nothing was written; start the command again",
        )


def is_held(writer: Writer) -> bool:
    """Whether the holder still counts: it does not once it is known to be dead, nor once its lease has expired.

    The lease of a process that lives on this machine counts for longer, since it may be stopped, or the clock was set:
    it is replaced when it does not renew its lease (see :meth:`unidle.store.sql.SqlStore.acquire`).
    """
    if writer.holder is None:
        return False
    holder = lease_owner.parse(writer.holder)
    alive = holder.is_alive() if holder else None
    if alive is not None:
        return alive
    return not _is_over(writer)


def _is_over(writer: Writer) -> bool:
    """Whether the lease has expired by the store's clock. Much more time left than a lease ever gets: the clock was set back."""
    return not 0 < writer.expires_ns - writer.now_ns < 4 * LEASE_TTL_NS


def may_be_over(writer: Writer) -> bool:
    """Whether it is worth waiting for a sign of the holder: it lives here and did not renew in time, or an earlier start
    of this machine or container, with the same host name, had the store.
    """
    holder = lease_owner.parse(writer.holder or "")
    alive = holder.is_alive() if holder else None
    if holder is None or alive is False:
        return holder is not None  # it has just ended
    return _is_over(writer) if alive else holder.is_of_earlier_start()


def words_of(holder: str | None) -> str:
    """Who holds the store, for a message."""
    parsed = lease_owner.parse(holder or "")
    return parsed.words() if parsed else "another version of unidle"
