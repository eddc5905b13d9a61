"""How long pieces take, learned from those that ran: what the filler computed, not how long it was suspended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

_KEPT: Final = 9
_ASKED: Final = 30
_FIRST_NS: Final = 1_000_000  # of a kind of which none ran yet


class Lengths:
    """By kind of piece: the median of the last ones.

    A kind that was asked for many times and did not run, because it seemed too long for any wait, seems half as long then: its measured length
    may have had a cold start in it.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, deque[int]] = {}
        self._asked: dict[Hashable, int] = {}

    def of(self, kind: Hashable) -> int:
        """Nanoseconds. A short guess before the first: it then runs in any wait, and its length is known."""
        seen = self._seen.get(kind)
        if not seen:
            return _FIRST_NS
        asked = self._asked[kind] = self._asked.get(kind, 0) + 1
        if asked > _ASKED:
            self._asked[kind] = 0
            self._seen[kind] = seen = deque((each // 2 for each in seen), maxlen=_KEPT)
        return sorted(seen)[len(seen) // 2]

    def timed(self, kind: Hashable, work: Callable[[], object]) -> int:
        """Do ``work``, and learn from it; its nanoseconds."""
        begun = time.process_time_ns()
        work()
        took = time.process_time_ns() - begun
        self._seen.setdefault(kind, deque(maxlen=_KEPT)).append(took)
        self._asked[kind] = 0
        return took
