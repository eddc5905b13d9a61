"""How much faster a changed program is: pairs in turn, and the interval of their ratio."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

LEAST: Final = 1.03
"""What the lower bound of a speed-up has to be above."""
FEWEST_PAIRS: Final = 5
MOST_PAIRS: Final = 30
_ROUNDS: Final = 2000


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """The median of before divided by after, with its 95 % interval, in ``pairs`` pairs."""

    ratio: float
    low: float
    high: float
    pairs: int

    def is_real(self, control: SpeedUp) -> bool:
        """Whether it is larger than the difference of equal programs."""
        return self.low > max(LEAST, control.high)


def speed_up(ratios: Sequence[float]) -> SpeedUp:
    """A bootstrap of the median of logarithms; the seed is fixed."""
    logs = [math.log(one) for one in ratios]
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(logs, k=len(logs))) for _ in range(_ROUNDS))
    low, high = medians[int(_ROUNDS * 0.025)], medians[int(_ROUNDS * 0.975) - 1]
    return SpeedUp(math.exp(statistics.median(logs)), math.exp(low), math.exp(high), len(ratios))


def measured(
    before: Callable[[], float], after: Callable[[], float], end: float, pairs: int = MOST_PAIRS
) -> SpeedUp | None:
    """Pairs AB, BA, AB and so on until ``end`` (of ``time.monotonic``); None if the time is too short for five pairs."""
    ratios: list[float] = []
    longest = 0.0
    while len(ratios) < pairs:
        begin = time.monotonic()
        if begin + longest > end:
            break
        if len(ratios) % 2:
            b, a = after(), before()
        else:
            a, b = before(), after()
        ratios.append(a / b)
        longest = max(longest, time.monotonic() - begin)
    return speed_up(ratios) if len(ratios) >= FEWEST_PAIRS else None
