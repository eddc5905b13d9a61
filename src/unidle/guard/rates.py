"""Rates of rare events with exact confidence intervals. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

LEVEL: Final = 0.95
_TINY: Final = 1e-300
_TURNS: Final = 200


@dataclass(frozen=True, slots=True)
class EventRate:
    """``events`` in ``exposure`` (any unit): per unit, with the bounds of a 95 % interval (exact, by Garwood 1936).

    The values are None where there was no exposure.
    """

    events: int
    exposure: float

    @property
    def value(self) -> float | None:
        return self.events / self.exposure if self.exposure > 0 else None

    def per(self, units: float) -> EventRate:
        """The same rate per so many units."""
        return EventRate(self.events, self.exposure / units)

    @property
    def low(self) -> float | None:
        return limits(self.events)[0] / self.exposure if self.exposure > 0 else None

    @property
    def high(self) -> float | None:
        return limits(self.events)[1] / self.exposure if self.exposure > 0 else None


def limits(events: int, level: float = LEVEL) -> tuple[float, float]:
    """Bounds of the mean of a Poisson number that came out as ``events``; the lower is 0 for none."""
    tail = (1 - level) / 2
    low = _quantile(events, tail) if events else 0.0
    return low, _quantile(events + 1, 1 - tail)


def at_least(events: int, mean: float) -> float:
    """The chance of ``events`` or more where ``mean`` are expected."""
    if events <= 0:
        return 1.0
    return _lower_gamma(events, mean) if mean > 0 else 0.0


def _quantile(shape: int, chance: float) -> float:
    """Where the distribution function of the gamma distribution with this shape and scale 1 is ``chance``."""
    low, high = 0.0, shape + 10.0
    while _lower_gamma(shape, high) < chance:
        high *= 2
    for _ in range(_TURNS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _lower_gamma(shape, middle) < chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _lower_gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(a, x): a power series left of its knee, else a continued fraction."""
    if x <= 0:
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        k = a
        while term > total * 1e-17:
            k += 1
            term *= x / k
            total += term
        return min(front * total, 1.0)
    return max(1 - front * _fraction(a, x), 0.0)


def _fraction(a: float, x: float) -> float:
    """The continued fraction of Gamma(a, x) * exp(x) / x^a, from its front (Lentz's method)."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for k in range(1, 100_000):
        factor = -k * (k - a)
        b += 2
        d = 1 / ((factor * d + b) or _TINY)
        c = (b + factor / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value
