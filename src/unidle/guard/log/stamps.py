"""Times of log lines in nanoseconds. Pure: nothing here reads a clock."""

from __future__ import annotations

from calendar import monthrange, timegm
from typing import Final

MONTHS: Final = {
    name: k + 1
    for k, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    )
}
_S: Final = 1_000_000_000


def seconds_ns(text: str) -> int:
    """``219.471050`` seconds in nanoseconds, without a float between."""
    whole, _, part = text.partition(".")
    return int(whole) * _S + int((part + "000000000")[:9])


def wall_ns(year: int, month: int, day: int, clock: str, fraction: str = "", zone: str = "") -> int | None:
    """A date and ``HH:MM:SS`` in nanoseconds since 1970; None where there is no such date.

    ``zone``: ``Z``, ``+05:30``, ``-0800``; without one the clock is taken as it stands.
    """
    hour, minute, second = (int(part) for part in clock.split(":"))
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and hour < 24 and minute < 60 and second < 61):
        return None
    if not 1 <= day <= monthrange(year, month)[1]:
        return None
    seconds = timegm((year, month, day, hour, minute, second, 0, 0, 0))
    return (seconds - _offset_s(zone)) * _S + int((fraction + "000000000")[:9] or 0)


def _offset_s(zone: str) -> int:
    """Seconds east of Greenwich."""
    digits = zone[1:].replace(":", "")
    if len(digits) != 4 or zone[0] not in "+-":
        return 0
    ahead = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return ahead if zone[0] == "+" else -ahead
