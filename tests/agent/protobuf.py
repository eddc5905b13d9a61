"""Messages of protobuf as a test makes them: each field a number with a text, a message or a whole number."""

from __future__ import annotations


def message(*fields: tuple[int, str | bytes | int]) -> bytes:
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            found += _varint(number << 3 | 2) + _varint(len(content)) + content
    return found


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
