"""Whole-store work for the command line: check, export, import, compact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO, Final, Protocol, TypeAlias, TypeVar

import msgspec

from unidle.errors import BadInput, StoreDamaged, StoreError
from unidle.jobs.spec import is_job_id
from unidle.store.archives import ArchiveShelf
from unidle.store.profiles import ProfileShelf
from unidle.store.protocol import Lease, NewEvent, Request, Store, StoredEvent
from unidle.store.salvage import Salvage
from unidle.store.sql import SqlStore

_T = TypeVar("_T")

EXPORT_VERSION: Final = 1
_MOST_PROBLEMS: Final = 100
_LONGEST_LINE: Final = 256 << 20


class WholeStore(Store, Protocol):
    """What these tools need beyond :class:`Store`; every store of this package has it."""

    def scan(self) -> Iterator[tuple[StoredEvent, bool]]: ...

    def faults(self) -> Iterator[str]: ...

    def transaction(self) -> AbstractContextManager[None]: ...

    def compact(self, lease: Lease) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What :func:`check` found. ``problems`` lists the first hundred, ``problem_count`` counts all."""

    events: int
    last_time_ns: int
    requests: int
    problem_count: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problem_count


def check(store: WholeStore) -> CheckReport:
    """Read everything once and compare it with its checksums and with the log's rules."""
    problems: list[str] = []
    count = events = last_time_ns = requests = 0

    def all_faults() -> Iterator[str]:
        nonlocal events, last_time_ns, requests
        yield from store.faults()
        seq = 0
        for event, crc_holds in store.scan():
            yield from _event_faults(event, crc_holds, seq, last_time_ns)
            seq, events = event.seq, events + 1
            last_time_ns = max(last_time_ns, event.time_ns) if crc_holds else last_time_ns
        if store.last()[0] > seq:
            yield f"the log ends at event {seq}, but {store.last()[0]} were acknowledged"
        requests = len(store.requests())
        for damaged in store.damaged_requests():
            yield f"request {damaged.id}: its checksum is wrong (it is passed over)"

    try:
        for fault in all_faults():
            count += 1
            if count <= _MOST_PROBLEMS:
                problems.append(fault)
    except StoreDamaged as error:
        count += 1
        problems.append(f"cannot be read further: {error}")
    return CheckReport(events, last_time_ns, requests, count, tuple(problems))


def _event_faults(event: StoredEvent, crc_holds: bool, before: int, last_time_ns: int) -> Iterator[str]:
    if event.seq != before + 1:
        yield f"event {before + 1}: is missing from the log"
    if not crc_holds:
        yield f"event {event.seq}: its checksum is wrong"
        return
    if event.time_ns < last_time_ns:
        yield f"event {event.seq}: is older than the one before it"
    if not _is_json(event.body):
        yield f"event {event.seq}: its body is not JSON"


# Export format: a header, pending requests, events in order, archives of a damaged store, a trailer with the counts and the
# SHA-256 of all lines before it. One JSON object per line.


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int


class _RequestLine(msgspec.Struct, forbid_unknown_fields=True, tag="request", tag_field="line"):
    kind: str
    body: bytes


class _EventLine(msgspec.Struct, forbid_unknown_fields=True, tag="event", tag_field="line"):
    """``body`` stands as it is; bytes that are not one line of JSON stand in ``raw`` as base64."""

    seq: int
    time_ns: int
    source: str
    source_seq: int
    kind: str
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: bytes | msgspec.UnsetType = msgspec.UNSET


class _ArchiveLine(msgspec.Struct, forbid_unknown_fields=True, tag="archive", tag_field="line"):
    """A part of the archive of a job, in order."""

    job: str
    part: int
    body: bytes


class _JobLine(msgspec.Struct):
    """The part of a submitted job that is checked."""

    job: str


class _Trailer(msgspec.Struct, forbid_unknown_fields=True, tag="end", tag_field="line"):
    events: int
    requests: int
    sha256: str


_Line: TypeAlias = _RequestLine | _EventLine | _ArchiveLine | _Trailer
_FORMAT: Final = "unidle-export"


def export(store: WholeStore, out: BinaryIO) -> int:
    """Write the whole log and the inbox as JSON lines and return the number of events.

    A damaged head of the log does not hinder it; any other damage is :class:`StoreDamaged`.
    """
    return write_export(out, store.requests(), _intact(store))


def write_export(
    out: BinaryIO, requests: Sequence[Request], events: Iterable[StoredEvent],
    archives: Mapping[str, Callable[[], Iterable[bytes]]] = MappingProxyType({}),
) -> int:  # fmt: skip
    """The same of given requests and events, which have no gap, and of archives by job."""
    digest = hashlib.sha256()
    encode = msgspec.json.Encoder().encode

    def write(line: _Header | _Line) -> None:
        data = encode(line) + b"\n"
        digest.update(data)
        out.write(data)

    write(_Header(_FORMAT, EXPORT_VERSION))
    for request in requests:
        write(_RequestLine(request.kind, request.body))
    count = 0
    for event in events:
        one_line = b"\n" not in event.body and _is_json(event.body)
        body = {"body": msgspec.Raw(event.body)} if one_line else {"raw": event.body}
        write(_EventLine(*event[:5], **body))
        count += 1
    for job, parts in archives.items():
        for number, part in enumerate(parts()):
            write(_ArchiveLine(job, number, part))
    write(_Trailer(count, len(requests), digest.hexdigest()))
    return count


def fill(store: SqlStore, found: Salvage, events: Iterable[StoredEvent]) -> None:
    """Put what was saved of another store into an empty one, all or nothing: log, inbox, bookmarks, profiles, archives."""
    lease = store.acquire("unidle store repair")
    try:
        with store.transaction():
            if store.last() != (0, 0) or store.requests():
                raise StoreError("the store is not empty", field=store.url, remedy="name a new one")
            store.append(lease, (NewEvent(*event[1:]) for event in events))
            for request in found.requests:
                store.keep_request(request)
            for bookmark in found.bookmarks:
                store.save_bookmark(lease, bookmark)
            if found.profiles:
                ProfileShelf(store, lease.token).add(found.profiles)
            for job, parts in found.archives.items():
                ArchiveShelf(store, lease.token).write(job, parts())
    finally:
        store.release(lease)


def _intact(store: WholeStore) -> Iterator[StoredEvent]:
    try:
        acknowledged = store.last()[0]
    except StoreDamaged:
        acknowledged = 0  # the head can be made again from the events, if these are whole
    seq = 0
    for event, crc_holds in store.scan():
        if event.seq != seq + 1 or not crc_holds:
            raise StoreDamaged(
                "is damaged or missing", field=f"event {seq + 1}", remedy="run `unidle store check`"
            )
        seq += 1
        yield event
    if seq < acknowledged:
        raise StoreDamaged(
            f"the log ends at event {seq}, but {acknowledged} were acknowledged",
            remedy="run `unidle store check`",
        )


def import_(store: WholeStore, inp: BinaryIO) -> int:
    """Fill an empty store from an export, all or nothing, and return the number of events.

    Errors: :class:`BadInput` with the line's number; :class:`StoreError` for a store that is not empty.
    """
    lease = store.acquire("unidle store import")
    try:
        with store.transaction():
            if store.last() != (0, 0) or store.requests():
                raise StoreError("the store is not empty", field=store.url, remedy="import into a new one")
            reader = _ExportReader(inp)
            last = store.append(lease, reader.events())
            for job, parts in reader.archives():
                if not isinstance(store, SqlStore):
                    raise StoreError(
                        "holds no archives", field=store.url, remedy="import into a file or a database"
                    )
                ArchiveShelf(store, lease.token).write(job, parts)
            for request in reader.requests:
                store.request(request.kind, request.body)
            return last
    finally:
        store.release(lease)


class _ExportReader:
    """Reads an export line by line; :meth:`events` ends only when the trailer agrees."""

    def __init__(self, inp: BinaryIO) -> None:
        self._inp = inp
        self._number = 0
        self._digest = hashlib.sha256()
        self.requests: list[_RequestLine] = []
        self._ahead: _ArchiveLine | None = None
        self._seq = 0
        self._decoder = msgspec.json.Decoder(_Line)

    def events(self) -> Iterator[NewEvent]:
        self._header()
        decoder = self._decoder
        seq = last_time_ns = 0
        while True:
            data = self._line()
            line = self._decoded(decoder, data)
            self._seq = seq
            if isinstance(line, _Trailer):
                self._end(line)
                return
            self._digest.update(data)
            if isinstance(line, _ArchiveLine):
                self._ahead = line
                return
            if isinstance(line, _RequestLine):
                if line.kind == "submit":
                    self._check_job(line.body)
                self.requests.append(line)
                continue
            seq += 1
            if line.seq != seq:
                raise self._bad(f"event {seq} was expected", line.seq)
            if line.time_ns < last_time_ns:
                raise self._bad("the event is older than the one before it", line.time_ns)
            last_time_ns = line.time_ns
            body = self._body(line)
            if line.kind == "job_submitted":
                self._check_job(body)
            yield NewEvent(line.time_ns, line.source, line.source_seq, line.kind, body)

    def archives(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The archives after the events, by job. Read the parts of each before the next."""
        while (first := self._ahead) is not None:
            if not is_job_id(first.job):
                raise self._bad("the id of a job cannot be a file's name", first.job)
            yield first.job, self._parts(first)

    def _parts(self, first: _ArchiveLine) -> Iterator[bytes]:
        line: _Line = first
        number = 0
        while isinstance(line, _ArchiveLine) and line.job == first.job:
            if line.part != number:
                raise self._bad(f"part {number} of the archive was expected", line.part)
            yield line.body
            number += 1
            data = self._line()
            line = self._decoded(self._decoder, data)
            if not isinstance(line, _Trailer):
                self._digest.update(data)
        self._ahead = None
        if isinstance(line, _Trailer):
            self._end(line)
        elif isinstance(line, _ArchiveLine):
            self._ahead = line
        else:
            raise self._bad("only archives and the last line come after an archive")

    def _end(self, line: _Trailer) -> None:
        found = self._seq, len(self.requests), self._digest.hexdigest()
        if (line.events, line.requests, line.sha256) != found:
            raise self._bad("the counts or the SHA-256 do not match the lines before")
        if self._inp.read(1):
            raise self._bad("there is data after the last line")

    def _check_job(self, body: bytes) -> None:
        """Ids of jobs become paths, and an export may come from anyone. A body that is damaged is kept as it is."""
        try:
            job = msgspec.json.decode(body, type=_JobLine).job
        except (msgspec.DecodeError, RecursionError):
            return  # no job can come of it
        if not is_job_id(job):
            raise self._bad("the id of a job cannot be a file's name", job)

    def _header(self) -> None:
        data = self._line()
        header = self._decoded(msgspec.json.Decoder(_Header), data)
        if header.format != _FORMAT:
            raise self._bad("is not an export of unidle", header.format)
        if header.version != EXPORT_VERSION:
            raise self._bad(f"this unidle reads version {EXPORT_VERSION}", header.version)
        self._digest.update(data)

    def _body(self, line: _EventLine) -> bytes:
        if isinstance(line.body, msgspec.Raw) and line.raw is msgspec.UNSET:
            return bytes(line.body)
        if isinstance(line.raw, bytes) and line.body is msgspec.UNSET:
            return line.raw
        raise self._bad("exactly one of body and raw is needed")

    def _line(self) -> bytes:
        self._number += 1
        data = self._inp.readline(_LONGEST_LINE)
        if not data.endswith(b"\n"):
            raise self._bad(
                "the export is truncated here" if data else "the export ends without its last line"
            )
        return data

    def _decoded(self, decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._bad(f"cannot be read: {error}") from error

    def _bad(self, problem: str, value: object = None) -> BadInput:
        return BadInput(
            problem, field=f"line {self._number}", value=value, remedy="nothing was imported; export it again"
        )


def compact(store: WholeStore, lease: Lease) -> tuple[int, int]:
    """Drop what is derived and superseded and give unused space back; return the size in bytes
    before and after. No event is ever dropped."""
    return store.compact(lease)


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
