"""Writes a rank's marks so that none is lost for want of disk space. Standard library only.

Marks whose loss costs work are also synced: without the one of a checkpoint or of an exit, a job repeats what is done.
"""

from __future__ import annotations

import json
import os

RESERVE_BYTES = 64 * 1024
PENDING_LIMIT_BYTES = 1024 * 1024
SYNCED = ("saved", "exit")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_COPY_BYTES = 1024 * 1024
_DIRECTORIES = 4  # the rank's, the attempt's, the job's and the run root: each may be new

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class RankJournal:
    """Appends marks as JSON lines, each with one write; keeps them in memory while the disk is full."""

    def __init__(self, path: str, reserve_path: str) -> None:
        self._fd = os.open(path, _FLAGS, 0o600)
        self._path = path
        self._reserve_path = reserve_path
        self._unsynced = False
        self._named = False  # whether the file's name is known to be on the disk
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
        self._unsynced = self._unsynced or mark["k"] in SYNCED
        if not waits or mark["k"] == "exit":
            self.flush()

    def flush(self) -> bool:
        """Write what waits; True when nothing is left."""
        if self._pending:
            self.restore()
        while self._pending:
            try:
                written = os.write(self._fd, self._pending)
            except OSError:
                return False
            del self._pending[:written]
        return True

    def restore(self) -> None:
        """Write the whole journal to a new file if its own was deleted or replaced: the controller reads it by its name."""
        if os.fstat(self._fd).st_nlink:
            return
        draft = f"{self._path}.new"
        fd = -1
        try:
            fd = os.open(draft, _FLAGS | os.O_TRUNC, 0o600)
            at = 0
            while part := os.pread(self._fd, _COPY_BYTES, at):
                at += os.write(fd, part)
            os.replace(draft, self._path)
        except OSError:  # the directory is gone too, or the disk is full: tried again with the next mark
            if fd >= 0:
                os.close(fd)
            return
        os.close(self._fd)
        self._fd, self._named, self._unsynced = fd, False, True

    def sync(self) -> None:
        """Have the file on the disk if it has a new mark whose loss costs work; nothing while some wait.

        Marks come one at a time and a sync takes milliseconds: this is for the caller's tick and for the end.
        """
        if not self._unsynced or self._pending:
            return
        self._unsynced = False
        try:
            os.fdatasync(self._fd)
            if not self._named:
                self._sync_names()
                self._named = True
        except OSError:
            pass  # an I/O error, or a file system without sync: the controller reads the mark all the same

    def _sync_names(self) -> None:
        directory = os.path.dirname(self._path)
        for _ in range(_DIRECTORIES):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            directory = os.path.dirname(directory)

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
