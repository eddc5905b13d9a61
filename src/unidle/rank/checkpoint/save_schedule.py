"""When the next checkpoint goes to storage: after a number of steps, or at the interval of the cost model."""

from __future__ import annotations

import os
import time

from unidle.checkpoint.interval import Costs, best_interval
from unidle.errors import BadInput

_MTTF_S = 24 * 3600.0
_RESTART_S = 60.0
_LEAST_S = 30.0
_WRITE_SHARE = 2.0  # storage is at work at most half of the time


class SaveSchedule:
    """Counts steps, or seconds of a monotonic clock (rank 0's).

    ``every`` is a number of steps or ``"auto"``. For the latter the job's mean time to failure comes from
    ``UNIDLE_MTTF_S`` and the time of a restart from ``UNIDLE_RESTART_S`` (seconds, as observed by who starts the job).
    """

    def __init__(self, every: int | str) -> None:
        if every != "auto" and not (isinstance(every, int) and not isinstance(every, bool) and every >= 1):
            raise BadInput(
                "must be a number of steps or 'auto'", field="every", value=every, remedy="for instance 100"
            )
        self._every = None if every == "auto" else int(every)
        self._last_s = time.monotonic()
        self._last_step = 0
        self._ordered_s = 0.0
        self.stall_s, self.write_s = 0.05, 0.0

    @property
    def counts_steps(self) -> bool:
        """Whether each rank can compute by itself when a checkpoint is due."""
        return self._every is not None

    def from_step(self, step: int) -> None:
        """Training resumes from here."""
        self._last_step = step

    @property
    def interval_s(self) -> float:
        """The interval in seconds that the cost model chooses now."""
        least = max(_LEAST_S, _WRITE_SHARE * self.write_s)
        mttf_s, restart_s = _seconds("UNIDLE_MTTF_S", _MTTF_S), _seconds("UNIDLE_RESTART_S", _RESTART_S)
        return best_interval(Costs(self.stall_s, mttf_s, restart_s, least_s=least))

    def is_due(self, step: int) -> bool:
        if self._every is not None:
            return step // self._every > self._last_step // self._every
        return time.monotonic() >= self._last_s + self.interval_s

    def ordered(self, step: int, stall_s: float) -> None:
        self._last_step, self._last_s = step, time.monotonic()
        self._ordered_s = self._last_s
        self.stall_s += 0.3 * (stall_s - self.stall_s)

    def stored(self) -> None:
        self.write_s = time.monotonic() - self._ordered_s


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise BadInput("must be a number of seconds above 0", field=name, value=text, remedy="unset it")
    return value
