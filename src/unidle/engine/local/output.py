"""Stores a rank's output in files of bounded size. Standard library only: the supervisor imports it."""

from __future__ import annotations

import os


class RotatedLog:
    """Appends raw bytes to ``path``; full files move to ``path.1``, ``path.2``, ..., the oldest is dropped.

    A write that fails (disk full, quota, size limit) drops its bytes and never raises.
    """

    def __init__(self, path: str, file_bytes: int, files: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._files = files
        self._fd = self._open()
        self._size = 0
        self.bytes = 0
        self.dropped_bytes = 0
        self._note_at = 1
        self._why = ""

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        if self._size and self._size + len(data) > self._file_bytes:
            self._rotate()
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._fd, rest)
            except OSError as error:
                self._drop(len(rest), str(error.strerror))
                return
            self._size += written
            rest = rest[written:]

    def note(self) -> str | None:
        """A sentence on dropped bytes, each time their count has doubled; else None."""
        if self.dropped_bytes < self._note_at:
            return None
        self._note_at = 2 * self.dropped_bytes
        return f"bytes of the log were dropped: {self.dropped_bytes}; {self._why}"

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _drop(self, count: int, why: str) -> None:
        self.dropped_bytes += count
        self._why = why

    def _rotate(self) -> None:
        names = [self._path] + [f"{self._path}.{k}" for k in range(1, self._files)]
        try:
            oldest = os.stat(names[-1]).st_size
        except OSError:
            oldest = 0
        try:
            for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
                if os.path.exists(newer):
                    os.rename(newer, older)
            if self._files == 1:
                oldest = self._size
                os.unlink(self._path)
            fd = self._open()
        except OSError:
            return  # go on in the present file: too large is better than lost
        os.close(self._fd)
        self._fd, self._size = fd, 0
        if oldest:
            self._drop(oldest, f"only the last {self._files} files of {self._file_bytes} bytes are kept")
