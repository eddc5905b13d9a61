"""The compact protocol of Thrift, in which Parquet writes its headers.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
STRUCT: Final = 12
_LONG_LIST: Final = 15  # its length follows
_MOST_BYTES: Final = 10  # of a number of 64 bits


class Encoded(NamedTuple):
    """A value as it is written: its type and its bytes."""

    type: int
    body: bytes


def unsigned(number: int) -> bytes:
    """A number of variable length, seven bits to a byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _signed(number: int) -> bytes:
    return unsigned(number << 1 if number >= 0 else (-number << 1) - 1)


def byte(number: int) -> Encoded:
    return Encoded(BYTE, number.to_bytes(1, "little", signed=True))


def i32(number: int) -> Encoded:
    return Encoded(I32, _signed(number))


def i64(number: int) -> Encoded:
    return Encoded(I64, _signed(number))


def true_or_false(value: bool) -> Encoded:
    return Encoded(TRUE if value else FALSE, b"")


def binary(value: bytes) -> Encoded:
    return Encoded(BINARY, unsigned(len(value)) + value)


def text(value: str) -> Encoded:
    return binary(value.encode())


def listed(items: Sequence[Encoded], of: int = STRUCT) -> Encoded:
    """A list; ``of`` is the type of its items."""
    short = len(items) < _LONG_LIST
    head = bytes([(len(items) if short else _LONG_LIST) << 4 | of])
    if not short:
        head += unsigned(len(items))
    return Encoded(LIST, head + b"".join(item.body for item in items))


def struct(fields: Mapping[int, Encoded | None]) -> Encoded:
    """Fields by their ids; those that are None are left out."""
    out, last = bytearray(), 0
    for number, field in sorted(fields.items()):
        if field is not None:
            if number - last > _LONG_LIST:
                out += bytes([field.type]) + _signed(number)
            else:
                out.append((number - last) << 4 | field.type)
            out += field.body
            last = number
    return Encoded(STRUCT, bytes(out) + b"\0")


class Decoder:
    """Reads structs from bytes. Errors: ValueError and IndexError if they end early or make no sense."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes | memoryview, at: int = 0) -> None:
        self.body = body
        self.at = at

    def struct(self) -> dict[int, Any]:
        """The fields by their ids: numbers, bytes, lists and structs."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 0x0F
            found[number] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind)
        return found

    def unsigned(self) -> int:
        number = 0
        for shift in range(0, 7 * _MOST_BYTES, 7):
            part = self._byte()
            number |= (part & 0x7F) << shift
            if part < 0x80:
                return number
        raise ValueError("a number is too long")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size < 0 or self.at + size > len(self.body):
            raise ValueError("the file ends early")
        self.at += size
        return bytes(self.body[self.at - size : self.at])

    def _byte(self) -> int:
        self.at += 1
        return self.body[self.at - 1]

    def _signed(self) -> int:
        number = self.unsigned()
        return -(number + 1 >> 1) if number & 1 else number >> 1

    def _value(self, kind: int) -> Any:
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == BINARY:
            return self.take(self.unsigned())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            head = self._byte()
            size = head >> 4
            return [self._value(head & 0x0F) for _ in range(self.unsigned() if size == _LONG_LIST else size)]
        if kind in (TRUE, FALSE, BYTE):  # of a list, one byte each
            return self._byte()
        if kind == DOUBLE:
            return self.take(8)
        raise ValueError(f"type {kind} is not known")
