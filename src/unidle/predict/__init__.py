"""What will probably be: speed, cost, run time and start of jobs, each with an interval. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted value with bounds: ``value_ns`` in ns; with probability ``level_ppm`` the truth is from ``low_ns`` to ``high_ns``.

    ``samples`` observations of ``by`` are behind it.
    """

    value_ns: int
    low_ns: int
    high_ns: int
    level_ppm: int
    samples: int
    by: str
