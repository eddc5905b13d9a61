"""Wakes the hub's thread out of its poll."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class HubBell:
    """An eventfd. Any thread rings; one polls ``fd``, calls ``clear``, and closes it at its end."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._use = threading.Lock()
        self._woken = False

    def wake(self) -> None:
        """Ring, unless the last ring is not cleared yet."""
        if not self._woken:
            self._woken = True
            self.ring()

    def ring(self) -> None:
        with self._use:  # the other thread may end, and close it, at any time
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._woken = False

    def close(self) -> None:
        with self._use:
            bell, self.fd = self.fd, -1
            os.close(bell)
