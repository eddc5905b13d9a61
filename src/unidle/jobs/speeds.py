"""Measured steps, the input of speed predictors. Jobs of the same user and name are one kind of job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

KEPT: Final = 32
"""Attempts of one kind of job that count: the latest, for jobs change."""


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """Measured steps of one attempt on ``devices`` devices of one model.

    ``mean_ns`` is the mean of its ``steps`` steps; ``part_ns`` those of parts of it, of about equal numbers
    of steps (empty where there were too few). ``beside_ns`` is its time before the first and after the last
    step that it reported.
    """

    model: str
    devices: int
    steps: int
    mean_ns: int
    part_ns: tuple[int, ...] = ()
    beside_ns: int = 0


@dataclass(slots=True)
class Known:
    """Of one kind of job: its latest attempts, how many there ever were, and the last steps of those that succeeded."""

    runs: list[SpeedRun] = field(default_factory=list)
    count: int = 0
    last_steps: list[int] = field(default_factory=list)

    def add(self, runs: Iterable[SpeedRun], last_step: int | None) -> None:
        """A job of this kind has ended; ``last_step`` where it succeeded."""
        for run in runs:
            self.runs.append(run)
            self.count += 1
        del self.runs[:-KEPT]
        if last_step is not None:
            self.last_steps.append(last_step)
            del self.last_steps[:-KEPT]

    def steps(self) -> int | None:
        """The number of steps of such a job, if it was the same for all that succeeded."""
        known = set(self.last_steps)
        return known.pop() if len(known) == 1 else None


Speeds = dict[str, dict[str, Known]]  # by user, by name
_NOTHING: Final = Known()


def known_of(speeds: Speeds, user: str, name: str) -> Known:
    """The record of such jobs; read only."""
    return speeds.get(user, {}).get(name, _NOTHING)
