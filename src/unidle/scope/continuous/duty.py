"""How often to look, so that all looks together stay below a share of one core. Pure: time comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AIM: Final = 0.8  # of the share that is allowed: the next look may cost more than the last one did
HZ_LEAST: Final = 19
_DEAR: Final = 2.0  # looks come so many times less often than they should: sample less


@dataclass(slots=True)
class Duty:
    """Keeps an account of CPU time: looks are paid for by waiting. ``share`` is of one core.

    ``every_s`` and ``hz_wanted`` are the requested rates. Times are of a clock that does not jump, in seconds.
    """

    share: float
    every_s: float
    hz_wanted: int
    hz: int = 0
    _owed_s: float = 0.0
    _at_s: float | None = None
    _last_s: float | None = None

    def __post_init__(self) -> None:
        self.hz = self.hz or self.hz_wanted

    def used(self, now_s: float, cpu_s: float) -> None:
        """So much CPU time was used since the last call."""
        if self._at_s is not None:
            self._owed_s -= max(now_s - self._at_s, 0.0) * self.share * AIM
        self._owed_s = max(self._owed_s, 0.0) + max(cpu_s, 0.0)
        self._at_s = now_s

    def looked(self, now_s: float, cpu_s: float) -> None:
        """A look is over; ``cpu_s`` as in :meth:`used`. What is sampled the next time follows from what it cost."""
        self.used(now_s, cpu_s)
        self._last_s = now_s
        cycle_s = self._owed_s / (self.share * AIM)
        if cycle_s > _DEAR * self.every_s and self.hz > HZ_LEAST:
            self.hz = max(self.hz // 2, min(HZ_LEAST, self.hz_wanted))
        elif cycle_s < self.every_s / 4 and self.hz < self.hz_wanted:
            self.hz = min(self.hz * 2, self.hz_wanted)

    def next_s(self, now_s: float, *, news_s: float | None = None) -> float:
        """When the next look is due. From ``news_s`` on there is something that was never profiled, so that it need not
        wait its turn; the very first look need not be paid for before.
        """
        paid_s = (self._at_s if self._at_s is not None else now_s) + self._owed_s / (self.share * AIM)
        if self._last_s is None:
            return now_s if news_s is None else max(now_s, news_s)
        turn_s = self._last_s + self.every_s
        return max(paid_s, turn_s if news_s is None else min(turn_s, news_s), now_s)
