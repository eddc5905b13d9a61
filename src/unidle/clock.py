"""Time as a parameter, so that one loop runs live and simulated."""

from __future__ import annotations

import math
import os
import select
import time
from typing import Protocol

from unidle.boot import boot_id as boot_id
from unidle.boot import boottime_ns as boottime_ns


class Clock(Protocol):
    """Integer nanoseconds since the Unix epoch that never run backwards."""

    def now_ns(self) -> int: ...


class RealClock:
    """Wall time at the start, advanced by the boot-time clock: steps of the wall clock do not reach it.

    ``not_before_ns`` (usually the time of the log's last event) keeps a log's times ordered across
    restarts even when the wall clock was set back in between. ``offset_ns`` is what turns the
    boot-time clock into this clock; processes on the same machine that are given it agree on time.
    An offset that is given is kept, so that what still runs under it and this clock agree.
    """

    def __init__(self, not_before_ns: int = 0, offset_ns: int | None = None) -> None:
        boot = boottime_ns()
        if offset_ns is None:
            offset_ns = time.time_ns() - boot
        self.offset_ns = max(offset_ns, not_before_ns - boot)

    def now_ns(self) -> int:
        return boottime_ns() + self.offset_ns


class VirtualClock:
    """A clock that moves only when :meth:`advance_to` is called."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_to(self, time_ns: int) -> None:
        """Move forward to ``time_ns``; an earlier time changes nothing."""
        self._now_ns = max(self._now_ns, time_ns)


class Bell:
    """What one thread waits on until another one rings it. It stays rung.

    A ``threading.Event`` makes a lock for each wait, which costs a third more, and cannot wait for a file as well.
    Errors: OSError if no file descriptor is available.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._fd, select.POLLIN)
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def wait(self, seconds: float, fd: int = -1) -> bool:
        """Until it is rung, ``fd`` (where it is none below 0) can be read, or so long; whether it is rung."""
        if fd >= 0:
            self._poller.register(fd, select.POLLIN)
        self._poller.poll(math.ceil(seconds * 1000))
        if fd >= 0:
            self._poller.unregister(fd)
        return self.rung

    def close(self) -> None:
        """Call this when no thread waits on it any more. Ringing it afterwards wakes no thread."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
