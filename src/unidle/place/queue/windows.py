"""Weekly time windows. A time zone is data here, so that a policy reads no clock and no zone files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from unidle.fleet.queues import DAY_MINUTES, WEEK_MINUTES, Weekly, Zone

MINUTE_NS: Final = 60_000_000_000

_EPOCH_MINUTES: Final = 3 * DAY_MINUTES  # the epoch was a Thursday, and weeks begin on Monday


def minute_of_week(now_ns: int, zone: Zone) -> int:
    """Local minutes since Monday 00:00."""
    return ((now_ns + zone.offset_ns(now_ns)) // MINUTE_NS + _EPOCH_MINUTES) % WEEK_MINUTES


def next_edge_ns(now_ns: int, zone: Zone, windows: Iterable[Weekly]) -> int | None:
    """The next time (UTC) at which one of the windows may open or close; None without windows.

    Where the zone's offset changes before, it is that time: one has to look again then.
    """
    edges = {edge for window in windows for edge in window.edges()}
    if not edges:
        return None
    minute = minute_of_week(now_ns, zone)
    wait = min((edge - minute - 1) % WEEK_MINUTES + 1 for edge in edges)
    into_minute = (now_ns + zone.offset_ns(now_ns)) % MINUTE_NS
    at_ns = now_ns - into_minute + wait * MINUTE_NS
    change_ns = zone.next_change_ns(now_ns)
    return at_ns if change_ns is None else min(at_ns, change_ns)
