"""Part of a file of a rank, as it travels in the data of a ``done`` frame."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class NotThere(Exception):
    """The host has no such file, or is not connected. The text is its reason."""


@dataclass(frozen=True, slots=True)
class RankFilePart:
    """``data`` begins at the offset that was asked for; ``size_bytes`` and ``inode`` are the whole file's, on its host."""

    data: bytes
    size_bytes: int
    inode: int

    def as_data(self) -> dict[str, Any]:
        """For a frame."""
        text = base64.b64encode(self.data).decode("ascii")
        return {"text": text, "size": self.size_bytes, "inode": self.inode}


def whole_file(part: Callable[[int], RankFilePart]) -> bytes:
    """All of a file, by its parts: ``part`` reads from an offset on. Errors: those of the call."""
    data = bytearray()
    while True:
        found = part(len(data))
        data += found.data
        if not found.data or len(data) >= found.size_bytes:
            return bytes(data)


def part_of(data: dict[str, Any]) -> RankFilePart:
    """What :meth:`RankFilePart.as_data` gave. Errors: NotThere where it is nothing like that."""
    text, size, inode = (data.get(key) for key in ("text", "size", "inode"))
    try:
        if isinstance(text, str) and isinstance(size, int) and isinstance(inode, int):
            return RankFilePart(base64.b64decode(text, validate=True), size, inode)
    except binascii.Error:
        pass
    raise NotThere("its host sent an answer that cannot be read")
