"""A network that delays, stalls and cuts connections, and time that jumps from one happening to the next: all by one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from unidle.engine.hosts.timing import HostsTiming, S

MS: Final = 1_000_000
EVERY_NS: Final = S
TIMING: Final = HostsTiming(deadline_ns=6 * S, silent_ns=3 * S, start_within_ns=20 * S, retry_ns=S)
NODES: Final = ("n1", "n2", "n3")


class Time:
    """Virtual time. What is to happen is called in order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ns = 1_000 * S
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, delay_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ns + max(0, delay_ns), next(self._order), what))

    def run_until(self, end_ns: int, over: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= end_ns and not over():
            at_ns, _, what = heapq.heappop(self._heap)
            self.now_ns = max(self.now_ns, at_ns)
            what()

    def some_ns(self, least: int, most: int) -> int:
        return self.chance.randrange(least, most + 1)


class Link:
    """One connection between a client and a hub. Frames of each direction keep their order. ``dead``: what is sent is lost."""

    def __init__(self, time: Time, client: Any, hub: Any) -> None:
        self.time, self.client, self.hub = time, client, hub
        self.dead = False
        self.stalled_ns = 0
        self._last = [0, 0]
        self.peer = 0

    def to_hub(self, frame: object) -> None:
        self._carry(0, lambda: self.hub.take(self, frame))

    def to_client(self, frame: object) -> None:
        self._carry(1, lambda: self.client.take(self, frame))

    def _carry(self, way: int, deliver: Callable[[], None]) -> None:
        if self.dead:
            return
        slow = self.time.chance.random() < 0.1
        due_ns = self.time.now_ns + self.time.some_ns(MS, 2 * S if slow else 20 * MS)
        due_ns = max(due_ns, self._last[way], self.stalled_ns)
        self._last[way] = due_ns
        self.time.after(due_ns - self.time.now_ns, lambda: None if self.dead else self._arrive(way, deliver))

    def _arrive(self, way: int, deliver: Callable[[], None]) -> None:
        if self.stalled_ns > self.time.now_ns:  # stalled since it was sent: later frames wait behind it
            self.time.after(self.stalled_ns - self.time.now_ns, lambda: None if self.dead else deliver())
            self._last[way] = max(self._last[way], self.stalled_ns)
        else:
            deliver()

    def cut(self) -> None:
        """What is under way is lost, and each side notices in its own time."""
        if self.dead:
            return
        self.dead = True
        self.time.after(self.time.some_ns(0, 12 * S), lambda: self.hub.lost(self))
        self.time.after(self.time.some_ns(0, 12 * S), lambda: self.client.lost(self))

    def close(self) -> None:
        """One side closes; the other sees it soon."""
        if self.dead:
            return
        self.dead = True
        self.time.after(self.time.some_ns(MS, 50 * MS), lambda: self.hub.lost(self))
        self.time.after(self.time.some_ns(MS, 50 * MS), lambda: self.client.lost(self))
