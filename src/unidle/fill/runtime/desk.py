"""The words that a filler's process and its supervisor share: what is permitted, what is done."""

from __future__ import annotations

import mmap
import os
from typing import Final, Literal

Word = Literal[
    "open", "stop",  # by the supervisor: whether pieces may begin; the filler ends
    "state", "piece_begun_ns", "piece_ns", "piece_cpu_ns", "pieces", "units", "filled_ns", "discarded_ns", "unfinished_ns",
    "waited_ns", "waits", "early", "early_ns", "unused_ns", "skipped", "pacing",
]  # fmt: skip

WORDS: Final[tuple[Word, ...]] = Word.__args__  # type: ignore[attr-defined]
_AT: Final = {name: k for k, name in enumerate(WORDS)}
STARTING, READY, FINISHED = 0, 1, 2


class Desk:
    """An anonymous file of one page; ``fd`` is inherited by the filler's process."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("unidle-fill") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._words = memoryview(self._memory).cast("q")

    def __getitem__(self, word: Word) -> int:
        return self._words[_AT[word]]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[_AT[word]] = value

    def add(self, word: Word, value: int) -> None:
        """Add to a word that only this side writes."""
        self._words[_AT[word]] += value

    def clear(self) -> None:
        """What belongs to one process of the filler; sums stay."""
        for word in ("state", "piece_begun_ns", "piece_ns", "piece_cpu_ns", "unfinished_ns", "pacing"):
            self[word] = 0

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self.fd)
