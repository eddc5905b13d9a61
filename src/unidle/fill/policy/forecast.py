"""How long a wait will be: from the last waits at the same position of the step, less a guard band learned from jitter.

Only waits that end before their forecast cost anything: a piece is given up then. The guard band of a device grows after such a
wait and shrinks after others, so that their share approaches the quantile (adaptive conformal inference, Gibbs and Candes 2021).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

KEPT: Final = 20
LEAST_NS: Final = 15_000_000
SHORT_HOLD_NS: Final = 2_000_000
STEP: Final = 0.5  # of a device's guard band, in mean deviations, for each wait that ends early


@dataclass(frozen=True, slots=True)
class ForecastRules:
    """``quantile``: of the last waits. ``least_ns``: shorter waits are not forecast. ``guarded``: with a guard band.

    ``learned``: from what was observed; else the first lengths stay, as in a profile made before the run.
    """

    quantile: float = 0.1
    least_ns: int = LEAST_NS
    guarded: bool = True
    learned: bool = True


def quantile_for(hold_ns: int) -> float:
    """By how long a wait that ends early can hold training up: a piece that runs to its end, or the time in which it gives way.

    Up to 2 ms the median of the last waits, else their 10 % quantile. Both were measured with pieces that run to their end.
    """
    return 0.5 if hold_ns <= SHORT_HOLD_NS else 0.1


@dataclass(slots=True)
class ForecastError:
    """Of all waits that were forecast: how many, how many ended early, and sums of nanoseconds."""

    waits: int = 0
    early: int = 0
    early_ns: int = 0
    unused_ns: int = 0

    def enter(self, forecast_ns: int, length_ns: int) -> None:
        """A wait that was forecast, and how long it was."""
        self.waits += 1
        if length_ns < forecast_ns:
            self.early += 1
            self.early_ns += forecast_ns - length_ns
        else:
            self.unused_ns += length_ns - forecast_ns

    @property
    def mean_ns(self) -> float:
        """The mean absolute error."""
        return (self.early_ns + self.unused_ns) / self.waits if self.waits else 0.0


@dataclass(slots=True)
class _Position:
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    offsets: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    forecast_ns: int | None = None


class WaitForecast:
    """Waits by device and position in the step. Times are nanoseconds; offsets count from the begin of the step."""

    def __init__(self, rules: ForecastRules) -> None:
        self._rules = rules
        self._positions: dict[tuple[int, Hashable], _Position] = {}
        self._guards: dict[int, float] = {}
        self.error = ForecastError()

    def seed(self, device: int, position: Hashable, offset_ns: int, length_ns: int) -> None:
        """What is known before anything was observed: from a planned schedule, or a profile."""
        at = self._positions.setdefault((device, position), _Position())
        at.lengths.append(length_ns)
        at.offsets.append(offset_ns)

    def observe(self, device: int, position: Hashable, offset_ns: int, length_ns: int) -> None:
        """A wait that ended by itself."""
        at = self._positions.setdefault((device, position), _Position())
        if at.forecast_ns is None:
            at.forecast_ns = self.length_ns(device, position)
        if at.forecast_ns:
            self.error.enter(at.forecast_ns, length_ns)
            if self._rules.guarded:
                self._learn(device, at, early=length_ns < at.forecast_ns)
        at.forecast_ns = None
        if self._rules.learned:
            at.lengths.append(length_ns)
            at.offsets.append(offset_ns)

    def length_ns(self, device: int, position: Hashable) -> int:
        """The forecast; 0 for a wait that is not forecast."""
        at = self._positions.get((device, position))
        if at is None or not at.lengths:
            return 0
        ranked = sorted(at.lengths)
        found = ranked[int(self._rules.quantile * (len(ranked) - 1))]
        if self._rules.guarded:
            found -= int(self._guards.get(device, 0.0))
        found = found if found >= self._rules.least_ns else 0
        at.forecast_ns = found
        return found

    def offset_ns(self, device: int, position: Hashable) -> int:
        """When the wait begins in the step: the median of the last ones."""
        offsets = sorted(self._positions[device, position].offsets)
        return offsets[len(offsets) // 2]

    def guard_ns(self, device: int) -> int:
        """The guard band of a device."""
        return int(self._guards.get(device, 0.0))

    def _learn(self, device: int, at: _Position, *, early: bool) -> None:
        middle = sorted(at.lengths)[len(at.lengths) // 2]
        deviation = sum(abs(length - middle) for length in at.lengths) / len(at.lengths)
        move = STEP * deviation * (early - self._rules.quantile)
        self._guards[device] = max(self._guards.get(device, 0.0) + move, 0.0)
