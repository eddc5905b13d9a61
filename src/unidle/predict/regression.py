"""Least squares with prediction intervals, for a handful of measurements.

For a new observation at ``x`` the interval is ``x b`` plus or minus ``t * s * sqrt(1 + h)``: ``s`` the
residual standard error on ``n - p`` degrees of freedom, ``h = x (X'X)^-1 x'`` the leverage, ``t`` the
quantile of Student's distribution. Source: Montgomery, Peck, Vining, "Introduction to Linear
Regression Analysis", 5th ed., section 3.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """``coefficients`` (p), ``inverse`` of X'X (p x p), residual variance on ``freedom`` degrees."""

    coefficients: Floats
    inverse: Floats
    variance: float
    freedom: int

    def predict(self, x: Floats, level: float) -> tuple[float, float, float]:
        """The mean and the bounds that hold a new observation at ``x`` (p) with probability ``level``."""
        mean = float(x @ self.coefficients)
        leverage = float(x @ self.inverse @ x)
        half = t_quantile(0.5 + level / 2, self.freedom) * math.sqrt(self.variance * (1 + max(leverage, 0.0)))
        return mean, mean - half, mean + half


def least_squares(x: Floats, y: Floats) -> Fit | None:
    """The fit of ``y`` (n) by the columns of ``x`` (n x p).

    None where it has no interval: columns that depend on each other, or no more rows than columns.
    """
    import numpy as np  # not at start-up: the rooms that must start at once import from here

    n, p = x.shape
    if n <= p or int(np.linalg.matrix_rank(x)) < p:
        return None
    coefficients, *_ = np.linalg.lstsq(x, y, rcond=None)
    residuals = y - x @ coefficients
    inverse = np.linalg.inv(x.T @ x)
    variance = float(residuals @ residuals) / (n - p)
    return Fit(np.asarray(coefficients, float), np.asarray(inverse, float), variance, n - p)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """The value below which Student's t with ``freedom`` degrees lies with this probability (0.5 to 1)."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"no such quantile: {probability} of {freedom}")
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        low, high = high, high * 2
    for _ in range(56):  # as many as a float has bits, and some
        middle = (low + high) / 2
        if t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def t_cdf(value: float, freedom: int) -> float:
    """Probability that Student's t with ``freedom`` degrees is at most ``value`` (0 or more)."""
    outside = _beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return 1 - outside / 2


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 + term * d
            c = 1 + term / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return result
