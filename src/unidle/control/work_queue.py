"""The jobs that one turn of the loop handles: those with a new event, and those whose timer has expired."""

from __future__ import annotations

import heapq
from typing import Final

_NEVER_NS: Final = 1 << 63


class WorkQueue:
    """Jobs in the order in which they were touched, so that the same run gives the same log."""

    def __init__(self) -> None:
        self._touched: dict[str, None] = {}
        self._timers: list[tuple[int, str, bool]] = []  # and whether it is of a filler
        self._again_ns = _NEVER_NS  # when the policy asked to be called again

    def touch(self, job: str) -> None:
        """Something happened to the job."""
        self._touched[job] = None

    def take(self) -> list[str]:
        """The jobs that were touched since the last call."""
        touched, self._touched = self._touched, {}
        return list(touched)

    @property
    def waits(self) -> bool:
        """Whether a job was touched."""
        return bool(self._touched)

    def at(self, time_ns: int, job: str, *, filler: bool = False) -> None:
        """Look at the job at this time."""
        heapq.heappush(self._timers, (time_ns, job, filler))

    def call_again(self, time_ns: int) -> None:
        """The policy asked to be called at this time; an earlier one that it asked for stands."""
        if time_ns < self._again_ns:
            self._again_ns = time_ns
            heapq.heappush(self._timers, (time_ns, "", False))

    @property
    def calls_again(self) -> bool:
        """Whether the policy asked to be called again at a time to come."""
        return any(not job for _, job, _ in self._timers)

    def due(self, now_ns: int) -> set[bool]:
        """Touch the jobs whose time has come. Has False if any time has, and True if one of a filler has."""
        came = set[bool]()
        while self._timers and self._timers[0][0] <= now_ns:
            at_ns, job, filler = heapq.heappop(self._timers)
            if job:
                self._touched[job] = None
            elif at_ns == self._again_ns:
                self._again_ns = _NEVER_NS
            came.add(filler)
        return came

    @property
    def next_ns(self) -> int | None:
        """The first time that has not come yet."""
        return self._timers[0][0] if self._timers else None
