"""Until when the ranks of a box may run, in a file that their supervisors read: a box that was killed renews nothing.

One line of fixed length: boot, deadline (CLOCK_BOOTTIME, ns), fence. It is written in place, which needs no space
on the disk after the first time, and with one call, so that a reader sees one state or the other.
"""

from __future__ import annotations

import os

NAME = "lease"  # in the directory of the job
_BYTES = 128


class LeaseFile:
    """The writer's side. A write that fails leaves what was there: the ranks then end earlier, never later."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, boot: str, deadline_ns: int, fence: int, *, durable: bool = False) -> bool:
        """Whether it was written. ``durable``: it is on the disk, so that a fence outlives a crash of the machine."""
        line = f"{boot or '-'} {deadline_ns} {fence}".ljust(_BYTES - 1) + "\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                whole = os.pwrite(fd, line.encode("ascii"), 0) == _BYTES
                if durable:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError:
            return False
        return whole


def read(path: str, boot: str) -> tuple[int, int]:
    """Deadline and fence of a lease; the deadline is 0 without one of this boot, the fence is 0 without any."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            words = os.pread(fd, _BYTES, 0).decode("ascii").split()
        finally:
            os.close(fd)
        return (int(words[1]) if words[0] == (boot or "-") else 0), int(words[2])
    except (OSError, ValueError, IndexError):
        return 0, 0
