"""Counters in memory that a filler's process and its supervisor share: what is permitted, what is done."""

from __future__ import annotations

import mmap
import os
from typing import Final, Literal

Counter = Literal[
    "open", "stop",  # by the supervisor: whether pieces may begin; the filler ends
    "state", "piece_begun_ns", "piece_ns", "piece_cpu_ns", "pieces", "units", "filled_ns", "discarded_ns", "unfinished_ns",
    "waited_ns", "waits", "early", "early_ns", "unused_ns", "skipped", "pacing",
]  # fmt: skip

COUNTERS: Final[tuple[Counter, ...]] = Counter.__args__  # type: ignore[attr-defined]
_AT: Final = {name: k for k, name in enumerate(COUNTERS)}
STARTING, READY, FINISHED = 0, 1, 2


class SharedCounters:
    """An anonymous file of one page; ``fd`` is inherited by the filler's process."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("unidle-fill") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._values = memoryview(self._memory).cast("q")

    def __getitem__(self, counter: Counter) -> int:
        return self._values[_AT[counter]]

    def __setitem__(self, counter: Counter, value: int) -> None:
        self._values[_AT[counter]] = value

    def add(self, counter: Counter, value: int) -> None:
        """Add to a counter that only this side writes."""
        self._values[_AT[counter]] += value

    def clear(self) -> None:
        """What belongs to one process of the filler; sums stay."""
        for counter in ("state", "piece_begun_ns", "piece_ns", "piece_cpu_ns", "unfinished_ns", "pacing"):
            self[counter] = 0

    def close(self) -> None:
        self._values.release()
        self._memory.close()
        os.close(self.fd)
