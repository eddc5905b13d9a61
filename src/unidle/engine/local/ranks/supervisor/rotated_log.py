"""Stores a rank's output in files of bounded size, and keeps its end. Standard library only: the supervisor imports it."""

from __future__ import annotations

import os

FINEST_NS = 250_000_000
FINE_RECORDS = 4096
MOST_CHUNKS = 1000


def interval_ns(records: int) -> int:
    """How long the next record of a file's times stands, after so many: 250 ms at first, then up to 1/4096 of their time."""
    return FINEST_NS << (records // FINE_RECORDS)


class LastBytes:
    """The end of a stream: at least its last ``least`` bytes. What it is fed it keeps as it is, without copying."""

    __slots__ = ("_chunks", "_least", "_size", "cut")

    def __init__(self, least: int) -> None:
        self._least = least
        self._chunks: list[bytes] = []
        self._size = 0
        self.cut = False  # whether some came before

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        while self._size - len(self._chunks[0]) >= self._least:
            self._size -= len(self._chunks.pop(0))
            self.cut = True
        if len(self._chunks) > MOST_CHUNKS:  # each has a cost of its own
            self._chunks = [b"".join(self._chunks)]

    def take(self) -> bytes:
        """At most twice ``least`` of the last bytes."""
        data = b"".join(self._chunks)
        self.cut = self.cut or len(data) > 2 * self._least
        return data[-2 * self._least :]


class RotatedLog:
    """Appends raw bytes to ``path``; full files move to ``path.1``, ``path.2``, ..., the oldest is dropped.

    A write that fails (disk full, quota, size limit) drops its bytes and never raises. ``path.times`` has, for each file
    that is kept, a line ``F inode lines bytes ns`` (what was printed before it, and when it was begun), and below it
    lines ``T offset ns``: what stands from there on was printed then or later, within :func:`interval_ns`.
    """

    def __init__(self, path: str, file_bytes: int, files: int, now_ns: int = 0) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._files = files
        self._times_fd = -1
        self._lines = [0]  # of each file that is kept, the newest first
        self._kept_bytes = 0
        self.bytes = 0
        self.dropped_bytes = 0
        self.dropped_lines = 0
        self._note_at = 1
        self._why = ""
        self._begin(self._open(), now_ns)

    def write(self, data: bytes, now_ns: int = 0) -> None:
        self.bytes += len(data)
        if self._size and self._size + len(data) > self._file_bytes:
            self._rotate(now_ns)
        if now_ns >= self._record_ns:
            self._record(now_ns)
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._fd, rest)
            except OSError as error:
                lost = data[len(data) - len(rest) :]
                self._drop(len(lost), lost.count(b"\n"), str(error.strerror))
                data = data[: len(data) - len(rest)]
                break
            self._size += written
            rest = rest[written:]
        self._lines[0] += data.count(b"\n")

    def note(self) -> str | None:
        """A sentence on dropped bytes, each time their count has doubled; else None."""
        if self.dropped_bytes < self._note_at:
            return None
        self._note_at = 2 * self.dropped_bytes
        return f"{self.dropped_bytes} bytes of the log were dropped: {self._why}"

    def close(self) -> None:
        os.close(self._fd)
        self._close_times()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _drop(self, count: int, lines: int, why: str) -> None:
        self.dropped_bytes += count
        self.dropped_lines += lines
        self._why = why

    def _rotate(self, now_ns: int) -> None:
        names = [self._path] + [f"{self._path}.{k}" for k in range(1, self._files)]
        try:
            oldest = os.stat(names[-1]).st_size
        except OSError:
            oldest = 0
        try:
            for older, newer in zip(names[:0:-1], names[-2::-1]):
                if os.path.exists(newer):
                    os.rename(newer, older)
            if self._files == 1:
                oldest = self._size
                os.unlink(self._path)
            fd = self._open()
        except OSError:
            return  # go on in the present file: too large is better than lost
        os.close(self._fd)
        self._kept_bytes += self._size
        self._lines.insert(0, 0)
        if len(self._lines) > self._files:
            lines = self._lines.pop()
            self._drop(
                oldest, lines, f"only the last {self._files} files of {self._file_bytes} bytes are kept"
            )
        self._begin(fd, now_ns)

    # ---- when it was printed

    def _begin(self, fd: int, now_ns: int) -> None:
        """A file begins: the times of those that are kept are written again, without those of the dropped one."""
        self._fd, self._size = fd, 0
        self._records, self._record_ns = 0, 0
        self._close_times()
        path, draft = f"{self._path}.times", f"{self._path}.times.new"
        before = self.dropped_lines + sum(self._lines)
        line = f"F {os.fstat(fd).st_ino} {before} {self._kept_bytes} {now_ns}\n".encode()
        try:
            kept = self._known_times(path)
            self._times_fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            if os.write(self._times_fd, kept + line) < len(kept + line):
                raise OSError("short write")
            os.rename(draft, path)
        except OSError:
            self._give_up_times()

    def _known_times(self, path: str) -> bytes:
        """The times of the files that are kept and were begun before."""
        try:
            with open(path, "rb") as file:
                parts = file.read().split(b"F ")[1:]
        except FileNotFoundError:
            return b""
        keep = len(self._lines) - 1
        return b"".join(b"F " + part for part in parts[len(parts) - keep :]) if keep else b""

    def _record(self, now_ns: int) -> None:
        if self._times_fd < 0:
            return
        self._record_ns = now_ns + interval_ns(self._records)
        self._records += 1
        line = f"T {self._size} {now_ns}\n".encode()
        try:
            if os.write(self._times_fd, line) == len(line):
                return
        except OSError:
            pass
        self._give_up_times()  # a wrong time is worse than none

    def _give_up_times(self) -> None:
        self._close_times()
        for path in (f"{self._path}.times", f"{self._path}.times.new"):
            try:
                os.unlink(path)
            except OSError:
                continue

    def _close_times(self) -> None:
        if self._times_fd >= 0:
            os.close(self._times_fd)
            self._times_fd = -1
