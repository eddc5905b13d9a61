"""Copies the output of ranks to the box's own, line by line with ``[rank N] `` before it, for who reads a container's log."""

from __future__ import annotations

import os
import select

from unidle.engine.local.ranks.rundir import LOG

CHUNK_BYTES = 64 * 1024
LINE_BYTES = 16 * 1024  # a longer line is cut into several
WAITING_BYTES = 256 * 1024  # of lines that nobody takes: above, no more are read; the log has them
_PIPE_BYTES = 4096  # what a pipe that can be written takes in any case (PIPE_BUF)


class OutputCopy:
    """The log of one rank from ``offset`` on, through its rotations."""

    def __init__(self, directory: str, rank: int, *, from_end: bool) -> None:
        self._path = f"{directory}/{LOG}"
        self._prefix = f"[rank {rank}] ".encode()
        self._fd = -1
        self._rest = b""
        self._from_end = from_end

    def read(self) -> bytes:
        """Whole lines that are new, with their prefix."""
        data = self._read()
        if not data:
            return b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def finish(self) -> bytes:
        """What is left of a last line without an end."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""

    def _read(self) -> bytes:
        try:
            if self._fd < 0:
                self._open()
            data = os.read(self._fd, CHUNK_BYTES)
            if data or os.fstat(self._fd).st_ino == os.stat(self._path).st_ino:
                return data
            data = os.read(self._fd, CHUNK_BYTES)  # written just before the rotation
            if not data:
                self.close()
                self._open()
                data = os.read(self._fd, CHUNK_BYTES)
            return data
        except OSError:
            return b""  # not there yet

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._from_end:
            os.lseek(self._fd, 0, os.SEEK_END)
        self._from_end = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OwnOutput:
    """This process's standard output, which may be a pipe without a reader: it never waits for it."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._waiting = bytearray()
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > WAITING_BYTES

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def add(self, lines: bytes) -> None:
        self._waiting += lines
        self.flush()

    def flush(self) -> None:
        """Write what is taken now."""
        while self._waiting and any(what & select.POLLOUT for _, what in self._poller.poll(0)):
            try:
                count = os.write(self._fd, bytes(memoryview(self._waiting)[:_PIPE_BYTES]))
            except OSError:
                self._waiting.clear()  # closed: nobody will read it
                return
            del self._waiting[:count]
