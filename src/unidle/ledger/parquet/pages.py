"""What is in the pages of a column: Zstandard, and numbers of a few bits each.

Source: https://github.com/apache/parquet-format/blob/master/Encodings.md
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from unidle.ledger.parquet.thrift import Decoder, unsigned
from unidle.words import counted

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC: Final = b"PAR1"
INT32, INT64, BYTE_ARRAY = 1, 2, 6  # types of values
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8  # encodings
DATA, DICTIONARY = 0, 2  # kinds of pages
ZSTD: Final = 6  # of the compressions
OPTIONAL: Final = 1  # of the columns: a value may be absent
LEVEL_BITS: Final = 1  # for each value: is it there?
_LEVEL: Final = 3
_MOST_BITS: Final = 32

Array = npt.NDArray[Any]


def compress(body: bytes) -> bytes:
    return zstd.compress(body, level=_LEVEL)


def decompress(body: bytes, size: int) -> bytes:
    """The ``size`` bytes of a page. Errors: ValueError."""
    try:
        body = zstd.ZstdDecompressor().decompress(body, max_length=size + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(body) != size:
        raise ValueError(f"a page has {counted(len(body), 'byte')} instead of {size}")
    return body


def bits_of(most: int) -> int:
    """Bits of each number, none of which is over ``most``."""
    return max(1, most.bit_length())


def pack(numbers: Array, bits: int) -> bytes:
    """Numbers of ``bits`` bits each, as one run."""
    groups = -(-len(numbers) // 8)
    each = (numbers[:, np.newaxis] >> np.arange(bits)) & 1
    packed = np.packbits(each.astype(np.uint8).ravel(), bitorder="little").tobytes()
    return unsigned(groups << 1 | 1) + packed.ljust(groups * bits, b"\0")


def repeated(number: int, count: int) -> bytes:
    """One number of at most 8 bits, ``count`` times, as one run."""
    return unsigned(count << 1) + bytes([number])


def unpack(body: bytes, bits: int, count: int) -> Array:
    """``count`` numbers from runs: of one number each, or of packed ones. Errors: ValueError, IndexError."""
    if bits > _MOST_BITS:
        raise ValueError(f"numbers of {bits} bits are not known")
    if not bits:
        return np.zeros(count, np.int64)
    lengths: list[int] = []
    values: list[int] = []  # of repeated numbers; -1 stands for packed ones
    packed: list[bytes] = []
    at, left, width = 0, count, -(-bits // 8)
    while left > 0:
        head = body[at]
        at += 1
        if head > 0x7F:
            decoder = Decoder(body, at - 1)
            head, at = decoder.unsigned(), decoder.at
        length = min((head >> 1) * 8 if head & 1 else head >> 1, left)
        if not length:
            raise ValueError("an empty run")
        size = -(-length // 8) * bits if head & 1 else width
        part = body[at : at + size]
        if len(part) < size:
            raise ValueError("the runs end early")
        if head & 1:
            packed.append(part)
        values.append(-1 if head & 1 else int.from_bytes(part, "little"))
        lengths.append(length)
        at += size
        left -= length
    numbers = np.repeat(np.array(values, np.int64), lengths)
    if packed:
        is_packed = numbers < 0
        numbers[is_packed] = _unpacked(b"".join(packed), bits)[: is_packed.sum()]
    return numbers


def _unpacked(body: bytes, bits: int) -> Array:
    flags = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
    return flags.reshape(-1, bits) @ (1 << np.arange(bits, dtype=np.int64))
