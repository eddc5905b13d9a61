"""Writing a Parquet file, one row group at a time.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from unidle.ledger.parquet import pages, thrift
from unidle.ledger.parquet.pages import Array
from unidle.ledger.parquet.thrift import Encoded, binary, i32, i64, listed, struct, text


class NumberColumn(NamedTuple):
    """Integers of at most 64 bits; ``absent`` marks those that are not there."""

    values: Array
    absent: Array | None = None


class TextColumn(NamedTuple):
    """Texts by their index in ``names``; None is no text."""

    codes: Array
    names: Sequence[str | None]


class _Kind(NamedTuple):
    """How values are stored, and their type as older and as newer readers look for it."""

    type: int
    dtype: str = ""
    converted: int | None = None
    logical: Encoded | None = None


def _small(bits: int, converted: int) -> _Kind:
    integer = struct({1: thrift.byte(bits), 2: thrift.true_or_false(False)})
    return _Kind(pages.INT32, "<i4", converted, struct({10: integer}))


_TEXT: Final = _Kind(pages.BYTE_ARRAY, "", 0, struct({1: struct({})}))
_KINDS: Final = {
    np.dtype(np.uint8): _small(8, 11),
    np.dtype(np.uint16): _small(16, 12),
    np.dtype(np.int32): _Kind(pages.INT32, "<i4"),
    np.dtype(np.int64): _Kind(pages.INT64, "<i8"),
}


class _Chunk(NamedTuple):
    """The pages of one column in one row group."""

    kind: _Kind
    dictionary: bytes
    data: bytes
    raw_size: int
    rows: int
    statistics: Encoded


class ParquetWriter:
    """Writes row groups to a file that need not be seekable, and its footer in :meth:`close`."""

    def __init__(self, out: BinaryIO, metadata: Mapping[str, str] | None = None) -> None:
        self._out = out
        self._metadata = metadata or {}
        self._kinds: dict[str, _Kind] = {}
        self._groups: list[Encoded] = []
        self._rows = 0
        self._at = 0
        self._write(pages.MAGIC)

    def group(self, columns: Mapping[str, NumberColumn | TextColumn]) -> None:
        """Add rows. Each call has the same columns with the same types; no rows only name the columns."""
        chunks = {name: _chunk(column) for name, column in columns.items()}
        self._kinds = {name: chunk.kind for name, chunk in chunks.items()}
        count = next(iter(chunks.values())).rows
        if not count:
            return
        written = [self._chunk(name, chunk) for name, chunk in chunks.items()]
        raw = sum(chunk.raw_size for chunk in chunks.values())
        self._groups.append(struct({1: listed(written), 2: i64(raw), 3: i64(count)}))
        self._rows += count

    def _chunk(self, name: str, chunk: _Chunk) -> Encoded:
        start = self._at
        self._write(chunk.dictionary)
        data = self._at
        self._write(chunk.data)
        encodings = [pages.PLAIN, pages.RLE, *([pages.RLE_DICTIONARY] if chunk.dictionary else [])]
        about = {
            1: i32(chunk.kind.type),
            2: listed([i32(each) for each in encodings], thrift.I32),
            3: listed([text(name)], thrift.BINARY),
            4: i32(pages.ZSTD),
            5: i64(chunk.rows),
            6: i64(chunk.raw_size),
            7: i64(self._at - start),
            9: i64(data),
            11: i64(start) if chunk.dictionary else None,
            12: chunk.statistics,
        }
        return struct({2: i64(start), 3: struct(about)})

    def close(self) -> None:
        """Write the footer; the file stays open."""
        elements = [struct({4: text("root"), 5: i32(len(self._kinds))})]
        for name, kind in self._kinds.items():
            converted = None if kind.converted is None else i32(kind.converted)
            elements.append(
                struct(
                    {1: i32(kind.type), 3: i32(pages.OPTIONAL), 4: text(name), 6: converted, 10: kind.logical}
                )
            )
        pairs = [struct({1: text(key), 2: text(value)}) for key, value in self._metadata.items()]
        by_type = struct({1: struct({})})  # the order in which minimum and maximum are meant
        footer = {
            1: i32(1),
            2: listed(elements),
            3: i64(self._rows),
            4: listed(self._groups),
            5: listed(pairs) if pairs else None,
            6: text("unidle"),
            7: listed([by_type] * len(self._kinds)),
        }
        body = struct(footer).body
        self._write(body + len(body).to_bytes(4, "little") + pages.MAGIC)

    def _write(self, body: bytes) -> None:
        self._out.write(body)
        self._at += len(body)


def _chunk(column: NumberColumn | TextColumn) -> _Chunk:
    if isinstance(column, TextColumn):
        return _names(column)
    kind, absent = _KINDS[column.values.dtype], column.absent
    present = column.values if absent is None else column.values[~absent]
    stored = present.astype(kind.dtype)
    page, raw = _data_page(
        _levels(len(column.values), absent) + stored.tobytes(), len(column.values), pages.PLAIN
    )
    ends = [value.tobytes() for value in (stored.min(), stored.max())] if len(stored) else None
    return _Chunk(
        kind, b"", page, raw, len(column.values), _statistics(len(column.values) - len(stored), ends)
    )


def _names(column: TextColumn) -> _Chunk:
    """A dictionary of the names that occur, and their indexes in it."""
    found, codes = np.unique(column.codes, return_inverse=True)
    names = [column.names[code] for code in found]
    absent = np.array([name is None for name in names], bool)
    known = [name.encode() for name in names if name is not None]
    number = np.cumsum(~absent) - 1  # of those that are there
    gone = absent[codes]
    indexes = number[codes[~gone]]
    plain = b"".join(len(name).to_bytes(4, "little") + name for name in known)
    dictionary, dictionary_raw = _page(
        plain, {1: i32(pages.DICTIONARY), 7: struct({1: i32(len(known)), 2: i32(pages.PLAIN)})}
    )
    bits = pages.bits_of(len(known) - 1)
    body = _levels(len(codes), gone if gone.any() else None) + bytes([bits]) + pages.pack(indexes, bits)
    page, raw = _data_page(body, len(codes), pages.RLE_DICTIONARY)
    ends = [min(known), max(known)] if known else None
    return _Chunk(
        _TEXT, dictionary, page, dictionary_raw + raw, len(codes), _statistics(int(gone.sum()), ends)
    )


def _levels(count: int, absent: Array | None) -> bytes:
    """Which values are there, before those that are."""
    runs = pages.repeated(1, count) if absent is None else pages.pack(~absent, pages.LEVEL_BITS)
    return len(runs).to_bytes(4, "little") + runs


def _data_page(body: bytes, count: int, encoding: int) -> tuple[bytes, int]:
    about = struct({1: i32(count), 2: i32(encoding), 3: i32(pages.RLE), 4: i32(pages.RLE)})
    return _page(body, {1: i32(pages.DATA), 5: about})


def _page(body: bytes, head: Mapping[int, Encoded]) -> tuple[bytes, int]:
    """A page with its header, and their size if it were not compressed."""
    packed = pages.compress(body)
    header = struct({**head, 2: i32(len(body)), 3: i32(len(packed))}).body
    return header + packed, len(header) + len(body)


def _statistics(absent: int, ends: Sequence[bytes] | None) -> Encoded:
    least, most = (binary(end) for end in ends) if ends else (None, None)
    return struct({3: i64(absent), 5: most, 6: least})
