"""Copies in memory: files in ``/dev/shm``, each a page that describes the content and a shard as it will be on storage.

A rank maps its own and writes into them; a holder reads them, and keeps those that its peers sent. The page is
blanked before and filled after the copy, so a rank that dies in between leaves nothing that looks whole.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unidle.checkpoint.holder import hold_paths

PAGE: Final = 4096
_MAGIC: Final = b"UNIDLE01"
_HEAD: Final = struct.Struct("<8sII")  # magic, length and CRC-32 of the JSON behind it


@dataclass(frozen=True, slots=True)
class Label:
    """What a copy holds: the shard of ``rank`` of ``world`` after ``step`` steps, ``size_bytes`` long."""

    session: str
    step: int
    rank: int
    world: int
    size_bytes: int
    time_ns: int


def page_of(label: Label | None) -> bytes:
    """The first page of a copy; of one that holds nothing for None."""
    if label is None:
        return bytes(PAGE)
    fields = [label.session, label.step, label.rank, label.world, label.size_bytes, label.time_ns]
    text = json.dumps(fields).encode()
    return (_HEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text).ljust(PAGE, b"\0")


def label_from(page: bytes) -> Label | None:
    """The label in the first page; None where the copy is not whole."""
    if len(page) < PAGE:
        return None
    magic, length, crc = _HEAD.unpack_from(page)
    text = page[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or zlib.crc32(text) != crc:
        return None
    session, step, rank, world, size_bytes, time_ns = json.loads(text)
    return Label(session, step, rank, world, size_bytes, time_ns)


def own_name(rank: int, session: str, number: int) -> str:
    return f"own-{rank:05d}-{session}-{number}"


def peer_name(rank: int, session: str, step: int) -> str:
    return f"peer-{rank:05d}-{session}-{step}"


def session_of(name: str) -> str | None:
    """The session of a copy's file, None for other files."""
    found = re.fullmatch(r"(?:own|peer)-\d+-([0-9a-f]+)-\d+", name)
    return found[1] if found else None


def read_label(name: str, at: int) -> Label | None:
    """The label of the copy ``name`` in the hold directory ``at``; None where it is not whole."""
    try:
        with os.fdopen(hold_paths.open_copy(name, at), "rb", buffering=0) as file:
            label = label_from(file.read(PAGE))
            if label is not None and os.fstat(file.fileno()).st_size < PAGE + label.size_bytes:
                return None
            return label
    except (OSError, ValueError, TypeError):
        return None


def copies(hold: str) -> dict[str, Label]:
    """The whole copies in a directory, by file name; none where it is not this user's own."""
    try:
        with hold_paths.held(hold) as fd:
            found = {name: read_label(name, fd) for name in os.listdir(fd) if session_of(name)}
    except OSError:
        return {}
    return {name: label for name, label in found.items() if label is not None}


def label_of(message: Mapping[str, Any]) -> Label:
    """A label out of a message. Raises ValueError, KeyError, TypeError."""
    label = Label(**message)
    numbers = (label.step, label.rank, label.world, label.size_bytes, label.time_ns)
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or not re.fullmatch(
        "[0-9a-f]+", label.session
    ):
        raise ValueError("it is no label of a copy")
    return label
