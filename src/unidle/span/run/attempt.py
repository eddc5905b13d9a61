"""One attempt of a run: its plan, and what its ranks reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unidle.span.replan.observed import Step
from unidle.span.simulate.uneven import Modelled


@dataclass(slots=True)
class Attempt:
    """One attempt: its plan as it was simulated, and what its ranks reported. ``called``: its devices by their ranks' names."""

    number: int
    simulation: Modelled
    called: dict[str, str]
    devices: tuple[str, ...]
    steps: dict[int, Step] = field(default_factory=dict)
    shifts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    resumed: int = 0
    ready: set[str] = field(default_factory=set)
    stopping: bool = False
    digest: str | None = None
    layers: int | None = None  # of the whole model
    began_ns: int = 0
    start_ns: int = 0  # how long it took until all devices were ready

    def why(self) -> str:
        """The first cause: who found its link dead, rather than who was left by that one."""
        for kind in ("link", "peer"):
            for end in self.ends.values():
                if end.get("why") == kind:
                    return str(end.get("because") or kind)
        return "its ranks ended without a message"
