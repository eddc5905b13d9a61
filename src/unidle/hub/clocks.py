"""The offset of a client's clock, from exchanges of pings and pongs. Pure: times come in as arguments.

The hub has the time when it sent a ping and when the pong came; the pong has the client's CLOCK_BOOTTIME in between. The
truth is therefore within half the round trip of the middle (D. L. Mills, RFC 5905, section 8). Of the last 64
exchanges the one with the least round trip counts.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from unidle.hub.protocol import ClockOffset

KEPT: Final = 64
DRIFT_NS: Final = 50_000_000
"""More than two good clocks drift apart while 64 exchanges are made: 500 ppm (the most that a clock is slewed) of 100 s."""


class OffsetEstimate:
    """The offset of one client: the best of the last :data:`KEPT` exchanges.

    Boot-time clocks do not step. One that does (a virtual machine moved to another host) contradicts what was
    measured before, and the older exchanges are forgotten: ``jumps`` counts that. ``value`` is None before the first
    exchange; other threads may read it.
    """

    __slots__ = ("_best", "_count", "jumps", "value")

    def __init__(self) -> None:
        # minimum of a sliding window: round trips rise from left to right, so that this holds few of the 64
        self._best: deque[tuple[int, int, int]] = deque()  # number of the exchange, round trip, offset
        self._count = 0
        self.jumps = 0
        self.value: ClockOffset | None = None

    def add(self, sent_ns: int, received_ns: int, theirs_ns: int) -> None:
        """An exchange. ``sent_ns`` may be earlier than the truth, ``received_ns`` later: the error grows by that."""
        round_trip = max(0, received_ns - sent_ns)
        offset = sent_ns + round_trip // 2 - theirs_ns
        best = self._best
        if best and abs(offset - best[0][2]) > (round_trip + best[0][1]) // 2 + DRIFT_NS:
            best.clear()
            self.jumps += 1
        self._count += 1
        while best and best[-1][1] >= round_trip:
            best.pop()
        best.append((self._count, round_trip, offset))
        if best[0][0] <= self._count - KEPT:
            best.popleft()
        _, round_trip, offset = best[0]
        if self.value is None or self.value.offset_ns != offset:
            self.value = ClockOffset(offset, -(-round_trip // 2))
