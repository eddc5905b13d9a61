"""How much a counter of the kernel went up within a window of time, over restarts of who reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MOST_STEPS: Final = 64


@dataclass(frozen=True, slots=True)
class Growth:
    """One counter: ``count`` was read at ``at_ns``; ``steps`` are when it was found higher, and by how much, oldest first."""

    count: int
    at_ns: int
    steps: tuple[tuple[int, int], ...] = ()

    def since(self, from_ns: int) -> int:
        """By how much it was found higher after ``from_ns``."""
        return sum(more for at_ns, more in self.steps if at_ns > from_ns)


def grown(before: Growth | None, count: int, at_ns: int, window_ns: int) -> Growth:
    """What is known of a counter after one more reading; steps older than ``window_ns`` are dropped.

    The first reading, and one that is lower than the last (the driver was loaded again), is a new start. After a gap
    between readings that is longer than the window, only the window's part of what was added counts.
    """
    if before is None:
        return Growth(count, at_ns)
    steps = [step for step in before.steps if step[0] > at_ns - window_ns]
    more, gap_ns = max(count - before.count, 0), at_ns - before.at_ns
    if gap_ns > window_ns:
        more = more * window_ns // gap_ns
    if more:
        steps.append((at_ns, more))
    if len(steps) > _MOST_STEPS:  # of the oldest two the later time stands: too many is never taken for few
        steps[:2] = [(steps[1][0], steps[0][1] + steps[1][1])]
    return Growth(count, at_ns, tuple(steps))
