"""Messages of protobuf as a test makes them: each field a number with a text, a message or a whole number."""

from __future__ import annotations

from collections.abc import Iterator


def message(*fields: tuple[int, str | bytes | int]) -> bytes:
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            found += _varint(number << 3 | 2) + _varint(len(content)) + content
    return found


def texts(content: bytes, number: int) -> Iterator[str]:
    """The texts of one field of a message that has nothing but texts and messages."""
    for field, value in parts(content):
        if field == number:
            yield value.decode()


def parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(content):
        number = content[at] >> 3
        length, shift, at = 0, 0, at + 1
        while True:
            length |= (content[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if content[at - 1] < 0x80:
                break
        yield number, content[at : at + length]
        at += length


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
