"""How much faster a changed program is, decided after a few pairs of runs or more.

Decisions are made at a few numbers of pairs that are fixed before. At each, the lower bound of the mean of log ratios is that of Student's t.
All decisions on a change together err in at most 2.5 % of the changes whose true speed-up is the bound itself, and far less where nothing
changed: the first race of a change has half of that, the second a quarter, and so on, in equal parts for its looks. Changes may be dropped
early at any time, or wait for others: that cannot keep a wrong one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEAST: Final = 1.03
"""What the lower bound of a speed-up has to be above."""
LOOKS: Final = (3, 5, 8, 12, 20, 32)
"""Numbers of pairs after which a change may be kept."""
_ALL_LOOKS: Final = 0.025
_HOPELESS: Final = 1.5
"""Standard errors below the bound at which a change is dropped. More would hardly find more; fewer drop real gains next to other work."""
_TAIL: Final = 0.005
"""Of the control, and of what is only shown."""


def tail_of(race: int) -> float:
    """The part of the error that one look of a race of a change may have; ``race``: 0 for its first."""
    return _ALL_LOOKS * 0.5 ** (race + 1) / len(LOOKS)


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """The geometric mean of before divided by after, with its interval, in ``pairs`` pairs."""

    ratio: float
    low: float
    high: float
    pairs: int

    def is_real(self, control: SpeedUp) -> bool:
        """Whether it is larger than the difference of equal programs."""
        return self.low > max(LEAST, control.high)


def speed_up(ratios: Sequence[float], tail: float = _TAIL) -> SpeedUp | None:
    """The interval of Student's t of the logarithms, with that error on each side; None for fewer than two ratios."""
    if len(ratios) < 2:
        return None
    logs = [math.log(one) for one in ratios]
    mean = statistics.fmean(logs)
    wide = t_quantile(tail, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return SpeedUp(math.exp(mean), math.exp(mean - wide), math.exp(min(mean + wide, 50)), len(logs))


def is_hopeless(ratios: Sequence[float], spread: float) -> bool:
    """Whether a change is hardly faster than the bound; ``spread``: the standard deviation of log ratios of all pairs so far."""
    if len(ratios) < 2:
        return False
    mean = statistics.fmean(map(math.log, ratios))
    return mean + _HOPELESS * spread / math.sqrt(len(ratios)) < math.log(LEAST)


def pairs_needed(ratios: Sequence[float], spread: float, tail: float) -> int:
    """How many more pairs would keep a change if those to come are as those so far; ``spread`` as in :func:`is_hopeless`. A guess, to plan by."""
    mean = statistics.fmean(map(math.log, ratios))
    for look in LOOKS:
        if look <= len(ratios):
            continue
        noise = spread / math.sqrt(look)
        bound = max(math.log(LEAST), t_quantile(_TAIL, look - 1) * math.sqrt(2) * noise)
        if mean - t_quantile(tail, look - 1) * noise > bound:
            return look - len(ratios)
    return 2 * LOOKS[-1]


def t_quantile(tail: float, freedom: int) -> float:
    """The value that Student's t with ``freedom`` degrees is above with probability ``tail`` (< 0.5), by bisection."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, freedom) > tail else (low, middle)
    return high


def _t_tail(value: float, freedom: int) -> float:
    """The upper tail, by the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(value, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    total = term = cosine if freedom % 2 else 1.0
    for number in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (number - 1) / number
        total += term
    if freedom == 1:
        total = 0.0
    inside = 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
    return (1 - inside) / 2
