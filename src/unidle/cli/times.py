"""Times on the command line: how long, and when."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import typer

from unidle.errors import BadInput

_FORMS: Final = "seconds, or a time such as 90s, 10m30s or 2h"
_MOST_NS: Final = 2**63


def seconds_of(option: str, text: str, *, least: float = 0, most: float = math.inf) -> float:
    """A duration: ``90`` (seconds), ``2h``, ``10m30s``, from ``least`` to ``most`` seconds. Errors: BadInput."""
    from unidle.files.values import seconds_or_duration_ns

    try:
        seconds = (
            float(text) if text[-1:].isdigit() and text[0] != "-" else seconds_or_duration_ns(text) / 1e9
        )
    except ValueError:
        raise BadInput("is not a time", field=option, value=text, remedy=_FORMS) from None
    if not least <= seconds <= most:
        remedy = f"at least {least:g} s" if most == math.inf else f"{least:g} s to {most:g} s"
        raise BadInput(
            f"is too {'short' if seconds < least else 'long'}", field=option, value=text, remedy=remedy
        )
    return seconds


def duration_option(*names: str, text: str, least: float = 0, most: float = math.inf, **more: Any) -> Any:
    """An option that is a number of seconds to its command, and :func:`seconds_of` to the user."""

    def parse(given: object) -> float:
        return seconds_of(names[0], str(given), least=least, most=most)

    parse.__name__ = "time"
    return typer.Option(*names, metavar="TIME", parser=parse, help=text, **more)


def moment(
    option: str, text: str, base_ns: int, *, ahead: bool = False, plain: Literal["s", "ns", "none"] = "none"
) -> int:
    """A moment in ns: ``2h`` before ``base_ns`` (``ahead``: after it), ``now``, or an ISO time (local where it has no zone).

    ``plain``: what a number without a unit is: seconds like ``90s``, ns since 1970, or nothing. Errors: BadInput.
    """
    import datetime as dt

    from unidle.files.values import duration_ns, seconds_or_duration_ns

    ns = -1
    try:
        if text == "now":
            ns = base_ns
        elif plain == "ns" and text.isascii() and text.isdecimal():
            ns = int(text[:20])
        else:
            length_ns = (seconds_or_duration_ns if plain == "s" else duration_ns)(text)
            ns = base_ns + length_ns if ahead else max(base_ns - length_ns, 0)
    except ValueError:
        try:
            ns = int(dt.datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
        except (ValueError, OverflowError):
            pass
    if 0 <= ns < _MOST_NS:
        return ns
    relative = "2h from now" if ahead else "15m or 1h30m ago"
    number = {"s": ", seconds ago", "ns": ", or nanoseconds since 1970", "none": ""}[plain]
    raise BadInput(
        "is not a time",
        field=option,
        value=text[:40],
        remedy=f"for instance {relative}, 2026-01-31T12:00{number}",
    )
