"""How long pieces take, learned from those that ran: what the filler computed, not how long it was suspended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

_KEPT: Final = 9
_FIRST_NS: Final = 1_000_000  # of a kind of which none ran yet


class Lengths:
    """By kind of piece: the median of the last ones."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, deque[int]] = {}

    def of(self, kind: Hashable) -> int:
        """Nanoseconds. A short guess before the first: it then runs in any wait, and its length is known."""
        seen = self._seen.get(kind)
        if not seen:
            return _FIRST_NS
        return sorted(seen)[len(seen) // 2]

    def timed(self, kind: Hashable, work: Callable[[], object]) -> int:
        """Do ``work``, and learn from it; its nanoseconds."""
        begun = time.process_time_ns()
        work()
        took = time.process_time_ns() - begun
        self._seen.setdefault(kind, deque(maxlen=_KEPT)).append(took)
        return took
