"""Rows of events and requests, and whether their checksums hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unidle.errors import StoreDamaged, StoreError
from unidle.store.checksum import blob_crc, event_crc
from unidle.store.database import RowTuple
from unidle.store.protocol import NewEvent, StoredEvent

CHECK: Final = "run `unidle store check`"
_stored: Final = tuple.__new__  # as StoredEvent._make, without its check of a length that is known


def check_times(batch: Sequence[NewEvent], last_time_ns: int) -> int:
    for event in batch:
        if event.time_ns < last_time_ns:
            raise StoreError(
                f"an event is older than the one before it, at {last_time_ns}",
                field=f"time_ns of {event.kind}",
                value=event.time_ns,
                remedy="give the clock the log's last time (RealClock(not_before_ns))",
            )
        last_time_ns = event.time_ns
    return last_time_ns


def event_rows(batch: Sequence[NewEvent], last_seq: int) -> list[RowTuple]:
    return [(seq, *event, event_crc(seq, *event)) for seq, event in enumerate(batch, last_seq + 1)]


def verified(rows: list[RowTuple], after: int) -> Iterator[StoredEvent]:
    for expected, row in enumerate(rows, after + 1):
        seq, time_ns, source, source_seq, kind, body, crc = row
        if seq != expected:
            raise StoreDamaged("is missing from the log", field=f"event {expected}", remedy=CHECK)
        try:
            holds = event_crc(seq, time_ns, source, source_seq, kind, body) == crc
        except TypeError:  # damage may have changed a field's type
            holds = False
        if not holds:
            raise StoreDamaged("its checksum is wrong", field=f"event {expected}", remedy=CHECK)
        yield _stored(StoredEvent, row[:6])


def request_holds(time_ns: int, kind: str, body: object, crc: object) -> bool:
    try:
        return blob_crc(body, time_ns, kind) == crc
    except UnicodeEncodeError:  # damage may have changed a field's text
        return False


def crc_holds(event: StoredEvent, crc: object) -> bool:
    try:
        return event_crc(*event) == crc
    except TypeError:  # damage may have changed a field's type
        return False
