"""What is left of a run, and whether a better plan is worth its restart. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from unidle.span.replan.observed import Step, measured_ns

GAIN: Final = 1.05  # a plan that is not so much faster is not worth a restart


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is left of a run: its steps, what one took that was measured, and what a restart takes."""

    steps: int
    step_ns: int
    restart_ns: int

    @classmethod
    def after(cls, recent: Iterable[Step], steps: int, restart_ns: int) -> Ahead:
        """The same after these steps."""
        return cls(steps, measured_ns(recent), restart_ns)

    def is_better(self, before_ns: int, after_ns: int) -> bool:
        """Faster by 5 %: of the modelled step, and of the measured one, which may have other things to wait for."""
        return before_ns - after_ns > (1 - 1 / GAIN) * max(before_ns, self.step_ns)

    def is_worth(self, before_ns: int, after_ns: int) -> bool:
        """Better, and the steps that are left win more time than a restart takes."""
        return self.is_better(before_ns, after_ns) and (before_ns - after_ns) * self.steps > self.restart_ns
