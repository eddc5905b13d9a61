"""What ranks print, on its way to the hub: so that it can be read when the box and its disk are gone.

While ranks run, only so much is sent in a second; of what is more, the newest. After the end of a rank, all that is left of it is sent.
"""

from __future__ import annotations

import base64
import os

from unidle.engine.local.ranks.rundir import LOG, TIMES

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

KEEP_BYTES = 512 * 1024
"""Of a rank that is twice as far behind, so many of the newest bytes are read, and what is before them is left out."""
PART_BYTES = 64 * 1024
GATHER_NS = 1_000_000_000  # so long output waits for more
SAME_TIME_NS = 250_000_000  # what is read within so long has one time
BYTES_PER_S = 64 * 1024  # of one box
BURST_BYTES = 1024 * 1024


class OutputBudget:
    """How much output a box may send while its ranks run."""

    def __init__(self) -> None:
        self._left = float(BURST_BYTES)
        self._at_ns = 0

    def allows(self, now_ns: int) -> bool:
        self._left = min(self._left + (now_ns - self._at_ns) * BYTES_PER_S / 1e9, float(BURST_BYTES))
        self._at_ns = now_ns
        return self._left > 0

    def spend(self, count: int) -> None:
        self._left -= count


class OutputFeed:
    """The output of one rank from byte ``place`` on, of all that it ever printed."""

    def __init__(self, directory: str, place: int) -> None:
        self._path = f"{directory}/{LOG}"
        self._times = f"{directory}/{TIMES}"
        self._place = place
        self._fd = -1
        self._begin = 0  # bytes that were printed before the open file
        self._parts: list[tuple[int, bytes]] = []  # that were not sent: when they were read, and what
        self._held = 0  # bytes of these
        self._since_ns = 0
        # lines that were printed before the parts, where some are left out before them
        self._lines: int | None = None
        self.done = False  # the rank has ended, and all of its output was taken

    def look(self, now_ns: int, offset_ns: int, *, ended: bool) -> None:
        """Read what is new. ``offset_ns`` turns the clock of this host into the controller's."""
        while self._held < PART_BYTES:
            try:
                data = self._read()
            except OSError:
                data = b""  # not there yet
            if not data:
                self.done = ended and not self._held
                return
            at_ns = now_ns + offset_ns
            if not self._parts:
                self._since_ns = now_ns
            if self._parts and at_ns - self._parts[-1][0] < SAME_TIME_NS:
                at_ns, data = self._parts[-1][0], self._parts.pop()[1] + data
            self._parts.append((at_ns, data))
            self._held = sum(len(part) for _, part in self._parts)

    def is_due(self, now_ns: int, *, ended: bool) -> bool:
        """Whether it is time to send what was read."""
        if ended or self._held >= PART_BYTES:
            return self._held > 0
        return self._held > 0 and now_ns - self._since_ns >= GATHER_NS

    def take(self) -> tuple[int, dict[str, Any]]:
        """How many bytes are to be sent now, and the body of their frame."""
        parts = [[at_ns, base64.b64encode(data).decode("ascii")] for at_ns, data in self._parts]
        count, body = self._held, {"at": self._place - self._held, "parts": parts}
        if self._lines is not None:
            body["lines"] = self._lines
        self._parts, self._held, self._lines = [], 0, None
        return count, body

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- the files of the rank

    def _read(self) -> bytes:
        """What follows, or the newest where that is far ahead. Errors: OSError."""
        if self._fd < 0 and not self._open(self._place):
            return b""
        mine, newest = os.fstat(self._fd), os.stat(self._path)
        rotated = newest.st_ino != mine.st_ino
        behind = self._begin + mine.st_size - self._place + (newest.st_size if rotated else 0)
        if behind > 2 * KEEP_BYTES and not (self._parts or self._open(self._place + behind - KEEP_BYTES)):
            return b""
        data = os.read(self._fd, PART_BYTES - self._held)
        if not data and rotated and self._open(self._place):
            data = os.read(self._fd, PART_BYTES - self._held)
        self._place += len(data)
        return data

    def _open(self, place: int) -> bool:
        """Open the file with byte ``place``, or the oldest one. False where it is not known which, or where what was
        left out is to be reported first. Errors: OSError."""
        begins = self._begins()
        files = [(fd, begins.get(os.fstat(fd).st_ino)) for fd in self._files()]
        try:
            known = [(fd, found[0], found[1]) for fd, found in files if found is not None]
            if not known or (place != self._place and self._parts):
                return False
            fd, lines, begin = next((one for one in known if one[2] <= place), known[-1])
            if begin > place and self._parts:
                return False
            self.close()
            self._fd, self._begin = os.dup(fd), begin
            self._go(max(place, begin), lines)
            return True
        finally:
            for fd, _ in files:
                os.close(fd)

    def _go(self, place: int, lines: int) -> None:
        """Continue at ``place`` in the open file, or after the end of the line that is there where bytes are left out."""
        offset = place - self._begin
        if place > self._place:
            passed = os.pread(self._fd, offset, 0)
            lines += passed.count(b"\n")
            if passed and not passed.endswith(b"\n"):
                end = os.pread(self._fd, PART_BYTES, offset).find(b"\n") + 1
                offset, lines = offset + end, lines + (end > 0)
            self._lines = lines
        self._place = self._begin + offset
        os.lseek(self._fd, offset, os.SEEK_SET)

    def _files(self) -> list[int]:
        """The newest first."""
        found: list[int] = []
        while True:
            path = f"{self._path}.{len(found)}" if found else self._path
            try:
                found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            except OSError:
                return found

    def _begins(self) -> dict[int, tuple[int, int]]:
        """Lines and bytes that were printed before each file, by its inode. Errors: OSError."""
        with open(self._times, "rb") as file:
            words = [line.split() for line in file if line.startswith(b"F ")]
        return {int(one[1]): (int(one[2]), int(one[3])) for one in words if len(one) == 5}
