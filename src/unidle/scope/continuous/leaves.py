"""From where a rank's time went to leaves of the ledger: whole nanoseconds of a window. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unidle.ledger.profiled_causes import CARVED, apportion

_SURE: Final[Mapping[str, str]] = {"data": "data_stall", "checkpoint_io": "checkpoint"}
_HOST: Final = ("python", "lock", "cpu_contention", "other")
"""What a thread does while the device may have nothing to do: a host gap only where it is known that it has not."""


def leaves_of(
    budget: Mapping[str, float],
    window_ns: int,
    *,
    late_share: float = 0.0,
    device_idle_share: float | None = None,
) -> dict[str, int]:
    """How much of a window went to each leaf of ``unidle.ledger.profiled_causes.CARVED``; the rest is not known to be lost.

    ``budget``: percent of the training thread's time by category. ``late_share``: part of the window that the rank
    waited in collectives for one that was late. ``device_idle_share``: part of it in which its device had nothing to
    do, from a source of device times; without it no time is assigned to the host, since the device may have had work
    queued.
    """
    shares = {category: max(float(pct), 0.0) / 100 for category, pct in budget.items()}
    collective = shares.get("collective", 0.0)
    late = min(max(late_share, 0.0), collective)
    found = dict.fromkeys(CARVED, 0.0)
    for category, leaf in _SURE.items():
        found[leaf] = shares.get(category, 0.0)
    found["straggler_wait"], found["exposed_local"] = late, collective - late
    if device_idle_share is not None:
        idle = max(device_idle_share - sum(found.values()), 0.0)
        found["host_gap"] = min(idle, sum(shares.get(category, 0.0) for category in _HOST))
    return _whole(found, window_ns)


def _whole(shares: Mapping[str, float], window_ns: int) -> dict[str, int]:
    """Shares of a window in whole nanoseconds: none is off by more than one, and together they fit into it."""
    parts_per_billion = [round(shares[leaf] * 10**9) for leaf in shares]
    rest = max(10**9 - sum(parts_per_billion), 0)
    parts = apportion(window_ns, [*parts_per_billion, rest])
    return {leaf: ns for leaf, ns in zip(shares, parts, strict=False) if ns}
