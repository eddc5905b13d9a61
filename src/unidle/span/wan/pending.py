"""What `send` and `recv` return: a future that measures how long its caller waited."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TypeVar

from unidle.span.wan.stats import Stats

T = TypeVar("T")


class Pending(Future[T]):
    """A future that cannot be cancelled, because sent data cannot be withdrawn."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """As of any future; the time in here counts as exposed. Errors: :class:`unidle.span.wan.WanError`."""
        if self.done():
            return super().result(0)
        begun = time.monotonic_ns()
        try:
            return super().result(timeout)
        finally:
            self._stats.exposed_ns += time.monotonic_ns() - begun
