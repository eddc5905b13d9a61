"""What flows carry: a header of 76 bytes, and behind that of a chunk its payload. Big-endian.

    magic 4 | version 1 | kind 1 | unused 2 | run 8 | tag 8 | number 8 | before 8 | seen 8 | offset 8 | total 8 | length 4
    | CRC-32 of the payload 4 | CRC-32 of the 72 bytes before 4

``number`` counts the messages of a channel's direction, ``before`` is that of the message of the same tag before
it (see :mod:`unidle.span.wan.order`), ``seen``: all grants below it have arrived. The checksums find damage, not
an attacker: for that there is TLS.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final, NamedTuple

from unidle.span.wan.api import BadFrame

MAGIC: Final = b"UDLW"
VERSION: Final = 2
DATA: Final = 1
ACK: Final = 2  # number: so many chunks of this connection are settled
NACK: Final = 3  # number: this chunk of this connection came damaged
GRANT: Final = 4  # one message more of the tag has a buffer; grants are numbered, whatever their tag
PING: Final = 5
BYE: Final = 6
TAG_LIMIT: Final = 1 << 64

_HEAD: Final = struct.Struct("!4sBBHQQQQQQQII")
_SUM: Final = struct.Struct("!I")
HEADER_BYTES: Final = _HEAD.size + _SUM.size


class WanFrame(NamedTuple):
    """A header. Lengths and offsets in bytes."""

    kind: int
    tag: int
    number: int
    before: int
    seen: int
    offset: int
    total: int
    length: int
    crc: int


def run_key(run: str) -> int:
    """The key of a run in each header, derived from its name."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest())


def tag_number(tag: int | str) -> int:
    """A tag on the wire: a number as it is, of a name the first 8 bytes of its BLAKE2b. Errors: ``ValueError``."""
    if isinstance(tag, str):
        return int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8, person=b"unidle-tag").digest())
    if not 0 <= tag < TAG_LIMIT:
        raise ValueError(f"tag: must be 0 to 2**64 - 1, or a name (got {tag})")
    return tag


def pack(run: int, frame: WanFrame) -> bytes:
    """The header of a frame."""
    kind, *rest = frame
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, run, *rest)
    return head + _SUM.pack(zlib.crc32(head))


def control(run: int, kind: int, seen: int, number: int = 0, tag: int = 0) -> bytes:
    """A frame without payload."""
    return pack(run, WanFrame(kind, tag, number, 0, seen, 0, 0, 0, 0))


def unpack(run: int, header: bytes | bytearray | memoryview, most_bytes: int) -> WanFrame:
    """A header that arrived. Errors: :class:`BadFrame` for damage, another run, or a chunk of more than ``most_bytes``."""
    head = memoryview(header)[: _HEAD.size]
    if zlib.crc32(head) != _SUM.unpack_from(header, _HEAD.size)[0]:
        raise BadFrame("a header is damaged")
    magic, version, kind, _, its_run, *rest = _HEAD.unpack(head)
    if magic != MAGIC or version != VERSION or its_run != run:
        raise BadFrame("a header is of another run or version")
    frame = WanFrame(kind, *rest)
    if not DATA <= kind <= BYE or frame.length > most_bytes or (kind != DATA and frame.length):
        raise BadFrame("a header has impossible values")
    if kind == DATA and not frame.before < frame.number:
        raise BadFrame("a message comes before itself")
    if frame.offset + frame.length > frame.total:
        raise BadFrame("a chunk is longer than its message")
    return frame
