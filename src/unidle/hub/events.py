"""Events on their way from the hub's thread to the control loop, and when a client has sent more than is polled."""

from __future__ import annotations

import os
from collections import deque

from unidle.hub.connection import Connection
from unidle.hub.limits import HubLimits
from unidle.hub.protocol import Joined, Left, Received

Event = Joined | Left | Received


class PolledEvents:
    """One thread puts, one takes. ``fd`` is readable while something waits. Errors: OSError without a descriptor."""

    def __init__(self, limits: HubLimits) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events: deque[Event] = deque()
        self._rung = False
        self._limits = limits
        self._bytes = 0
        self._polls = 0  # written by the thread that takes
        self._seen_polls = 0
        self._paused: list[Connection] = []
        self.waiting = False  # a connection is not read until the next poll

    def take(self) -> list[Event]:
        """All that wait, the oldest first."""
        if self.fd >= 0:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                if not self._events:
                    return []
        # in this order: what is put after it rings again, what was put before it is taken below
        self._rung = False
        events = self._events
        found = [events.popleft() for _ in range(len(events))]
        self._polls += 1
        return found

    def put(self, event: Event) -> None:
        self._events.append(event)

    def received(self, connection: Connection, event: Received, size: int) -> bool:
        """Put a frame of ``size`` bytes; whether its connection has to wait for the next poll."""
        self._events.append(event)
        self._bytes += size
        if connection.polls != self._seen_polls:
            connection.polls, connection.unpolled = self._seen_polls, 0
        connection.unpolled += size
        if self._bytes <= self._limits.unpolled_bytes:
            return False
        if connection.unpolled <= self._limits.unpolled_of_peer:
            return False
        self._paused.append(connection)
        self.waiting = True
        return True

    def polled(self) -> list[Connection]:
        """Those that need not wait any more, after a poll."""
        if self._seen_polls == self._polls:
            return []
        self._seen_polls = self._polls
        freed, self._paused = self._paused, []
        self._bytes = 0
        self.waiting = False
        return freed

    def ring(self) -> None:
        """After some puts."""
        if self._events and not self._rung and self.fd >= 0:
            self._rung = True
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
