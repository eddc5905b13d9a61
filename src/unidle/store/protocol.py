"""The store: an append-only event log with one fenced writer, and the data stored next to the log.

The store does not know what an event means: it keeps ``kind`` and ``body`` (JSON bytes) with their
times and sources. Snapshots and ledger segments are disposable: both can be folded again from the
log, and both belong to one ``fold_version``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class NewEvent(NamedTuple):
    """An event that has no sequence number yet."""

    time_ns: int
    source: str
    source_seq: int
    kind: str
    body: bytes  # JSON object, UTF-8


class StoredEvent(NamedTuple):
    """An event as the log holds it; ``seq`` starts at 1 and has no gaps."""

    seq: int
    time_ns: int
    source: str
    source_seq: int
    kind: str
    body: bytes


class Request(NamedTuple):
    """A request of a client to the writer (submit, cancel, ...).

    ``sender``: the submitter, as far as the store can tell; empty where an older version kept no such thing.
    """

    id: int
    time_ns: int
    kind: str
    body: bytes
    sender: str = ""


class DamagedRequest(NamedTuple):
    """A request whose checksum is wrong. ``kind`` may be wrong, too."""

    id: int
    kind: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append. ``token`` grows with each holder; a lower one is fenced off."""

    token: int
    holder: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fold's state after event ``seq``."""

    seq: int
    fold_version: int
    body: bytes


class ViewRow(NamedTuple):
    """Something of a fold's state that a snapshot leaves out: of a ``part`` of it, in the order of ``position``."""

    part: str
    key: str
    position: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """Sealed ledger rows as one Parquet file, from the events up to ``seq``."""

    id: int
    seq: int
    fold_version: int
    start_ns: int
    end_ns: int
    rows: int
    body: bytes | None = None  # None where only the description was asked for


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Progress of a process that acts on the log (event ``seq``), and what is still to be done.

    It cannot be folded from the log again, since what was done outside is not in it.
    """

    name: str
    seq: int
    body: bytes


class Store(Protocol):
    """See ``tests/store/test_store_contract.py`` for what every implementation must keep.

    Errors: :class:`unidle.errors.StoreHeld`, :class:`unidle.errors.LeaseLost`,
    :class:`unidle.errors.StoreDamaged`, else :class:`unidle.errors.StoreError`.
    """

    url: str

    def acquire(self, purpose: str) -> Lease:
        """Become the writer; :class:`StoreHeld` while another live writer is. From now on a thread of the store renews
        the lease, until it is released. A holder on this machine that is dead (pid and start time) is replaced at once,
        any other when its lease expires. This waits, 4 s at most, where the holder may be gone: one of an earlier start
        of this machine or container, and one that lives here and does not renew its lease (it is stopped)."""

    def renew(self, lease: Lease) -> None:
        """Extend the lease; :class:`LeaseLost` when it was taken over."""

    def confirm(self, lease: Lease) -> None:
        """See that this writer may still act: half of the lease is not over since it was extended, by this process's own
        clock, else it is extended now. :class:`LeaseLost` when it was taken over, :class:`StoreError` when
        the store does not answer: then nothing may be done any more on behalf of this lease."""

    def is_fresh(self, lease: Lease) -> bool:
        """Whether half of the lease is not over, by this process's own clock. Any thread may ask, and it never waits."""

    def release(self, lease: Lease) -> None:
        """Give the lease back; no error when it is already lost."""

    def holder(self) -> str | None:
        """Who holds the store now, in words, or None."""

    def append(self, lease: Lease, events: Iterable[NewEvent], *, done_requests: Sequence[int] = ()) -> int:
        """Append durably, all or nothing, and return the log's last ``seq``. The requests in
        ``done_requests`` leave the inbox in the same transaction."""

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[StoredEvent]:
        """Events with ``seq > after`` in order, streamed (memory is bounded)."""

    def last(self) -> tuple[int, int]:
        """``(seq, time_ns)`` of the last event; ``(0, 0)`` for an empty log."""

    def request(self, kind: str, body: bytes) -> int:
        """Put a request into the inbox durably (needs no lease) and return its id."""

    def requests(self, limit: int | None = None) -> list[Request]:
        """Requests that no writer has taken over yet, oldest first; of at most ``limit`` of them. Damaged ones are passed over."""

    def damaged_requests(self) -> tuple[DamagedRequest, ...]:
        """Those that the last call of :meth:`requests` passed over."""

    def is_waiting(self, request_id: int) -> bool:
        """Whether the request is in the inbox."""

    def user(self) -> str:
        """The user of this process for the store: a PostgreSQL role, else the user of the process."""

    def owned_by(self, user: str) -> bool:
        """Whether the store is this user's, who may act for others."""

    def save_snapshot(
        self,
        lease: Lease,
        snapshot: Snapshot,
        segments: Sequence[Segment] = (),
        rows: Sequence[ViewRow] = (),
        dropped: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Keep a snapshot, and the segments and the rows that it leaves out, in one transaction; older
        snapshots of the same fold version go, and the rows ``dropped`` (part and key of each)."""

    def view_row(self, fold_version: int, part: str, seq: int, key: str) -> bytes | None:
        """A row of that part that a snapshot up to event ``seq`` leaves out; None if there is none of that key."""

    def view_rows(
        self, fold_version: int, part: str, seq: int, *, backwards: bool = False
    ) -> Iterator[ViewRow]:
        """All of these in the order of their positions, streamed."""

    def view_row_keys(self, fold_version: int, part: str) -> list[str]:
        """Keys of all rows of that part, whatever is left out by which snapshot."""

    def has_view_rows(self, fold_version: int, part: str, seq: int, count: int) -> bool:
        """Whether these are so many, and none of them is damaged."""

    def load_snapshot(self, fold_version: int) -> Snapshot | None:
        """The newest usable snapshot of that fold version (a damaged one is passed over)."""

    def segments(self, fold_version: int) -> list[Segment]:
        """Descriptions (without body) of all segments of that fold version, in order of ``seq``."""

    def segment_body(self, segment_id: int) -> bytes:
        """The Parquet bytes of one segment."""

    def save_bookmark(self, lease: Lease, bookmark: Bookmark) -> None:
        """Keep a bookmark durably in place of the one of the same name."""

    def load_bookmark(self, name: str) -> Bookmark | None:
        """The bookmark of that name (at most 64 characters); None if there is none of that name."""

    def close(self) -> None: ...
