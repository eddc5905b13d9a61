"""Checksums of what will be sent soon, by a thread of their own: sending and summing both leave the interpreter to others."""

from __future__ import annotations

import os
import queue
import threading
import zlib
from typing import Final

LEAST_BYTES: Final = 64 << 10  # less is summed sooner than it is handed over
AHEAD: Final = 8  # chunks of a message that are summed before their turn


class Sum:
    """The CRC-32 of some bytes, computed by the thread that needs it first."""

    __slots__ = ("_lock", "_value", "payload")

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self._value: int | None = None
        self._lock = threading.Lock()

    def value(self) -> int:
        """The checksum; waits if the other thread is computing it."""
        with self._lock:
            if self._value is None:
                self._value = zlib.crc32(self.payload)
            return self._value


class Summer:
    """The thread, from the first bytes on that it is given; there is none on a machine with one core."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: queue.SimpleQueue[Sum | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._of_use = len(os.sched_getaffinity(0)) > 1

    def ask(self, payload: memoryview) -> Sum:
        """Queue bytes whose checksum will be needed soon."""
        asked = Sum(payload)
        if self._of_use and len(payload) >= LEAST_BYTES:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._asked.put(asked)
        return asked

    def close(self) -> None:
        """End the thread; each caller computes its own sums then."""
        self._of_use = False
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            asked.value()
