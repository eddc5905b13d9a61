"""How much longer a step of training takes with something next to it: from pairs of blocks of steps, one with it and one without. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.predict.regression import t_quantile

LEAST_PAIRS: Final = 6
HALF_WIDTH_PCT: Final = 1.0


class BlockPair(NamedTuple):
    """Mean nanoseconds of a step with fillers, and without; ``first``: whether the block with fillers was the first."""

    filled_ns: float
    unfilled_ns: float
    first: bool


@dataclass(frozen=True, slots=True)
class SlowDown:
    """How much longer a step takes with fillers, in percent, with its 95 % interval. ``known``: whether it is narrow enough."""

    pairs: int
    mean_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None

    @property
    def half_width_pct(self) -> float | None:
        if self.low_pct is None or self.high_pct is None:
            return None
        return (self.high_pct - self.low_pct) / 2

    @property
    def known(self) -> bool:
        width = self.half_width_pct
        return self.pairs >= LEAST_PAIRS and width is not None and width <= HALF_WIDTH_PCT


def slow_down(pairs: Sequence[BlockPair]) -> SlowDown:
    """The mean of the pairs' ratios (geometric), with Student's interval."""
    count = len(pairs)
    if count < 2:
        return SlowDown(count)
    logs = [math.log(pair.filled_ns / pair.unfilled_ns) for pair in pairs]
    mean = sum(logs) / count
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (count - 1))
    half = t_quantile(0.975, count - 1) * deviation / math.sqrt(count)
    low, middle, high = (100 * math.expm1(each) for each in (mean - half, mean, mean + half))
    return SlowDown(count, middle, low, high)
