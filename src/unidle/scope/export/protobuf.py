"""Protocol buffers, written by hand: the few rules of the wire format that our files need.

Source: "Encoding", Protocol Buffers documentation. Fields with the value 0 or nothing are left out, as proto3 does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

_SMALL: Final = (
    *(bytes((n,)) for n in range(128)),
    *(bytes((n & 127 | 128, n >> 7)) for n in range(128, 1 << 14)),
)
_MASK: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; a negative number as its 64-bit two's complement."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    value &= _MASK
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varints(values: npt.NDArray[np.int64]) -> list[bytes]:
    """Each value as :func:`varint`; one that occurs again is made once."""
    distinct, places = np.unique(values, return_inverse=True)
    made = [varint(value) for value in distinct.tolist()]
    return [made[place] for place in places.tolist()]


def number(field: int, value: int) -> bytes:
    """An integer, boolean or enumeration field."""
    return varint(field << 3) + varint(value) if value else b""


def number_always(field: int, value: int) -> bytes:
    """The same for proto2's optional fields and for oneofs, where 0 is not the same as nothing."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    """A message field, there even where it is empty."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A string field. What UTF-8 cannot hold is escaped: readers refuse a file with broken text."""
    return message(field, value.encode("utf-8", "backslashreplace")) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated integer field in one piece."""
    content = b"".join(map(varint, values))
    return message(field, content) if content else b""


class RowTable:
    """Rows that are named by their place. ``first`` is the number of the first row."""

    def __init__(self, first: int = 0) -> None:
        self.rows: list[object] = []
        self._first = first
        self._places: dict[object, int] = {}

    def place(self, row: object) -> int:
        """The number of a row; one that is new is put at the end."""
        found = self._places.get(row)
        if found is None:
            found = self._places[row] = len(self.rows) + self._first
            self.rows.append(row)
        return found


class Strings(RowTable):
    """A string table whose number 0 is the empty text, as pprof and OTLP want it."""

    def __init__(self) -> None:
        super().__init__()
        self.place("")

    def write(self, field: int) -> bytes:
        return b"".join(message(field, str(row).encode("utf-8", "backslashreplace")) for row in self.rows)
