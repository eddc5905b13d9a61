"""Offset of a peer's monotonic clock, measured during training. Only the start waits for it."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from unidle.span.wan import Channel, WanError

FIRST: Final = 4  # rounds before anything is trained
EVERY_S: Final = 2.0
KEPT: Final = 8  # rounds: what is in one's way, and how fast clocks drift, are both small over 16 s
_TAG: Final = "clock"
_LEAVE_S: Final = 1.0


class PeerClock:
    """Of one peer. ``asks``: whether this side does; the other answers, and receives what was found. ``now``: the clock, in ns.

    Of the last answers the one that came fastest counts, as in the clock filter of NTP (RFC 5905): a round that waits behind
    data is as far off as it waits longer in one direction than in the other.
    """

    def __init__(self, channel: Channel, *, asks: bool, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._channel, self._now = channel, now
        self._over = threading.Event()
        self._known: Future[None] = Future()
        self.ahead_ns = 0
        self._asks = asks
        self._thread = threading.Thread(target=self._run, name=f"span-clock-{channel.peer}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is known for the first time. Errors: :class:`unidle.span.wan.WanError`."""
        self._known.result()

    def stop(self) -> None:
        """Stop measuring, so that no message is in flight when channels close."""
        self._over.set()
        if self._asks:
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        try:
            if self._asks:
                self._ask()
            else:
                self._answer()
        except WanError as error:
            if not self._known.done():
                self._known.set_exception(error)

    def _ask(self) -> None:
        rounds: deque[tuple[int, int]] = deque(maxlen=KEPT)
        for count in itertools.count():
            begun = self._now()
            self._channel.send(_TAG, str(-self.ahead_ns).encode() if count >= FIRST else b"")
            theirs = int(bytes(self._channel.recv(_TAG).result()))
            took = self._now() - begun
            rounds.append((took, theirs - begun - took // 2))
            self.ahead_ns = min(rounds)[1]
            if count == FIRST:
                self._known.set_result(None)
            if count >= FIRST and self._over.wait(EVERY_S):
                return

    def _answer(self) -> None:
        while True:
            told = bytes(self._channel.recv(_TAG).result())
            self._channel.send(_TAG, str(self._now()).encode())
            if told:
                self.ahead_ns = int(told)
                if not self._known.done():
                    self._known.set_result(None)
