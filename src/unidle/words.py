"""Counts, amounts and times in the sentences that a user reads: ``1 job is``, ``0.42 device-hours``, ``3 min 07 s``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

US_PER_HOUR: Final = 3_600_000_000
_LEAST_HOURS_US: Final = US_PER_HOUR // 10  # what is less is shown in seconds
_HISSES: Final = ("s", "x", "z", "ch", "sh")


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``, ``0 more entries``: the last word of ``noun``, given in the singular, is counted."""
    return f"{number} {plural(number, noun)}"


def plural(number: float, noun: str) -> str:
    """The noun alone, for numbers that are written in another way: ``rank`` of 1, else ``ranks``."""
    if number == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(_HISSES) else f"{noun}s"


def are(number: int) -> str:
    """``is`` of 1, else ``are``."""
    return "is" if number == 1 else "are"


def does(number: int, verb: str) -> str:
    """``stays`` of 1, else ``stay``."""
    return f"{verb}s" if number == 1 else verb


def were(number: int) -> str:
    """``was`` of 1, else ``were``."""
    return "was" if number == 1 else "were"


def listed(names: Sequence[str]) -> str:
    """``a``; ``a and b``; ``a, b and c``, in the order that they have."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


_MEMORY_UNITS: Final = (
    ("TB", 10**12),
    ("TiB", 2**40),
    ("GB", 10**9),
    ("GiB", 2**30),
    ("MB", 10**6),
    ("MiB", 2**20),
    ("kB", 1000),
)


def amount_of_memory(size: int, like: str = "") -> str:
    """Bytes as a job file has them: ``64MB``, ``2GiB``; three figures where no unit divides them.

    ``like``: another amount of the same sentence; after ``2GiB`` the answer is in binary units, too.
    """
    if like.endswith("iB"):
        unit, each = next(((u, e) for u, e in _MEMORY_UNITS if size >= e and len(u) == 3), ("B", 1))
        return f"{size / each:.3g}{unit}" if size < 999.5 * each else f"{size / each:.0f}{unit}"
    for unit, each in _MEMORY_UNITS:
        if size and size % each == 0 and size // each < (1000 if len(unit) == 2 else 10_000):
            return f"{size // each}{unit}"
    unit, each = next(((u, e) for u, e in _MEMORY_UNITS if size >= e and len(u) == 2), ("B", 1))
    return f"{size / each:.3g}{unit}" if size < 999.5 * each else f"{size / each:.0f}{unit}"


def device_time(us: float) -> str:
    """Devices times time, given in device-microseconds: ``7.2 device-s``, ``0.42 device-hours``."""
    if us >= _LEAST_HOURS_US:
        hours = us / US_PER_HOUR
        text = f"{hours:.3g}" if hours < 999.5 else f"{hours:.0f}"
        return f"{text} {plural(float(text), 'device-hour')}"
    seconds = us / 1e6
    return "under 0.001 device-s" if 0 < seconds < 0.001 else f"{seconds:.3g} device-s"


def figures(amount: float) -> str:
    """Four figures at most, without powers of ten: what is small has its millionths."""
    text = f"{amount:.4g}"
    return f"{amount:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def age(ns: int) -> str:
    """A duration in words of at most two units."""
    seconds = max(ns, 0) / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def clock_time(ns: int) -> str:
    """A moment in local time."""
    import datetime as dt

    moment = dt.datetime.fromtimestamp(ns / 1e9, tz=dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def length(ns: int) -> str:
    """A duration in a unit that fits: three figures below a minute, from a minute on two units."""
    if ns >= 59_950_000_000:
        return age(ns)
    unit, name = next(
        (one for one in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")) if ns >= one[0]), (1, "ns")
    )
    return f"{float(f'{ns / unit:.3g}'):g} {name}"  # never as a power of ten
