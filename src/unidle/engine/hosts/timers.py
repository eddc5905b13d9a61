"""When what is checked next: one time for each thing, the earliest that was asked for."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Timers(Generic[K]):
    """Times in ns by key. A key that is due is taken out, and has to be set again."""

    _at: dict[K, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, K]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def set(self, key: K, due_ns: int) -> None:
        """Look at it then, or when it was due before, if that is earlier."""
        before = self._at.get(key)
        if before is None or due_ns < before:
            self._at[key] = due_ns
            heapq.heappush(self._heap, (due_ns, next(self._order), key))

    def take(self, now_ns: int) -> Iterator[K]:
        """What is due by now, in order; also what becomes due while this runs."""
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, _, key = heapq.heappop(self._heap)
            if self._at.get(key) == due_ns:
                del self._at[key]
                yield key

    @property
    def next_ns(self) -> int | None:
        """The time of the next one, or of one that was brought forward since."""
        return self._heap[0][0] if self._heap else None
