"""Writes a rank's marks so that none is lost for want of disk space. Standard library only."""

from __future__ import annotations

import json
import os

RESERVE_BYTES = 64 * 1024
PENDING_LIMIT_BYTES = 1024 * 1024

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Appends marks as JSON lines, each with one write; keeps them in memory while the disk is full."""

    def __init__(self, path: str, reserve_path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._reserve_path = reserve_path
        self._pending = bytearray()
        self._dropped = 0
        try:
            with open(reserve_path, "wb") as file:
                file.write(b"\0" * RESERVE_BYTES)
        except OSError:
            pass  # the disk is full already: exit records then wait for space

    @property
    def waits(self) -> bool:
        """Whether marks wait in memory for disk space."""
        return bool(self._pending)

    def add(self, mark: dict[str, object]) -> None:
        """Append one mark; beyond a bound of waiting ones only the exit record is kept.

        While some wait, new ones join them until the next :meth:`flush`.
        """
        if len(self._pending) > PENDING_LIMIT_BYTES and mark["k"] != "exit":
            self._dropped += 1
            return
        if self._dropped:
            text = f"marks dropped while the disk was full: {self._dropped}"
            self._pending += _line({"k": "note", "t": mark["t"], "text": text})
            self._dropped = 0
        waits = self.waits
        self._pending += _line(mark)
        if not waits or mark["k"] == "exit":
            self.flush()

    def flush(self) -> bool:
        """Write what waits; True when nothing is left."""
        while self._pending:
            try:
                written = os.write(self._fd, self._pending)
            except OSError:
                return False
            del self._pending[:written]
        return True

    def make_room(self) -> None:
        """Give the reserved space back to the file system."""
        try:
            os.unlink(self._reserve_path)
        except OSError:
            pass

    def close(self) -> None:
        self.make_room()
        os.close(self._fd)


def _line(mark: dict[str, object]) -> bytes:
    return _ENCODE(mark).encode("ascii") + b"\n"
