"""Weekly time windows. A time zone is data here, so that a policy reads no clock and no zone files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from unidle.errors import BadInput
from unidle.fleet.queues import WEEK_MINUTES, Weekly, Zone

MINUTE_NS: Final = 60_000_000_000
DAY_MINUTES: Final = 24 * 60
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_EPOCH_MINUTES: Final = 3 * DAY_MINUTES  # the epoch was a Thursday, and weeks begin on Monday
_TIME: Final = r"([01][0-9]|2[0-4]):([0-5][0-9])"
_REMEDY: Final = "write days, then times where not the whole day: mon-fri 08:00-18:00, or sat,sun"


def weekly(text: str, field: str = "when") -> Weekly:
    """``mon-fri 08:00-18:00`` as spans; a time range may run over midnight. :class:`BadInput` if it is none."""
    found = re.fullmatch(rf"([a-z]{{3}}(?:[-,][a-z]{{3}})*)(?: {_TIME}-{_TIME})?", text.strip().casefold())
    if found is None:
        raise BadInput("not a weekly window", field=field, value=text, remedy=_REMEDY)
    days = _days(found[1], text, field)
    start, end = 0, DAY_MINUTES
    if found[2] is not None:
        start, end = int(found[2]) * 60 + int(found[3]), int(found[4]) * 60 + int(found[5])
    if start >= DAY_MINUTES or end > DAY_MINUTES or start == end:
        remedy = "times go from 00:00 to 24:00, and begin and end differ"
        raise BadInput("not a range of times", field=field, value=text, remedy=remedy)
    length = end - start if end > start else end - start + DAY_MINUTES
    spans: list[tuple[int, int]] = []
    for day in sorted(days):
        begin = day * DAY_MINUTES + start
        spans.append((begin, min(begin + length, WEEK_MINUTES)))
        if begin + length > WEEK_MINUTES:
            spans.append((0, begin + length - WEEK_MINUTES))
    return Weekly(tuple(sorted(spans)))


def _days(words: str, text: str, field: str) -> set[int]:
    days: set[int] = set()
    for part in words.split(","):
        ends = part.split("-")
        unknown = next((word for word in ends if word not in DAYS), None)
        if unknown is not None or len(ends) > 2:
            raise BadInput("not a day of the week", field=field, value=unknown or text, remedy=_REMEDY)
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days |= {(first + k) % 7 for k in range((last - first) % 7 + 1)}
    return days


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
