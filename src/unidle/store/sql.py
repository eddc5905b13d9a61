"""The store on a SQL database: one set of statements for SQLite and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Final

from unidle.clock import boottime_ns
from unidle.errors import ConnectionLost, LeaseLost, StoreDamaged, StoreError, StoreGone, StoreHeld
from unidle.store import derived, lease_owner, view_rows
from unidle.store import statements as sql
from unidle.store.checksum import blob_crc
from unidle.store.database import Database, Params, RowTuple
from unidle.store.event_rows import CHECK, check_times, crc_holds, event_rows, request_holds, verified
from unidle.store.lease_renewer import LeaseRenewer
from unidle.store.lease_time import LEASE_TTL_NS, LeaseTime
from unidle.store.protocol import (
    Bookmark,
    DamagedRequest,
    Lease,
    NewEvent,
    Request,
    Segment,
    Snapshot,
    StoredEvent,
    ViewRow,
)
from unidle.store.reconnect import Steady
from unidle.store.schema import UNSIGNED
from unidle.store.writer import Writer, WriterRow, is_held, may_be_over, words_of

_LOOK_S: Final = 0.1  # while it is seen whether another writer renews its lease
_PAGE: Final = 256  # events held at a time, reading or writing: a body may have many KiB
_LARGE_PAGE: Final = 1024  # after a page that had less than this many bytes of bodies: each query costs
_SMALL_BYTES: Final = 512 * 1024
_ALL: Final = 1 << 62  # as a limit of rows


class SqlStore:
    """See :class:`unidle.store.protocol.Store`. For one thread at a time."""

    def __init__(self, database: Database, *, read_only: bool = False) -> None:
        self._db = database
        self.writer = WriterRow(database)
        """The row of the writer."""
        self._read_only = read_only
        self._lease: Lease | None = None
        self._lease_of_another: Lease | None = None  # of the store for which this connection renews it
        self._time = LeaseTime()
        self._steady = Steady(database, self._time)
        self._renewer: LeaseRenewer | None = None
        self._damaged: tuple[DamagedRequest, ...] = ()
        self.url = database.url

    @property
    def database(self) -> Database:
        """The connection, for what else is kept in the same database."""
        return self._db

    # Lease

    def token(self) -> int:
        """The token of the last lease that was given."""
        return self.writer.read().token

    def acquire(self, purpose: str) -> Lease:
        first, since_ns = self.writer.read(), boottime_ns()
        while True:
            began_ns = boottime_ns()
            # A writer that lives changes the row within a quarter of this time.
            silent = first if began_ns - since_ns > LEASE_TTL_NS else None
            try:
                self._lease = self._take(purpose, silent)
            except LeaseLost:  # another was faster between the look and the change: look again
                continue
            except StoreHeld:
                if not may_be_over(first) or self.writer.read()[:3] != first[:3]:
                    raise
                time.sleep(_LOOK_S)
                continue
            self._time.extended(began_ns)
            self._renewer = LeaseRenewer(self._time, self._another_connection)
            self._renewer.start()
            return self._lease

    def _take(self, purpose: str, silent: Writer | None) -> Lease:
        """``silent``: the row of a writer that has not renewed its lease for as long as it lasts."""
        with self.transaction():
            writer = self.writer.read()
            if is_held(writer) and (silent is None or writer[:3] != silent[:3]):
                raise StoreHeld(
                    f"is held by {words_of(writer.holder)}",
                    field=self.url,
                    remedy="wait until it ends, or stop it",
                )
            holder = lease_owner.this_process(purpose, writer.now_ns).to_json()
            lease = Lease(writer.token + 1, holder)
            self.writer.set(writer, token=lease.token, holder=holder, expires_ns=writer.now_ns + LEASE_TTL_NS)
        return lease

    def _another_connection(self) -> SqlStore:
        other = SqlStore(self._db.another())
        other._lease_of_another = self._lease
        return other

    def renew(self, lease: Lease) -> None:
        self.append(lease, ())

    def extend(self) -> None:
        """Extend the lease of the store that this connection was made for. It writes nothing else."""
        lease = self._lease_of_another
        assert lease is not None
        with self.transaction():
            self.writer.extend(self.writer.held(lease))

    def confirm(self, lease: Lease) -> None:
        if not self._time.is_fresh:
            self.renew(lease)

    def is_fresh(self, lease: Lease) -> bool:
        return self._lease is lease and self._time.is_fresh

    def release(self, lease: Lease) -> None:
        self._stop_renewing()
        try:
            with self.transaction():
                self.writer.set(self.writer.held(lease), holder=None, expires_ns=0)
        except (LeaseLost, StoreGone, ConnectionLost):  # it is lost already, or ends with this process
            pass
        self._lease = None
        self._time.ended()

    def _stop_renewing(self) -> None:
        if self._renewer is not None:
            self._renewer.stop()
            self._renewer = None

    def holder(self) -> str | None:
        writer = self.writer.read()
        return words_of(writer.holder) if is_held(writer) else None

    # Log

    def append(self, lease: Lease, events: Iterable[NewEvent], *, done_requests: Sequence[int] = ()) -> int:
        if not isinstance(events, Sequence):
            with self.transaction():  # once: a stream cannot be read twice
                return self._append(self.writer.held(lease), events, done_requests)
        before: int | None = None  # the end of the log, where a first try may have got through
        began_ns = boottime_ns()

        def work() -> int:
            nonlocal before, began_ns
            began_ns = boottime_ns()
            with self.transaction():
                writer = self.writer.held(lease)
                if before is not None and events and writer.last_seq == before + len(events):
                    return writer.last_seq  # it was committed, and only the answer was lost
                before = writer.last_seq
                return self._append(writer, events, done_requests)

        last = self._steady.run(work)
        self._time.extended(began_ns)
        return last

    def _append(self, writer: Writer, events: Iterable[NewEvent], done_requests: Sequence[int]) -> int:
        last_seq, last_time_ns = writer.last_seq, writer.last_time_ns
        source = iter(events)
        while batch := list(islice(source, _PAGE)):
            last_time_ns = check_times(batch, last_time_ns)
            self._db.execute_many(sql.ADD_EVENT, event_rows(batch, last_seq))
            last_seq += len(batch)
        for request_id in done_requests:
            self._db.execute(sql.DROP_REQUEST, (request_id,))
        self.writer.extend(writer, last_seq=last_seq, last_time_ns=last_time_ns)
        return last_seq

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[StoredEvent]:
        head = self.writer.read().last_seq
        left, most = limit, _PAGE
        while left is None or left > 0:
            page = most if left is None else min(most, left)
            rows = self._db.query(sql.EVENTS, (after, page))
            yield from verified(rows, after)
            most = _LARGE_PAGE if sum([len(row[5]) for row in rows]) < _SMALL_BYTES else _PAGE
            after += len(rows)
            if left is not None:
                left -= len(rows)
            if len(rows) < page:
                if after < head:
                    raise StoreDamaged(
                        f"the log ends at event {after}, but {head} were acknowledged",
                        field=self.url,
                        remedy=CHECK,
                    )
                return

    def scan(self) -> Iterator[tuple[StoredEvent, bool]]:
        """Every row of the log as it is, and whether its checksum holds. For ``store check``."""
        after = -1
        while rows := self._db.query(sql.EVENTS, (after, _PAGE)):
            for row in rows:
                event = StoredEvent._make(row[:6])
                yield event, crc_holds(event, row[6])
            after = rows[-1][0]

    def last(self) -> tuple[int, int]:
        writer = self.writer.read()
        return writer.last_seq, writer.last_time_ns

    # Inbox

    def request(self, kind: str, body: bytes) -> int:
        with self.transaction():
            time_ns = self._db.query("SELECT {now}")[0][0]
            crc = blob_crc(body, time_ns, kind)
            if self._db.signs_requests:
                return self._db.insert(sql.ADD_REQUEST, (time_ns, kind, body, crc))
            return self._db.insert(sql.ADD_SIGNED_REQUEST, (time_ns, kind, body, crc, self._db.user()))

    def is_waiting(self, request_id: int) -> bool:
        return bool(self._db.query(sql.REQUEST_IS, (request_id,)))

    def keep_request(self, request: Request) -> int:
        """Put a request of another store or user into the inbox, with its time and, where a file keeps that, its sender.

        Its id here.
        """
        time_ns, kind, body = request[1:4]
        crc = blob_crc(body, time_ns, kind)
        with self.transaction():
            if self._db.signs_requests:
                return self._db.insert(sql.ADD_REQUEST, (time_ns, kind, body, crc))
            return self._db.insert(sql.ADD_SIGNED_REQUEST, (time_ns, kind, body, crc, request.sender))

    def requests(self, limit: int | None = None) -> list[Request]:
        return self._steady.run(lambda: self._requests(_ALL if limit is None else limit))

    def _requests(self, limit: int) -> list[Request]:
        self._db.verify()
        found, damaged = [], []
        for request_id, time_ns, kind, body, crc, sender in self._request_rows(limit):
            if request_holds(time_ns, kind, body, crc):
                found.append(Request(request_id, time_ns, kind, body, sender))
            else:
                damaged.append(DamagedRequest(request_id, kind if isinstance(kind, str) else ""))
        self._damaged = tuple(damaged)
        return found

    def damaged_requests(self) -> tuple[DamagedRequest, ...]:
        return self._damaged

    def _request_rows(self, limit: int) -> list[RowTuple]:
        old = self._read_only and self._db.query(sql.REVISION_IS)[0][0] in UNSIGNED
        try:
            return self._db.query(sql.UNSIGNED_REQUESTS if old else sql.REQUESTS, (limit,))
        except StoreDamaged:  # a row that cannot even be decoded: find out which one it is
            one = sql.UNSIGNED_REQUEST if old else sql.REQUEST
            return [
                row
                for (number,) in self._db.query(sql.REQUEST_IDS, (limit,))
                for row in self._row_or_none(one, number)
            ]

    def _row_or_none(self, statement: str, number: int) -> list[RowTuple]:
        try:
            return self._db.query(statement, (number,))
        except StoreDamaged:
            return [(number, 0, "", None, 0, "")]

    def user(self) -> str:
        return self._db.user()

    def owned_by(self, user: str) -> bool:
        return self._steady.run(lambda: self._db.owned_by(user))

    # What is derived

    def save_snapshot(
        self,
        lease: Lease,
        snapshot: Snapshot,
        segments: Sequence[Segment] = (),
        rows: Sequence[ViewRow] = (),
        dropped: Sequence[tuple[str, str]] = (),
    ) -> None:
        # once more is no harm: a snapshot is replaced, and of segments of one event the last one counts
        self._steady.run(lambda: self._save_snapshot(lease, snapshot, segments, rows, dropped))

    def _save_snapshot(
        self,
        lease: Lease,
        snapshot: Snapshot,
        segments: Sequence[Segment],
        rows: Sequence[ViewRow],
        dropped: Sequence[tuple[str, str]],
    ) -> None:
        with self.transaction():
            writer = self.writer.held(lease)
            derived.save(self._db, snapshot, segments)
            if rows:
                view_rows.add(self._db, snapshot.fold_version, snapshot.seq, rows)
            if dropped:
                view_rows.drop(self._db, snapshot.fold_version, dropped)
            self.writer.extend(writer)

    def load_snapshot(self, fold_version: int) -> Snapshot | None:
        return derived.newest_snapshot(self._db, fold_version, self.writer.read().last_seq)

    def segments(self, fold_version: int) -> list[Segment]:
        return derived.segments(self._db, fold_version)

    def segment_body(self, segment_id: int) -> bytes:
        return derived.segment_body(self._db, segment_id)

    def view_row(self, fold_version: int, part: str, seq: int, key: str) -> bytes | None:
        return view_rows.row_of(self._query_again, fold_version, part, seq, key)

    def view_rows(
        self, fold_version: int, part: str, seq: int, *, backwards: bool = False
    ) -> Iterator[ViewRow]:
        return view_rows.rows_of(self._query_again, fold_version, part, seq, backwards=backwards)

    def view_row_keys(self, fold_version: int, part: str) -> list[str]:
        return [key for (key,) in self._query_again(sql.VIEW_ROW_KEYS, (fold_version, part))]

    def has_view_rows(self, fold_version: int, part: str, seq: int, count: int) -> bool:
        try:
            return not count or sum(1 for _ in self.view_rows(fold_version, part, seq)) == count
        except StoreDamaged:
            return False

    def _query_again(self, statement: str, params: Params) -> list[RowTuple]:
        return self._steady.run(lambda: self._db.query(statement, params))

    # Bookmarks

    def save_bookmark(self, lease: Lease, bookmark: Bookmark) -> None:
        self._steady.run(lambda: self._save_bookmark(lease, bookmark))

    def _save_bookmark(self, lease: Lease, bookmark: Bookmark) -> None:
        key = (bookmark.name, bookmark.seq)
        with self.transaction():
            self.writer.extend(self.writer.held(lease))
            self._db.execute(sql.SET_BOOKMARK, (*key, blob_crc(bookmark.body, *key), bookmark.body))

    def load_bookmark(self, name: str) -> Bookmark | None:
        for seq, crc, body in self._db.query(sql.BOOKMARK, (name,)):
            if blob_crc(body, name, seq) != crc:
                raise StoreDamaged("its checksum is wrong", field=f"bookmark {name}", remedy=CHECK)
            return Bookmark(name, seq, bytes(body))
        return None

    def bookmarks(self) -> list[Bookmark | None]:
        """All bookmarks; None in the place of a damaged one."""
        found = []
        for (name,) in self._db.query(sql.BOOKMARK_NAMES):
            try:
                found.append(self.load_bookmark(name))
            except StoreDamaged:
                found.append(None)
        return found

    # Whole

    def transaction(self) -> AbstractContextManager[None]:
        """Make everything inside one transaction: durable at its end, undone when it raises."""
        if self._read_only:
            raise StoreError("was opened for reading only", field=self.url, remedy="open it for writing")
        return self._db.transaction()

    def faults(self) -> Iterator[str]:
        """What is wrong outside the log: the database's own check, snapshots, bookmarks, segments."""
        yield from self._db.problems()
        yield from derived.faults(self._db)
        for (name,) in self._db.query(sql.BOOKMARK_NAMES):
            try:
                self.load_bookmark(name)
            except StoreDamaged as error:
                yield str(error)
        from unidle.store.archives import archive_faults
        from unidle.store.profiles import faults

        yield from faults(self)
        yield from archive_faults(self)

    def compact(self, lease: Lease) -> tuple[int, int]:
        """Drop superseded snapshots and segments and shrink the database; bytes before and after."""
        before = self._db.size_bytes()
        with self.transaction():
            self.writer.set(self.writer.held(lease))
            derived.drop_superseded(self._db)
        self._db.vacuum()
        return before, self._db.size_bytes()

    def close(self) -> None:
        if self._lease is not None:
            with suppress(StoreError):  # else it ends with this process
                self.release(self._lease)
        self._stop_renewing()
        self._db.close()
