"""Whether training is slower with fillers: pairs of blocks of steps in random order, one with and one without. Pure.

The first step of a block is dropped, because it began under the block before. Pairs are added until the interval is narrow enough.
"""

from __future__ import annotations

import random
from typing import Final

from unidle.predict.block_pairs import BlockPair, slow_down

BLOCK_STEPS: Final = 5


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
