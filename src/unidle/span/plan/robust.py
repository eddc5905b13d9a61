"""A schedule for real links: of programs that are as fast, the one that bears longer ways.

A search takes the least depth that hides the latency of the file, to the nanosecond; on real links and shared machines transfers come
late now and then. Where memory allows it, what is best with twice the latency is taken, if the file's own links make it no slower.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program
from unidle.span.simulate.schedules.base import Schedule, Try

LONGER: Final = 2
MORE_NS: Final = 20_000_000
WORSE: Final = 1.02  # how much slower it may be on the file's own links


def robust(schedule: Schedule, more_ns: int = MORE_NS, worse: float = WORSE) -> Schedule:
    """The same schedule, chosen with room for transfers that come late: by ``more_ns``, and where a step is no more than ``worse`` times as long."""

    def choose(setting: Setting, attempt: Try) -> Program:
        from unidle.span.simulate.iteration import Trials  # it imports the schedules

        first = schedule.choose(setting, attempt)
        if not setting.links:
            return first
        links = tuple(replace(link, latency_ns=LONGER * link.latency_ns + more_ns) for link in setting.links)
        far = replace(setting, links=links)
        second = schedule.choose(far, Trials(far))
        before, after = attempt(first), attempt(second)
        if before is None or after is None or after > worse * before:
            return first
        return replace(second, label=f"{second.label}; for ways twice as long")

    return Schedule(schedule.name, choose, schedule.reconstructed)
