"""Work on a database whose connection may be lost: done again on another connection while the writer's lease lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from unidle.errors import ConnectionLost
from unidle.store.database import Database

LEASE_TTL_NS: Final = 15_000_000_000
_RECONNECT_S: Final = 0.1  # between two tries
_T = TypeVar("_T")


class Steady:
    """Connects again for a writer that holds a lease; without one a lost connection is an error at once."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.renewed_s: float | None = None
        """When the lease was extended last, on the monotonic clock; None without a lease."""

    def extended(self) -> None:
        """The lease was taken or extended now."""
        self.renewed_s = time.monotonic()

    def ended(self) -> None:
        """There is no lease any more."""
        self.renewed_s = None

    def run(self, work: Callable[[], _T]) -> _T:
        """Do it, and again on another connection where one is lost while the lease lasts.

        Errors: :class:`ConnectionLost` after the lease, or at once without one.
        """
        while True:
            try:
                return work()
            except ConnectionLost as error:
                if self.renewed_s is None:
                    raise
                self._reconnect(error, self.renewed_s + LEASE_TTL_NS / 1e9)

    def _reconnect(self, error: ConnectionLost, until_s: float) -> None:
        while True:
            if time.monotonic() >= until_s:
                raise ConnectionLost(
                    f"{error.problem}; it could not be restored before the lease ended",
                    field=self._db.url, remedy="start the command again when the database answers",
                ) from error  # fmt: skip
            try:
                self._db.reconnect()
                return
            except ConnectionLost as again:
                error = again
                time.sleep(_RECONNECT_S)
