"""Counts, amounts and times in the sentences that a user reads: ``1 job is``, ``0.42 device-hours``, ``3 min 07 s``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

US_NS: Final = 1_000
MS_NS: Final = 1_000_000
S_NS: Final = 1_000_000_000
MIN_NS: Final = 60 * S_NS
HOUR_NS: Final = 60 * MIN_NS
DAY_NS: Final = 24 * HOUR_NS
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
    """A duration in at most two units, rounded down from a minute on: ``59.9 s``, ``3 min 07 s``, ``1 d 4 h``."""
    seconds = max(ns, 0) / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def length(ns: int) -> str:
    """A duration in a unit that fits: three figures below a minute, from a minute on two units as of :func:`age`."""
    if ns >= 59_950_000_000:
        return age(ns)
    unit, name = next((one for one in ((S_NS, "s"), (MS_NS, "ms"), (US_NS, "us")) if ns >= one[0]), (1, "ns"))
    return f"{float(f'{ns / unit:.3g}'):g} {name}"  # never as a power of ten


def duration(ns: int) -> str:
    """A duration in at most two units, rounded: ``450 ms``, ``3.2 s``, ``4 min 05 s``, ``1 h 02 min``, ``3 d 04 h``."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns == 0:
        return "0 s"
    if ns < US_NS:
        return f"{ns} ns"
    for unit_ns, name, whole_from in ((US_NS, "us", 100), (MS_NS, "ms", 100), (S_NS, "s", 600)):
        tenths = (10 * ns + unit_ns // 2) // unit_ns
        if tenths < whole_from:
            return f"{tenths // 10}.{tenths % 10} {name}"
        if name != "s" and (ns + unit_ns // 2) // unit_ns < 1_000:
            return f"{(ns + unit_ns // 2) // unit_ns} {name}"
    return _two_units(ns)


def _two_units(ns: int) -> str:
    steps = ((MIN_NS, "min", S_NS, "s"), (HOUR_NS, "h", MIN_NS, "min"), (DAY_NS, "d", HOUR_NS, "h"))
    text = ""
    for big_ns, big, small_ns, small in steps:
        smalls = (ns + small_ns // 2) // small_ns
        per_big = big_ns // small_ns
        if smalls >= per_big or not text:
            text = f"{smalls // per_big:,} {big} {smalls % per_big:02d} {small}"
        if smalls < (24 if big == "h" else 60) * per_big:
            break
    return text


def wait(ns: int) -> str:
    """A duration in one unit: ``12.3 s``, ``7 min``, ``2.5 h``."""
    if ns < 2 * MIN_NS:
        return f"{ns / S_NS:.3g} s"
    return f"{ns / MIN_NS:.0f} min" if ns < 2 * HOUR_NS else f"{ns / HOUR_NS:.1f} h"


def latency(ns: int) -> str:
    """A duration of seconds at most: ``12.3 ms``, ``0.861 s``."""
    return f"{ns / S_NS:.3g} s" if ns >= 100 * MS_NS else f"{ns / MS_NS:.3g} ms"


def clock_time(ns: int) -> str:
    """A moment in local time."""
    import datetime as dt

    moment = dt.datetime.fromtimestamp(ns / 1e9, tz=dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
