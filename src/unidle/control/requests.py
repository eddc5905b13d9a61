"""Takes requests from the inbox in bounded portions: running ranks are watched between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from unidle.clock import Clock
from unidle.control.recorder import Recorder
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.store.protocol import Request, Store

INBOX_EVERY_NS: Final = 250_000_000
INBOX_AT_ONCE: Final = 128  # requests in one turn
INBOX_TURN_NS: Final = 30_000_000  # how long they may take of it


class Requests:
    """The inbox of one controller. ``every_ns``: between two looks; None: it is never read."""

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, every_ns: int | None) -> None:
        self._store, self._clock, self._recorder, self._every_ns = store, clock, recorder, every_ns
        self._looked_ns = 0

    @property
    def next_ns(self) -> int | None:
        """When to look again; None: never."""
        return None if self._every_ns is None else self._looked_ns + self._every_ns

    def take(self, carry_out: Callable[[Request], None]) -> None:
        """Carry out what is due. A request that cannot be read is refused in the log: it must not stop each controller."""
        now = self._clock.now_ns()
        if self._every_ns is None or now - self._looked_ns < self._every_ns:
            return
        requests = self._store.requests(INBOX_AT_ONCE)
        self._looked_ns = now if len(requests) < INBOX_AT_ONCE else 0  # else the next turn has more of them
        for request in requests:
            if self._clock.now_ns() - now > INBOX_TURN_NS:
                self._looked_ns = 0
                break
            try:
                carry_out(request)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._refuse(request.id, request.kind, Reason("unreadable", f"cannot be read: {error}"))
            else:
                self._recorder.request_done(request.id)
        for damaged in self._store.damaged_requests():
            because = Reason(
                "damaged", f"request {damaged.id} is damaged in the store: its checksum is wrong"
            )
            self._refuse(damaged.id, damaged.kind, because)

    def _refuse(self, number: int, kind: str, because: Reason) -> None:
        self._recorder.emit(ev.RequestRefused(kind, because))
        self._recorder.request_done(number)
