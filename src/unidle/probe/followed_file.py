"""Follows a log file that is rotated, truncated, replaced or not there yet."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from unidle.guard.log import LogLine, Splitter

_BLOCK_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 256  # enough to tell two files with the same inode number apart
_TAIL_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file was read: its identity, how many bytes, and check sums of its beginning and of the last bytes read."""

    device: int
    inode: int
    offset: int
    head: int
    head_bytes: int
    tail: int

    @classmethod
    def parse(cls, text: str) -> FilePosition | None:
        """From :meth:`text`; None for anything else."""
        try:
            fields = json.loads(text)
            position = cls(**fields)
        except (ValueError, TypeError):
            return None
        return position if all(type(v) is int and v >= 0 for v in fields.values()) else None

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class End:
    """Where a file ended: its identity and size; zeros for a file that was not there."""

    device: int = 0
    inode: int = 0
    size: int = 0

    @classmethod
    def of(cls, path: str) -> End:
        try:
            own = Path(path).stat()
        except OSError:
            return cls()
        return cls(own.st_dev, own.st_ino, own.st_size)


class FollowedFile:
    """A :class:`~unidle.probe.log_watch.LogSource` on a file.

    Without a ``position`` it begins at the end of the file, or at the beginning of one that appears later. Rotation (by
    rename or by copy and truncate) loses nothing that was written before it; a file that was rewritten is read from
    its beginning. A backlog above ``backlog_bytes`` is skipped up to its last ``backlog_bytes``, and counted in ``lost``.
    With ``needles`` only lines that hold one of them are reported. ``end``: where the file ended when its reader
    began; without it, where it ends now.
    """

    def __init__(
        self, path: str, position: str = "", *, most_bytes: int = 4 << 20, backlog_bytes: int = 256 << 20,
        needles: tuple[bytes, ...] = (), end: End | None = None,
    ) -> None:  # fmt: skip
        self.name = path
        self.lost = 0
        self._most_bytes = most_bytes
        self._backlog_bytes = backlog_bytes
        self._splitter = Splitter(needles=needles)
        self._fd = -1
        self._offset = 0  # of what was read, an unfinished line included
        self._tail = b""  # the bytes before it
        self._why: str | None = None
        self._resume = FilePosition.parse(position) if position else None
        self._end = (end or End.of(path)) if self._resume is None else End()
        self._look()

    def poll(self) -> list[LogLine]:
        lines: list[LogLine] = []
        if self._fd < 0:
            self._look()
        if self._fd < 0:
            return lines
        budget = self._most_bytes
        budget -= self._read(lines, budget)
        while budget > 0 and self._moved():
            lines += self._splitter.end()  # nobody writes there any more
            self._shut()
            self._look()
            if self._fd < 0:
                break
            budget -= self._read(lines, budget)
        return lines

    def _look(self) -> None:
        """Open the file at the position where reading continues."""
        if self._resume is not None:
            position, self._resume = self._resume, None
            if self._go_on(position):
                return
        try:
            self._fd = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            own = os.fstat(self._fd)
        except OSError as error:
            self._why = f"{self.name}: {error.strerror}; name a file that can be read"
            self._shut()
            return
        self._why = None
        end, self._end = self._end, End()
        same = (own.st_dev, own.st_ino) == (end.device, end.inode)
        self._go_to(min(end.size, own.st_size) if same else 0)

    def _go_on(self, position: FilePosition) -> bool:
        """Find the file of a kept position, under its name or under one that rotation gave it."""
        folder, base = os.path.split(os.path.abspath(self.name))  # noqa: PTH100
        names = [base]
        with suppress(OSError):
            names += sorted(n for n in os.listdir(folder) if n.startswith(base) and n != base)  # noqa: PTH208
        for name in names:
            try:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # noqa: PTH118
            except OSError:
                continue
            if _is_at(fd, position):
                self._fd, self._why = fd, None
                self._go_to(position.offset)
                return True
            os.close(fd)
        return False

    def _read(self, lines: list[LogLine], budget: int) -> int:
        """Read what there is, at most ``budget`` bytes; how many they were."""
        size = os.fstat(self._fd).st_size
        if size < self._offset or not self._same_tail():  # truncated, and perhaps written to again
            self._splitter.forget()
            self._go_to(0)
        if size - self._offset > self._backlog_bytes:
            skipped = size - self._backlog_bytes - self._offset
            self.lost += skipped
            self._splitter.forget()
            self._go_to(self._offset + skipped)
        used = 0
        while used < budget:
            block = os.pread(self._fd, min(_BLOCK_BYTES, budget - used), self._offset)
            if not block:
                break
            lines += self._splitter.feed(block)
            self._offset += len(block)
            self._tail = block[-_TAIL_BYTES:]
            used += len(block)
        return used

    def _go_to(self, offset: int) -> None:
        start = max(0, offset - _TAIL_BYTES)
        self._offset, self._tail = offset, os.pread(self._fd, offset - start, start)

    def _same_tail(self) -> bool:
        """Whether the bytes before the offset are still those that were read."""
        if not self._tail:
            return True
        return os.pread(self._fd, len(self._tail), self._offset - len(self._tail)) == self._tail

    def _moved(self) -> bool:
        """Whether the name now refers to another file."""
        try:
            now, own = os.stat(self.name), os.fstat(self._fd)  # noqa: PTH116
        except OSError:
            return False  # renamed, and the new one is not there yet
        return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino)

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._offset, self._tail = -1, 0, b""

    def why_not(self) -> str | None:
        return self._why

    def position(self) -> str:
        if self._fd < 0:
            return self._resume.text() if self._resume else ""
        return _position(self._fd, self._offset - self._splitter.open_bytes).text()

    def news_fd(self) -> int:
        return -1

    def close(self) -> None:
        self._shut()
        self._splitter.forget()


def _position(fd: int, offset: int) -> FilePosition:
    own = os.fstat(fd)
    head = os.pread(fd, min(_HEAD_BYTES, offset), 0)
    return FilePosition(own.st_dev, own.st_ino, offset, zlib.crc32(head), len(head), _tail_sum(fd, offset))


def _tail_sum(fd: int, offset: int) -> int:
    start = max(0, offset - _TAIL_BYTES)
    return zlib.crc32(os.pread(fd, offset - start, start))


def _is_at(fd: int, position: FilePosition) -> bool:
    """Whether the open file is the one of the position, with the same bytes before it."""
    own = os.fstat(fd)
    return (
        (own.st_dev, own.st_ino) == (position.device, position.inode)
        and own.st_size >= position.offset
        and zlib.crc32(os.pread(fd, position.head_bytes, 0)) == position.head
        and _tail_sum(fd, position.offset) == position.tail
    )
