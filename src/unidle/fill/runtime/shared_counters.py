"""Counters in memory that a filler's process and its supervisor share: what is permitted, what is done."""

from __future__ import annotations

import mmap
import os
from typing import Final, Literal

Counter = Literal[
    "open", "stop",  # by the supervisor: whether pieces may begin; the filler ends
    "state", "piece_begun_ns", "piece_ns", "pieces", "units", "filled_ns", "discarded_ns", "unfinished_ns",
    "waited_ns", "waits", "early", "early_ns", "unused_ns", "skipped", "pacing", "runs", "late_ns", "delayed_ns",
]  # fmt: skip

COUNTERS: Final[tuple[Counter, ...]] = Counter.__args__  # type: ignore[attr-defined]
_AT: Final = {name: k for k, name in enumerate(COUNTERS)}
STARTING, READY, FINISHED = 0, 1, 2
_SIZE: Final = 2 * mmap.PAGESIZE
_RUNS_AT: Final = 32  # a ring of the latest runs of pieces follows the counters
_RUN_WORDS: Final = 3
RUNS_KEPT: Final = 256
_APART_NS: Final = 300_000  # pieces of one thing that follow each other so closely are one run


class SharedCounters:
    """An anonymous file of two pages; ``fd`` is inherited by the filler's process."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("unidle-fill") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _SIZE)
        self._memory = mmap.mmap(self.fd, _SIZE)
        self._values = memoryview(self._memory).cast("q")

    def __getitem__(self, counter: Counter) -> int:
        return self._values[_AT[counter]]

    def __setitem__(self, counter: Counter, value: int) -> None:
        self._values[_AT[counter]] = value

    def add(self, counter: Counter, value: int) -> None:
        """Add to a counter that only this side writes."""
        self._values[_AT[counter]] += value

    def ran(self, begin_ns: int, end_ns: int, of: int) -> None:
        """Note a piece that ran, in ns of CLOCK_MONOTONIC."""
        count, values = self["runs"], self._values
        at = _RUNS_AT + (count - 1) % RUNS_KEPT * _RUN_WORDS
        if count and values[at + 2] == of and begin_ns - values[at + 1] < _APART_NS:
            values[at + 1] = end_ns
            return
        at = _RUNS_AT + count % RUNS_KEPT * _RUN_WORDS
        values[at], values[at + 1], values[at + 2] = begin_ns, end_ns, of
        self["runs"] = count + 1

    def runs(self) -> list[tuple[int, int, int]]:
        """Begin, end and what it belongs to of the latest runs of pieces, the oldest first."""
        count = self["runs"]
        places = (_RUNS_AT + k % RUNS_KEPT * _RUN_WORDS for k in range(max(count - RUNS_KEPT + 1, 0), count))
        return [(self._values[at], self._values[at + 1], self._values[at + 2]) for at in places]

    def clear(self) -> None:
        """What belongs to one process of the filler; sums stay."""
        for counter in ("state", "piece_begun_ns", "piece_ns", "unfinished_ns", "pacing"):
            self[counter] = 0

    def close(self) -> None:
        self._values.release()
        self._memory.close()
        os.close(self.fd)
