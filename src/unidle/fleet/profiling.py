"""Policy of a fleet for the continuous profiling of running jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class ProfilePolicy:
    """Running ranks are sampled for ``look_ns`` every ``every_ns``, ``hz`` times per second and thread.

    Sample periods become rarer if they cost more than ``most_ppm`` of one core over time. Profiles are kept for
    ``keep_ns``, in at most ``most_bytes`` of all jobs and a quarter of that of one.
    """

    on: bool = False
    hz: int = 99
    look_ns: int = 2_000_000_000
    every_ns: int = 60_000_000_000
    keep_ns: int = 168 * HOUR_NS
    most_bytes: int = 256 << 20
    most_ppm: int = 10_000

    @property
    def job_most_bytes(self) -> int:
        return self.most_bytes // 4
