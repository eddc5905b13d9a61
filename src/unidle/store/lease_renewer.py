"""The thread that keeps a writer's lease, on a connection of its own: a long turn of the writer does not cost it the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from unidle.clock import boottime_ns
from unidle.errors import LeaseLost, StoreError
from unidle.store.lease_time import RENEW_EVERY_NS, LeaseTime

_AGAIN_S: Final = 0.1  # after a renewal that failed
_JOIN_S: Final = 5.0


class RenewingStore(Protocol):
    """The part of a store that the thread uses."""

    def extend(self) -> None:
        """Extend the writer's lease once. Errors: LeaseLost, else StoreError."""

    def close(self) -> None: ...


class LeaseRenewer:
    """Renews from :meth:`start` to :meth:`stop`, each second in which the writer itself did not.

    ``another`` opens the connection. It is called in the thread, and not before it is needed: a short command does not pay for it.
    """

    def __init__(self, time: LeaseTime, another: Callable[[], RenewingStore]) -> None:
        self._time, self._another = time, another
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unidle-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No renewal begins after this."""
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(
                _JOIN_S
            )  # one that hangs is left behind: its renewal does no harm after a release

    def _run(self) -> None:
        store: RenewingStore | None = None
        try:
            while not self._end.wait(max(RENEW_EVERY_NS - self._time.age_ns, 0) / 1e9):
                if self._time.age_ns < RENEW_EVERY_NS:
                    continue  # the writer wrote meanwhile
                try:
                    store = store or self._another()
                    since_ns = boottime_ns()
                    store.extend()
                    self._time.extended(since_ns)
                except LeaseLost:
                    return  # the writer learns of it with its next transaction
                except (StoreError, OSError):
                    if store is not None:
                        store.close()
                        store = None
                    self._end.wait(_AGAIN_S)
        finally:
            if store is not None:
                store.close()
