"""What is whole in a damaged store: every row whose checksum holds, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from unidle.errors import StoreDamaged, StoreError
from unidle.store import statements
from unidle.store.checksum import blob_crc, event_crc, fields_crc
from unidle.store.pages import Pages, Place, Value, read_pages
from unidle.store.profiles import ProfileRow
from unidle.store.protocol import Bookmark, Request, StoredEvent
from unidle.store.sql import SqlStore
from unidle.words import counted

_PAGE: Final = 256


class Trace(NamedTuple):
    """What can still be read of a damaged event; each of it may be wrong."""

    kind: str
    body: bytes


@dataclass(slots=True)
class Salvage:
    """The whole rows of one store. ``event(seq)`` reads one event again, so that a long log needs little memory."""

    seqs: list[int] = field(default_factory=list)  # in order
    event: Callable[[int], StoredEvent] = lambda seq: _missing(seq)
    last_seq: int | None = None  # of the head of the log; None where that is damaged
    last_time_ns: int | None = None
    holder: str | None = None  # as the head of the log has it
    traces: dict[int, Trace] = field(default_factory=dict)  # of damaged events, by number
    requests: list[Request] = field(default_factory=list)
    bookmarks: list[Bookmark] = field(default_factory=list)
    profiles: list[ProfileRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what else is missing

    def events(self) -> Iterator[StoredEvent]:
        return map(self.event, self.seqs)


def _missing(seq: int) -> StoredEvent:
    raise StoreDamaged("is missing", field=f"event {seq}")


def of_file(path: Path) -> Salvage:
    """From the pages of a SQLite file and its write-ahead log. Errors: :class:`StoreError` if no row is whole."""
    try:
        readings = read_pages(path)
    except OSError as error:
        raise StoreError(
            f"cannot be read: {error.strerror}", field=str(path),
            remedy="copy what the disk still reads of it (`ddrescue`), and repair the copy",
        ) from error  # fmt: skip
    for pages in readings:
        found = _of_pages(pages)
        failed = pages.data.unreadable + (pages.log.unreadable if pages.log is not None else 0)
        if failed:
            found.notes.append(
                f"the disk could not read {counted(failed, 'page')}; copy the file with `ddrescue`"
            )
        if found.seqs or found.last_seq is not None:
            return found
    raise StoreError(
        "no row of a store of unidle can be found in it", field=str(path), remedy="restore it from an export"
    )


def _of_pages(pages: Pages) -> Salvage:
    found = Salvage()
    places: dict[int, Place] = {}
    listed = pages.read_unused()
    for rowid, values, place in pages.rows():
        if len(values) == 7 and values[0] is None:
            if _is_event(rowid, values):
                places.setdefault(rowid, place)
            elif rowid == 1 and pages.is_current(place) and _is_writer(values):
                found.holder = values[2] if isinstance(values[2], str) else None
                found.last_seq, found.last_time_ns = int(values[4] or 0), int(values[5] or 0)
            elif isinstance(values[4], str) and isinstance(values[5], bytes):
                found.traces[rowid] = Trace(values[4], values[5])
        elif pages.is_current(place):
            _keep(found, rowid, values)
    if not listed and found.requests:
        found.notes.append(
            f"requests {', '.join(str(one.id) for one in found.requests)}: whether they were done already cannot "
            "be read; they are left out"
        )
        found.requests = []
    found.seqs = sorted(places)
    found.requests.sort()
    found.traces = {seq: trace for seq, trace in found.traces.items() if seq not in places}

    def event(seq: int) -> StoredEvent:
        _, (_, time_ns, source, source_seq, kind, body, _), _ = pages.row(places[seq])
        return StoredEvent(seq, time_ns, source, source_seq, kind, body)  # type: ignore[arg-type]

    found.event = event
    return found


def _keep(found: Salvage, rowid: int, values: tuple[Value, ...]) -> None:
    """A row of one of the smaller tables, where its checksum holds."""
    with suppress(TypeError, UnicodeError):
        if len(values) in (5, 6) and values[0] is None:
            _, time_ns, kind, body, crc, *sender = values
            if blob_crc(body, time_ns, kind) == crc:  # type: ignore[arg-type]
                found.requests.append(Request(rowid, time_ns, kind, body, *sender))  # type: ignore[arg-type]
            elif isinstance(kind, str) and isinstance(body, bytes):
                found.notes.append(f"request {rowid}: its checksum is wrong")
        elif len(values) == 4 and isinstance(values[0], str):
            name, seq, crc, body = values
            if blob_crc(body, name, seq) == crc:  # type: ignore[arg-type]
                found.bookmarks.append(Bookmark(name, seq, body))  # type: ignore[arg-type]
        elif len(values) == 9:
            *fields, crc, body = values
            if blob_crc(body, *fields) == crc:  # type: ignore[arg-type]
                found.profiles.append(ProfileRow._make((*fields[:6], body)))


def _is_event(seq: int, values: tuple[Value, ...]) -> bool:
    with suppress(TypeError, UnicodeError):
        return event_crc(seq, *values[1:6]) == values[6]  # type: ignore[arg-type]
    return False


def _is_writer(values: tuple[Value, ...]) -> bool:
    with suppress(TypeError, UnicodeError):
        return fields_crc(*values[1:6]) == values[6]  # type: ignore[arg-type]
    return False


def of_rows(store: SqlStore) -> Salvage:
    """From the rows that a database server still gives."""
    found = Salvage()
    for row, holds in store.scan():
        if holds:
            found.seqs.append(row.seq)
        elif isinstance(row.kind, str) and isinstance(row.body, bytes):
            found.traces[row.seq] = Trace(row.kind, row.body)
    with suppress(StoreDamaged):
        found.last_seq, found.last_time_ns = store.last()
        found.holder = store.holder()
    found.requests = store.requests()
    found.notes = [f"request {one.id}: its checksum is wrong" for one in store.damaged_requests()]
    page: dict[int, StoredEvent] = {}

    def event(seq: int) -> StoredEvent:
        if seq not in page:
            page.clear()
            rows = store.database.query(statements.EVENTS, (seq - 1, _PAGE))
            page.update((row[0], StoredEvent._make(row[:6])) for row in rows)
        return page[seq]

    found.event = event
    found.bookmarks = [one for one in store.bookmarks() if one is not None]
    return found
