"""Reading columns of numbers from a Parquet file: of the writer, or of Polars, which wrote those of earlier versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from unidle.ledger.parquet import pages
from unidle.ledger.parquet.pages import Array
from unidle.ledger.parquet.thrift import Decoder

_DTYPES: Final = {pages.INT32: "<i4", pages.INT64: "<i8"}
_TAIL: Final = 8  # the size of the footer, and the magic bytes


class ColumnsRead(NamedTuple):
    rows: int
    columns: dict[str, Array]
    metadata: dict[str, str]


def read(body: bytes, wanted: Collection[str]) -> ColumnsRead:
    """The columns ``wanted``, none of whose values may be absent.

    Errors: ValueError, LookupError, TypeError or AttributeError if these bytes are not such a file.
    """
    footer = _footer(body)
    parts: dict[str, list[Array]] = {name: [] for name in wanted}
    for group in footer[4]:
        for chunk in group[1]:
            name = chunk[3][3][0].decode()
            if name in parts:
                parts[name].append(_column(body, chunk[3]))
    columns = {name: _joined(found) for name, found in parts.items()}
    for name, found in columns.items():
        if len(found) != footer[3]:
            raise ValueError(f"column {name} has {len(found)} of {footer[3]} rows")
    metadata = {pair[1].decode(): pair[2].decode() for pair in footer.get(5, ())}
    return ColumnsRead(footer[3], columns, metadata)


def _footer(body: bytes) -> dict[int, Any]:
    if len(body) < len(pages.MAGIC) + _TAIL or body[-4:] != pages.MAGIC:
        raise ValueError("not a Parquet file")
    size = int.from_bytes(body[-_TAIL:-4], "little")
    if size > len(body) - _TAIL:
        raise ValueError("the file ends early")
    footer = Decoder(body, len(body) - _TAIL - size).struct()
    if any(element[3] != pages.OPTIONAL for element in footer[2][1:]):
        raise ValueError("a column is not optional")
    return footer


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int64)


def _column(body: bytes, about: dict[int, Any]) -> Array:
    """The values of one column in one row group."""
    dtype = _DTYPES[about[1]]
    dictionary = np.empty(0, dtype)
    found: list[Array] = []
    if about[4] != pages.ZSTD:
        raise ValueError(f"compression {about[4]} is not known")
    for head, page in _pages(body, about):
        if head[1] == pages.DICTIONARY:
            dictionary = np.frombuffer(page, dtype, head[7][1])
        else:
            found.append(_values(head[5], page, dtype, dictionary))
    values = _joined(found)
    if len(values) != about[5]:
        raise ValueError(f"a row group has {len(values)} of {about[5]} rows")
    return values


def _pages(body: bytes, about: dict[int, Any]) -> Iterator[tuple[dict[int, Any], bytes]]:
    """The pages of a column with their headers; a dictionary is the first."""
    start = min(about[9], about.get(11) or about[9])
    decoder = Decoder(body, start)
    while decoder.at < start + about[7]:
        head = decoder.struct()
        yield head, pages.decompress(decoder.take(head[3]), head[2])


def _values(about: dict[int, Any], page: bytes, dtype: str, dictionary: Array) -> Array:
    """The values of a page, before which are bits that tell which are there."""
    count, encoding = about[1], about[2]
    size = int.from_bytes(page[:4], "little")
    levels, values = page[4 : 4 + size], page[4 + size :]
    if not pages.unpack(levels, pages.LEVEL_BITS, count).all():
        raise ValueError("a value is absent")
    if encoding == pages.PLAIN:
        return np.frombuffer(values, dtype, count)
    if encoding == pages.RLE_DICTIONARY:
        return dictionary[pages.unpack(values[1:], values[0], count)]
    raise ValueError(f"encoding {encoding} is not known")
