"""Rows of a SQLite file, read from its pages one by one, without SQLite and without its trees.

A damaged page costs only its own rows: a table's rows stand in leaf pages that can be recognised by themselves. Each
row of a store has a checksum over all its fields, which the caller verifies. Source: the file format of SQLite
(https://www.sqlite.org/fileformat2.html). Nothing is written.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import Final, NamedTuple, TypeAlias

Value: TypeAlias = int | float | str | bytes | None
_SIZES: Final = (4096, 1024, 2048, 8192, 16384, 32768, 65536, 512)
_LEAF: Final = 0x0D  # a leaf page of a table
_INDEX: Final = {
    0x0A: (8, 0),
    0x02: (12, 4),
}  # pages of an index: bytes of the header, and in front of each key
_WAL_HEADER, _FRAME_HEADER, _FILE_HEADER = 32, 24, 100
_INT_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_LONGEST: Final = 1 << 30


class Place(NamedTuple):
    """Where a row stands: a page, as the log or the file has it, and the row's offset there."""

    number: int
    in_log: int  # offset in the log; -1: in the file
    offset: int


class Row(NamedTuple):
    rowid: int
    values: tuple[Value, ...]
    place: Place


class Bytes:
    """The content of a file. What the disk cannot read counts as not there; nothing else is done to it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self.size = os.fstat(self._fd).st_size
        self.unreadable = 0  # how often the disk failed

    def read(self, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        try:
            return os.pread(self._fd, length, start)
        except OSError:
            self.unreadable += 1
            return b""


@dataclass(slots=True)
class Pages:
    """The pages of a database and of its write-ahead log, as far as that was committed."""

    data: Bytes
    log: Bytes | None
    size: int
    in_log: dict[int, list[int]] = field(default_factory=dict)  # page -> offsets of its versions in the log
    torn: bool = False  # the log ends with a part of a commit
    unused: set[int] = field(default_factory=set)  # pages whose rows were deleted

    def rows(self) -> Iterator[Row]:
        """Every row of every leaf page in all its versions; what cannot be read is passed over."""
        count = -(-self.data.size // self.size)
        for number in range(1, count + 1):
            yield from self._leaf(number, -1)
        for number, offsets in self.in_log.items():
            for offset in offsets:
                yield from self._leaf(number, offset)

    def index_keys(self) -> Iterator[tuple[Value, ...]]:
        """Every short key in the pages of indexes that are in use; the last value is the number of its row."""
        count = -(-self.data.size // self.size)
        for number in sorted({*range(1, count + 1), *self.in_log} - self.unused):
            page = self._bytes(number, self.in_log.get(number, [-1])[-1])
            if len(page) < 12 or page[0] not in _INDEX:
                continue
            header, ahead = _INDEX[page[0]]
            cells = unpack_from(">H", page, 3)[0]
            for k in range(min(cells, (len(page) - header) // 2)):
                try:
                    length, at = _varint(page, unpack_from(">H", page, header + 2 * k)[0] + ahead)
                    yield _values(page[at : at + length])
                except (IndexError, ValueError, struct.error):
                    continue

    def is_current(self, place: Place) -> bool:
        """Whether the page is in use, in this version."""
        latest = self.in_log.get(place.number, [-1])[-1]
        return place.in_log == latest and place.number not in self.unused

    def row(self, place: Place) -> Row:
        """The row at a place that :meth:`rows` gave."""
        return self._cell(self._bytes(place.number, place.in_log), place)

    def _leaf(self, number: int, in_log: int) -> Iterator[Row]:
        page = self._bytes(number, in_log)
        begin = _FILE_HEADER if number == 1 else 0
        if len(page) < begin + 8 or page[begin] != _LEAF:
            return
        cells = unpack_from(">H", page, begin + 3)[0]
        for k in range(min(cells, (len(page) - begin - 8) // 2)):
            offset = unpack_from(">H", page, begin + 8 + 2 * k)[0]
            try:
                yield self._cell(page, Place(number, in_log, offset))
            except (IndexError, ValueError, struct.error):
                continue

    def _cell(self, page: bytes, place: Place) -> Row:
        length, at = _varint(page, place.offset)
        rowid, at = _varint(page, at)
        if length > _LONGEST:
            raise ValueError("a row of such a length is none")
        local = _local_bytes(length, self.size)
        payload = page[at : at + local]
        if local < length:
            following = unpack_from(">I", page, at + local)[0]
            payload += self._overflow(following, length - local)
        if len(payload) != length:
            raise ValueError("the row is cut off")
        return Row(rowid, _values(payload), place)

    def _overflow(self, number: int, left: int) -> bytes:
        parts = []
        while left > 0:
            page = self._bytes(number, self.in_log.get(number, [-1])[-1])
            part = page[4 : 4 + min(left, self.size - 4)]
            if not part:
                raise ValueError("a page of the row is missing")
            parts.append(part)
            left -= len(part)
            number = unpack_from(">I", page, 0)[0]
        return b"".join(parts)

    def _bytes(self, number: int, in_log: int) -> bytes:
        if in_log >= 0:
            return self.log.read(in_log, self.size) if self.log is not None else b""
        return self.data.read((number - 1) * self.size, self.size) if number > 0 else b""

    def read_unused(self) -> bool:
        """Note the pages on the list of free ones; False where that list cannot be read to its end."""
        first = self._bytes(1, self.in_log.get(1, [-1])[-1])
        if len(first) < _FILE_HEADER or not first.startswith(b"SQLite format 3\0"):
            return False
        trunk, left = unpack_from(">II", first, 32)
        while trunk:
            page = self._bytes(trunk, self.in_log.get(trunk, [-1])[-1])
            if trunk in self.unused or len(page) < self.size:
                return False
            self.unused.add(trunk)
            trunk, leaves = unpack_from(">II", page, 0)
            if leaves > self.size // 4 - 2:
                return False
            self.unused.update(unpack_from(f">{leaves}I", page, 8))
        return len(self.unused) == int(left)


def read_pages(path: Path) -> list[Pages]:
    """The pages of a file; one reading for each page size that it may have, where its header does not tell that."""
    log_path = path.with_name(path.name + "-wal")
    data, log = Bytes(path), Bytes(log_path) if log_path.exists() else None
    found = []
    for size in _page_sizes(data.read(0, _FILE_HEADER)):
        pages = Pages(data, log, size)
        frames, pages.torn = _committed(log, size) if log is not None else ([], False)
        for number, offset in frames:
            pages.in_log.setdefault(number, []).append(offset)
        found.append(pages)
    return found


def _page_sizes(header: bytes) -> tuple[int, ...]:
    if header.startswith(b"SQLite format 3\0") and len(header) >= _FILE_HEADER:
        size = unpack_from(">H", header, 16)[0]
        size = 65536 if size == 1 else size
        return (size, *(s for s in _SIZES if s != size)) if size in _SIZES else _SIZES
    return _SIZES


def _committed(log: Bytes, size: int) -> tuple[list[tuple[int, int]], bool]:
    """Page and offset of each frame of the write-ahead log up to the last commit that is whole, and whether more follows.

    A damaged frame does not end the log here: the next one is verified against the checksum that it has.
    """
    header = log.read(0, _WAL_HEADER)
    if len(header) < _WAL_HEADER:
        return [], False
    magic, _, page_size = unpack_from(">III", header, 0)
    if magic not in (0x377F0682, 0x377F0683) or page_size % 65536 != size % 65536:
        return [], False
    order = ">" if magic & 1 else "<"
    salts, before = header[16:24], unpack_from(">II", header, 24)
    frames: list[tuple[int, int]] = []
    whole, end = 0, _WAL_HEADER
    for at in range(_WAL_HEADER, log.size - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        frame = log.read(at, _FRAME_HEADER + size)
        if frame[8:16] != salts:
            break
        number, commit = unpack_from(">II", frame, 0)
        frames.append((number, at + _FRAME_HEADER))
        end = at + len(frame)
        claimed = unpack_from(">II", frame, 16)
        if commit and _checksum(order, frame[:8] + frame[_FRAME_HEADER:], before) == claimed:
            whole = len(frames)
        before = claimed
    cut = log.read(end, _FRAME_HEADER)  # of a frame that the file does not hold to its end
    torn = whole < len(frames) or (cut[8:16] == salts and log.size < end + _FRAME_HEADER + size)
    return frames[:whole], torn


def _checksum(order: str, data: bytes, start: tuple[int, ...]) -> tuple[int, int]:
    first, second = start
    for a, b in iter_unpack(f"{order}II", data):
        first = (first + a + second) & 0xFFFFFFFF
        second = (second + b + first) & 0xFFFFFFFF
    return first, second


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k in range(8):
        byte = page[at + k]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + k + 1
    value = value << 8 | page[at + 8]
    return (value - (1 << 64) if value >> 63 else value), at + 9


def _local_bytes(length: int, size: int) -> int:
    """How much of a row of ``length`` bytes its leaf page holds; pages have no reserved space."""
    if length <= size - 35:
        return length
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    return local if local <= size - 35 else least


def _values(payload: bytes) -> tuple[Value, ...]:
    header, at = _varint(payload, 0)
    body = header
    values: list[Value] = []
    while at < header:
        kind, at = _varint(payload, at)
        value, body = _value(kind, payload, body)
        values.append(value)
    if at != header or body != len(payload):
        raise ValueError("the row does not add up")
    return tuple(values)


def _value(kind: int, payload: bytes, at: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in _INT_BYTES:
        end = at + _INT_BYTES[kind]
        if end > len(payload):
            raise ValueError("a number is cut off")
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind == 7:
        return float(unpack_from(">d", payload, at)[0]), at + 8
    if kind in (8, 9):
        return kind - 8, at
    if kind < 12:
        raise ValueError("no such type of value")
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise ValueError("a value is cut off")
    return (payload[at:end].decode() if kind & 1 else payload[at:end]), end
