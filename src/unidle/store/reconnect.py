"""Work on a database whose connection may be lost: done again on another connection while the writer may still act."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from unidle.errors import ConnectionLost
from unidle.store.database import Database
from unidle.store.lease_time import LeaseTime

_RECONNECT_S: Final = 0.1  # between two tries
_T = TypeVar("_T")


class Steady:
    """Connects again for a writer that holds a lease; without one a lost connection is an error at once."""

    def __init__(self, database: Database, lease: LeaseTime) -> None:
        self._db, self._lease = database, lease

    def run(self, work: Callable[[], _T]) -> _T:
        """Do it, and again on another connection where one is lost while half of the lease lasts.

        Errors: :class:`ConnectionLost` after that, or at once without a lease.
        """
        while True:
            try:
                return work()
            except ConnectionLost as error:
                if not self._lease.is_held:
                    raise
                self._reconnect(error)

    def _reconnect(self, error: ConnectionLost) -> None:
        while True:
            if not self._lease.is_fresh:
                raise ConnectionLost(
                    f"{error.problem}; it could not be restored before half of the lease was over",
                    field=self._db.url, remedy="start the command again when the database answers",
                ) from error  # fmt: skip
            try:
                self._db.reconnect()
                return
            except ConnectionLost as again:
                error = again
                time.sleep(_RECONNECT_S)
