"""CRC32 of rows. Each covers every field of its row, so that a flipped bit anywhere shows."""

from __future__ import annotations

from zlib import crc32


def event_crc(seq: int, time_ns: int, source: str, source_seq: int, kind: str, body: bytes) -> int:
    """Checksum of one event. Fields are joined by NUL, which none of them contains."""
    return crc32(body, crc32(f"{seq}\0{time_ns}\0{source}\0{source_seq}\0{kind}\0".encode()))


def fields_crc(*fields: int | str | None) -> int:
    """Checksum of a row's small fields."""
    return crc32("\0".join("" if f is None else str(f) for f in fields).encode())


def blob_crc(body: object, *fields: int | str) -> int:
    """Checksum of a row that ends in a blob; -1, which no row has, where damage made it another type."""
    return crc32(body, fields_crc(*fields)) if isinstance(body, bytes) else -1
