"""Follows the kernel's ring by the system call syslog(2): for a container, whose control group does not let it open ``/dev/kmsg``."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Final

from unidle.guard.log import LogLine
from unidle.probe.kernel_log import boot_id

READ_EVERY_S: Final = 1.0
_READ_ALL, _SIZE = 3, 10  # actions of the call
_TAIL_BYTES: Final = 16 * 1024
_MOST_BYTES: Final = 16 << 20
_STAMP: Final = re.compile(rb"<\d{1,4}>\[\s*(\d+)\.(\d{6})\]")


class KernelSyslog:
    """A :class:`~unidle.probe.log_watch.LogSource`. ``position`` is as of :class:`unidle.probe.kernel_log.KernelLog`, by time.

    Each read gives the end of the ring again, so that it is read once a second at most. ``lost`` counts how often the
    ring went round in between.
    """

    name = "syslog"

    def __init__(self, position: str = "", *, every_s: float = READ_EVERY_S) -> None:
        self.lost = 0
        self._every_s = every_s
        self._boot = boot_id()
        self._call = ctypes.CDLL(None, use_errno=True).klogctl
        self._why: str | None = None
        self._number = 0
        self._due_s = 0.0
        self._last = b""  # the last line that was given out
        boot, _, stamp = position.rpartition(" @")
        known = stamp.isdigit() and boot == self._boot
        self._after_us = int(stamp) if known else 0
        # what is printed has more bytes than what is stored
        self._size = min(max(2 * self._ask(_SIZE, None, 0), _TAIL_BYTES), _MOST_BYTES)
        if not position:  # from now on
            stamped = [line for line in self._read(_TAIL_BYTES).split(b"\n") if _stamp_us(line) is not None]
            self._last = stamped[-1] if stamped else b""
            self._after_us = _stamp_us(self._last) or 0

    def poll(self) -> list[LogLine]:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return []
        self._due_s = now_s + self._every_s
        found = []
        for line in self._fresh():
            stamp = _stamp_us(line)
            if stamp is None or (not self._last and self._after_us and stamp <= self._after_us):
                continue
            self._last, self._after_us = line, max(stamp, self._after_us)
            self._number += 1
            found.append(LogLine(self._number, line.replace(b"\0", b""), self._boot))
        return found

    def _fresh(self) -> list[bytes]:
        """Whole lines after the last one that is known; all that there are, where that is not in the ring any more."""
        for size in (_TAIL_BYTES, self._size):
            lines = self._read(size).split(b"\n")[:-1]
            if self._last and self._last in lines:
                return lines[len(lines) - lines[::-1].index(self._last) :]
        self.lost += bool(self._last and lines)
        return lines

    def _read(self, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        count = max(self._ask(_READ_ALL, buffer, size), 0)
        return buffer.raw[:count]

    def _ask(self, action: int, buffer: object, size: int) -> int:
        found: int = self._call(action, buffer, size)
        self._why = None if found >= 0 else f"syslog: {os.strerror(ctypes.get_errno())}; it needs CAP_SYSLOG"
        return found

    def why_not(self) -> str | None:
        return self._why

    def position(self) -> str:
        return f"{self._boot} @{self._after_us}"

    def news_fd(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is open."""


def _stamp_us(line: bytes) -> int | None:
    """When a line was logged, in microseconds since boot; None for one without a time, as where the kernel logs none."""
    found = _STAMP.match(line)
    return None if found is None else int(found[1]) * 1_000_000 + int(found[2])
