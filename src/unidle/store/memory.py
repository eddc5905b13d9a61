"""The store in memory, for the simulator: the same guarantees within one process, without durability."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from unidle.errors import LeaseLost, StoreError, StoreHeld
from unidle.login import login_name
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


class MemoryStore:
    """See :class:`unidle.store.protocol.Store`."""

    url = "memory"

    def __init__(self) -> None:
        self._events: list[StoredEvent] = []
        self._requests: dict[int, Request] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._segments: dict[int, Segment] = {}
        self._rows: dict[tuple[int, str, str], tuple[int, ViewRow]] = {}  # each with its snapshot's event
        self._bookmarks: dict[str, Bookmark] = {}
        self._lease: Lease | None = None
        self._token = 0
        self._last_id = 0

    def acquire(self, purpose: str) -> Lease:
        if self._lease is not None:
            raise StoreHeld(
                f"the store is held by {self._lease.holder}", field=self.url, remedy="release it first"
            )
        self._token += 1
        self._lease = Lease(self._token, purpose)
        return self._lease

    def renew(self, lease: Lease) -> None:
        if self._lease is None or self._lease.token != lease.token:
            raise LeaseLost("this writer lost the store", field=self.url, remedy="nothing was written")

    def confirm(self, lease: Lease) -> None:
        self.renew(lease)

    def is_fresh(self, lease: Lease) -> bool:
        return self._lease is not None and self._lease.token == lease.token

    def release(self, lease: Lease) -> None:
        if self._lease is not None and self._lease.token == lease.token:
            self._lease = None

    def holder(self) -> str | None:
        return self._lease.holder if self._lease else None

    def append(self, lease: Lease, events: Iterable[NewEvent], *, done_requests: Sequence[int] = ()) -> int:
        self.renew(lease)
        seq, last_time_ns = self.last()
        new = []
        for event in events:
            if event.time_ns < last_time_ns:
                raise StoreError(
                    f"an event is older than the one before it, at {last_time_ns}",
                    field=f"time_ns of {event.kind}",
                    value=event.time_ns,
                )
            seq, last_time_ns = seq + 1, event.time_ns
            new.append(StoredEvent(seq, *event))
        self._events.extend(new)
        for request_id in done_requests:
            self._requests.pop(request_id, None)
        return seq

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[StoredEvent]:
        index, end = after, None if limit is None else after + limit
        while index < len(self._events) and (end is None or index < end):
            yield self._events[index]
            index += 1

    def scan(self) -> Iterator[tuple[StoredEvent, bool]]:
        """Every event, and True: memory keeps no checksums."""
        return ((event, True) for event in self._events)

    def last(self) -> tuple[int, int]:
        return (self._events[-1].seq, self._events[-1].time_ns) if self._events else (0, 0)

    def request(self, kind: str, body: bytes) -> int:
        self._last_id += 1
        self._requests[self._last_id] = Request(self._last_id, time.time_ns(), kind, body, self.user())
        return self._last_id

    def requests(self, limit: int | None = None) -> list[Request]:
        return list(self._requests.values())[:limit]

    def is_waiting(self, request_id: int) -> bool:
        return request_id in self._requests

    def damaged_requests(self) -> tuple[DamagedRequest, ...]:
        return ()

    def user(self) -> str:
        return login_name()

    def owned_by(self, user: str) -> bool:  # noqa: ARG002  (one process is one user)
        return True

    def save_snapshot(
        self,
        lease: Lease,
        snapshot: Snapshot,
        segments: Sequence[Segment] = (),
        rows: Sequence[ViewRow] = (),
        dropped: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.renew(lease)
        for segment in segments:
            if segment.body is None:
                raise StoreError("a segment needs its body", field=f"segment up to {segment.seq}")
        self._snapshots[snapshot.fold_version] = snapshot
        for segment in segments:
            self._last_id += 1
            self._segments[self._last_id] = replace(segment, id=self._last_id)

        for row in rows:
            self._rows[snapshot.fold_version, row.part, row.key] = snapshot.seq, row
        for part, key in dropped:
            self._rows.pop((snapshot.fold_version, part, key), None)

    def view_row(self, fold_version: int, part: str, seq: int, key: str) -> bytes | None:
        saved, row = self._rows.get((fold_version, part, key), (0, None))
        return row.body if row is not None and saved <= seq else None

    def view_rows(
        self, fold_version: int, part: str, seq: int, *, backwards: bool = False
    ) -> Iterator[ViewRow]:
        found = [
            row
            for (version, part_of, _), (saved, row) in self._rows.items()
            if version == fold_version and part_of == part and saved <= seq
        ]
        return iter(sorted(found, key=lambda row: row.position, reverse=backwards))

    def view_row_keys(self, fold_version: int, part: str) -> list[str]:
        return [key for version, part_of, key in self._rows if (version, part_of) == (fold_version, part)]

    def has_view_rows(self, fold_version: int, part: str, seq: int, count: int) -> bool:
        return sum(1 for _ in self.view_rows(fold_version, part, seq)) == count

    def load_snapshot(self, fold_version: int) -> Snapshot | None:
        return self._snapshots.get(fold_version)

    def segments(self, fold_version: int) -> list[Segment]:
        found = [replace(s, body=None) for s in self._segments.values() if s.fold_version == fold_version]
        return sorted(found, key=lambda s: (s.seq, s.id))

    def segment_body(self, segment_id: int) -> bytes:
        segment = self._segments.get(segment_id)
        if segment is None or segment.body is None:
            raise StoreError("there is no such segment", field="segment", value=segment_id)
        return segment.body

    def save_bookmark(self, lease: Lease, bookmark: Bookmark) -> None:
        self.renew(lease)
        self._bookmarks[bookmark.name] = bookmark

    def load_bookmark(self, name: str) -> Bookmark | None:
        return self._bookmarks.get(name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo appended events and requests of the block if it raises."""
        events, requests = len(self._events), dict(self._requests)
        try:
            yield
        except BaseException:
            del self._events[events:]
            self._requests = requests
            raise

    def faults(self) -> Iterator[str]:
        """Nothing: memory is not checked."""
        return iter(())

    def compact(self, lease: Lease) -> tuple[int, int]:
        """Nothing to shrink."""
        self.renew(lease)
        return 0, 0

    def close(self) -> None:
        self._lease = None


class ForgetfulStore(MemoryStore):
    """Keeps of the log its last event only: for simulations that need only the final view."""

    def append(self, lease: Lease, events: Iterable[NewEvent], *, done_requests: Sequence[int] = ()) -> int:
        seq = super().append(lease, events, done_requests=done_requests)
        del self._events[:-1]
        return seq

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[StoredEvent]:
        if after < self.last()[0] and limit != 0:
            raise StoreError(
                "the log is not stored", field=self.url, remedy="use a SQLite or PostgreSQL store"
            )
        return iter(())
