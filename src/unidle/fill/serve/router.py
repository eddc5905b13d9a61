"""Which route a request takes: the bubbles of training, or dedicated devices. Pure.

A request goes to the bubbles if its prompt and those that wait there would be prefilled within a part of the limit of its time to the first
token, at the rate at which bubbles prefilled before. While no rate is known, one request at a time is sent there to learn it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Route = Literal["bubbles", "dedicated"]
ROUTES: Final[tuple[Route, ...]] = ("bubbles", "dedicated")
_PART: Final = 0.5
_WEIGHT: Final = 0.3


@dataclass(slots=True)
class Router:
    """``slo_s``: limit of the time to the first token. A request that waits in bubbles for ``patience_s`` is sent to dedicated devices."""

    slo_s: float
    _rate: float | None = None  # tokens a second
    _queued: int = 0
    _requests: int = 0
    _since_s: float = 0.0

    @property
    def patience_s(self) -> float:
        return self.slo_s * _PART

    def choose(self, tokens: int, *, bubbles: bool) -> Route:
        """``bubbles``: a filler is connected."""
        if not bubbles:
            return "dedicated"
        if self._rate is None:
            return "dedicated" if self._requests else "bubbles"
        return "bubbles" if (self._queued + tokens) / self._rate <= self.patience_s else "dedicated"

    def sent(self, tokens: int, now_s: float) -> None:
        """A request was sent to the bubbles."""
        if not self._requests:
            self._since_s = now_s
        self._queued += tokens
        self._requests += 1

    def left(self, tokens: int, now_s: float, *, prefilled: bool) -> None:
        """A request left the bubbles: prefilled, or withdrawn. Requests are prefilled one after the other."""
        self._queued -= tokens
        self._requests -= 1
        seconds = max(now_s - self._since_s, 1e-6)
        self._since_s = now_s
        if not prefilled:
            # it took longer than this, and a rate that is too high would send the next ones to the same wait
            self._rate = None if self._rate is None else self._rate * (1 - _WEIGHT)
            return
        rate = tokens / seconds
        self._rate = rate if self._rate is None else (1 - _WEIGHT) * self._rate + _WEIGHT * rate
