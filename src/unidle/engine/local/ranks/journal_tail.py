"""Reads a rank's journal as it grows."""

from __future__ import annotations

import os

from unidle.engine.local.ranks.mark_forms import ENDS, RawMarks

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

CHUNK_BYTES = 1024 * 1024
_FIRST_BYTES = 16 * 1024  # mostly there is little, and room for a chunk costs more than to read it


class JournalTail:
    """Whole lines of one journal, each once; a torn last line waits for its end.

    ``known`` lines from the start are skipped: their marks are in the log already. A power cut may leave fewer
    lines than that; what is added then is numbered after the marks of the log, not after the lines. ``form`` makes
    marks of the lines.
    """

    def __init__(self, path: str, form: RawMarks, known: int = 0) -> None:
        self._path = path
        self._form = form
        self._skip = known
        self._fd: int | None = None
        self._offset = 0
        self._last_t = 0
        self.count = 0
        self.behind = False  # more is there than one read takes
        self.ended = False
        self.known_end: Any = None  # the rank's end, where it was read from a line that is skipped
        self.unwritten: Any = None  # an added mark that the disk refused
        self.spawned: tuple[int, int] | None = None  # pid and start ticks of the rank

    def read(self) -> tuple[int, tuple[Any, ...]]:
        """Ordinal of the first new mark, and the new marks; at most about one chunk of them."""
        lines = self._lines()
        first = self.count
        self.count += len(lines)
        unknown = lines[max(0, self._skip - first) :]
        for line in lines[: len(lines) - len(unknown)]:
            mark = self._decode(line)
            if self._form.facts(mark)[0] in ENDS:
                self.known_end = mark
        return self.count - len(unknown), tuple(self._decode(line) for line in unknown)

    @property
    def next(self) -> int:
        """Ordinal of the next mark: neither a line of the journal nor a mark of the log has it."""
        return max(self.count, self._skip)

    def append(self, mark: Any) -> Any:
        """Add a mark in place of a supervisor that is gone, in place of its torn last line.

        Only for the holder of the rank's lock. A disk that refuses it does not lose the mark: it is
        counted as if it were there.
        """
        self.count = self.next + 1
        self.ended = self.ended or self._form.facts(mark)[0] in ENDS
        line, self.unwritten = self._form.encode(mark) + b"\n", mark
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, self._offset)
                if os.pwrite(fd, line, self._offset) == len(line):
                    self._offset += len(line)
                    self.unwritten = None
            finally:
                os.close(fd)
        except OSError:
            pass
        return mark

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lines(self) -> list[bytes]:
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._fd, _FIRST_BYTES, self._offset) or self._restored()
            if len(data) == _FIRST_BYTES:
                data += os.pread(self._fd, CHUNK_BYTES - len(data), self._offset + len(data))
        except OSError:
            return []  # not there yet, or a disk that may recover
        self.behind = len(data) == CHUNK_BYTES
        end = data.rfind(b"\n") + 1
        self._offset += end
        return data[:end].splitlines()

    def _restored(self) -> bytes:
        """What comes next in the file that a supervisor wrote in place of a deleted one: the same lines, and new ones."""
        assert self._fd is not None
        if os.fstat(self._fd).st_nlink:
            return b""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd
        return os.pread(fd, _FIRST_BYTES, self._offset)

    @property
    def missing(self) -> bool:
        """Whether the journal has no file."""
        return not os.path.exists(self._path)

    def _decode(self, line: bytes) -> Any:
        try:
            mark = self._form.decode(line)
        except (ValueError, RecursionError) as error:
            text = f"a line of the journal cannot be read: {error}"
            return self._form.make("note", self._last_t, text)
        kind, self._last_t, pid, ticks = self._form.facts(mark)
        if kind in ENDS:
            self.ended = True
        elif kind == "spawn" and pid is not None and ticks is not None:
            self.spawned = (pid, ticks)
        return mark
