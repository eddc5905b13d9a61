"""Whether training is slower with fillers: pairs of blocks of steps in random order, one with and one without. Pure.

The first step of a block is dropped, because it began under the block before. Pairs are added until the interval is narrow enough.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.predict.regression import t_quantile

LEAST_PAIRS: Final = 6
HALF_WIDTH_PCT: Final = 1.0
BLOCK_STEPS: Final = 5


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


class Trial:
    """Decides for each step whether fillers may run in it. ``open``: for the steps from now on."""

    def __init__(self, block_steps: int = BLOCK_STEPS, seed: int = 0) -> None:
        self._steps, self._random = block_steps, random.Random(seed)
        self.pairs: list[BlockPair] = []
        self._filled_first = self.open = self._random.random() < 0.5
        self._lengths: list[float] = []
        self._first: float | None = None
        self._last_ns: int | None = None

    @property
    def over(self) -> bool:
        """The interval is narrow enough."""
        return slow_down(self.pairs).known

    def step(self, end_ns: int) -> BlockPair | None:
        """A step of training ended; the pair that it completed. Follow :attr:`open` after it."""
        if self._last_ns is None:  # of the first one the begin is not known
            self._last_ns = end_ns
            return None
        self._lengths.append(end_ns - self._last_ns)
        self._last_ns = end_ns
        if len(self._lengths) <= self._steps:
            return None
        mean = sum(self._lengths[1:]) / self._steps
        self._lengths = []
        if self._first is None:
            self._first, self.open = mean, not self._filled_first
            return None
        first, self._first = self._first, None
        filled, unfilled = (first, mean) if self._filled_first else (mean, first)
        pair = BlockPair(filled, unfilled, self._filled_first)
        self.pairs.append(pair)
        self._filled_first = self.open = self._random.random() < 0.5
        return pair

    def missed(self) -> None:
        """Steps were not seen, or training did something else: the pair begins again."""
        self._lengths, self._first, self._last_ns = [], None, None
        self.open = self._filled_first
