"""What happens when: one queue of events in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """Callbacks in the order of their time; of one time, in the order they were entered."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._turn = 0

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Call ``act`` at that time."""
        self._turn += 1
        heapq.heappush(self._heap, (when_ns, self._turn, act))

    def run(self, wanted: Callable[[], bool]) -> None:
        """Until nothing is left, or ``wanted`` is false."""
        while self._heap and wanted():
            self.now_ns, _, act = heapq.heappop(self._heap)
            act()
