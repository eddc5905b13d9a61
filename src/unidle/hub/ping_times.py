"""When each peer gets its next ping: spread evenly over the interval, so that 10,000 of them are no burst."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unidle.hub.connection import Connection

SLOTS: Final = 50


class PingTimes:
    """Slots of a fiftieth of ``every_ns``. A new peer goes to the one with the fewest peers."""

    def __init__(self, every_ns: int, now_ns: int) -> None:
        self._step_ns = max(1, every_ns // SLOTS)
        self._slots: list[dict[int, Connection]] = [{} for _ in range(SLOTS)]
        self._done = now_ns // self._step_ns  # the last step that was served
        self._count = 0

    def add(self, connection: Connection) -> None:
        slot = min(range(SLOTS), key=lambda k: len(self._slots[k]))
        connection.slot = slot
        self._slots[slot][connection.fd] = connection
        self._count += 1

    def discard(self, connection: Connection) -> None:
        if connection.slot >= 0:
            del self._slots[connection.slot][connection.fd]
            connection.slot = -1
            self._count -= 1

    def due(self, now_ns: int) -> Iterator[Connection]:
        """Those whose time has come since the last call: each once, however long that was."""
        step = now_ns // self._step_ns
        first = max(self._done + 1, step - SLOTS + 1)
        self._done = max(self._done, step)
        for k in range(first, step + 1):
            yield from list(self._slots[k % SLOTS].values())

    def next_ns(self) -> int | None:
        """When the next ping is due; None without peers."""
        if not self._count:
            return None
        for step in range(self._done + 1, self._done + 1 + SLOTS):
            if self._slots[step % SLOTS]:
                return step * self._step_ns
        return None
