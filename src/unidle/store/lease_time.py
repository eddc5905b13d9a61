"""How long a writer may act without hearing from its store, by its own clock."""

from __future__ import annotations

from typing import Final

from unidle.clock import boottime_ns

LEASE_TTL_NS: Final = 4_000_000_000
"""Another writer may take the store so long after the last renewal."""
ACT_NS: Final = LEASE_TTL_NS // 2
"""The writer itself acts for so long after it: the other half is for clocks, delays, and what was sent before."""
RENEW_EVERY_NS: Final = 1_000_000_000


class LeaseTime:
    """When the lease was extended last. Any thread may use it.

    Times are of CLOCK_BOOTTIME, which also counts while the machine is suspended.
    """

    def __init__(self) -> None:
        self._extended_ns: int | None = None

    def extended(self, since_ns: int) -> None:
        """The lease was taken or extended by a transaction that began at ``since_ns``."""
        before = self._extended_ns
        if before is None or since_ns > before:
            self._extended_ns = since_ns

    def ended(self) -> None:
        """There is no lease any more."""
        self._extended_ns = None

    @property
    def is_held(self) -> bool:
        """Whether there is a lease, however old."""
        return self._extended_ns is not None

    @property
    def age_ns(self) -> int:
        """Since the last extension; more than any limit without a lease."""
        before = self._extended_ns
        return 1 << 62 if before is None else boottime_ns() - before

    @property
    def is_fresh(self) -> bool:
        """Whether the writer may act on it."""
        return self.age_ns < ACT_NS
