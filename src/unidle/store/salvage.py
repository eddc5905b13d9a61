"""What is whole in a damaged store: every row whose checksum holds, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from unidle.errors import StoreDamaged, StoreError
from unidle.store import statements
from unidle.store.archives import ArchiveShelf
from unidle.store.checksum import blob_crc, event_crc, fields_crc
from unidle.store.pages import Pages, Place, Value, read_pages
from unidle.store.profiles import ProfileRow, ProfileShelf
from unidle.store.protocol import Bookmark, Request, StoredEvent
from unidle.store.sql import SqlStore
from unidle.words import counted

_PAGE: Final = 256
_Parts: TypeAlias = dict[str, dict[int, tuple[bool, Place]]]  # by job and number: whether it is the last one


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
    archives: dict[str, Callable[[], Iterator[bytes]]] = field(
        default_factory=dict
    )  # by job: reads its parts
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
        if pages.torn:
            found.notes.append(
                "the write-ahead log ends with a part of a commit, which does not count; what it had was acknowledged only "
                "if the disk lost the rest later"
            )
        if found.seqs or found.last_seq is not None:
            return found
    raise StoreError(
        "no row of a store of unidle can be found in it", field=str(path), remedy="restore it from an export"
    )


def _of_pages(pages: Pages) -> Salvage:
    found = Salvage()
    places: dict[int, Place] = {}
    parts: _Parts = {}
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
            if len(values) == 6 and isinstance(values[0], str):
                _keep_part(parts, values, place)
            else:
                _keep(found, rowid, values)
    if not listed and found.requests:
        found.notes.append(
            f"requests {', '.join(str(one.id) for one in found.requests)}: whether they were done already cannot "
            "be read; they are left out"
        )
        found.requests = []
    _keep_archives(found, pages, parts)
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


def _keep_part(parts: _Parts, values: tuple[Value, ...], place: Place) -> None:
    """A part of an archive, where its checksum holds; its bytes are read again when they are needed."""
    job, part, last, n_bytes, crc, body = values
    with suppress(TypeError, UnicodeError):
        if blob_crc(body, job, part, last, n_bytes) == crc and n_bytes == len(body):  # type: ignore[arg-type]
            parts.setdefault(str(job), {})[int(part)] = bool(last), place  # type: ignore[arg-type]


def _keep_archives(found: Salvage, pages: Pages, parts: _Parts) -> None:
    """The archives whose parts are all whole. Jobs of which no part is whole are known by the index of the archives."""
    keys = (key for key in pages.index_keys() if len(key) == 3)
    named = {
        job for job, part, row in keys if isinstance(job, str) and isinstance(part, int) and row is not None
    }
    for job in sorted(named | parts.keys()):
        whole, number = parts.get(job, {}), 0
        while number in whole and not whole[number][0]:
            number += 1
        if number in whole:
            places = [whole[k][1] for k in range(number + 1)]
            found.archives[job] = partial(_bodies, pages, places)
        else:
            found.notes.append(_no_archive(job, number))


def _bodies(pages: Pages, places: Sequence[Place]) -> Iterator[bytes]:
    for place in places:
        yield pages.row(place).values[5]  # type: ignore[misc]


def _no_archive(job: str, part: int) -> str:
    return f"archive of {job}: part {part} is damaged or missing; the archive is left out"


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
    profiles, archives = ProfileShelf(store), ArchiveShelf(store)
    found.profiles = [one for key in profiles.all_keys() if (one := profiles.row(key)) is not None]
    for job in sorted(archives.jobs()):
        if (bad := archives.first_fault(job)) is None:
            found.archives[job] = partial(archives.read, job)
        else:
            found.notes.append(_no_archive(job, bad))
    return found
