"""How unsteady a run's transfers and operations are from step to step, and what a plan takes with that. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.replan.observed import Step
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.jitter import fixed_ns, luck, steps_of

SENDS: Final = 0.3  # coefficients of variation that are worth a look
WORKS: Final = 0.15
TRIES: Final = 12
UNITS_MOST: Final = 1_000  # microbatches x chunks x devices, up to which all tries of a plan take under 0.1 s
_STEPS_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Unsteady:
    """Coefficients of variation: of transfers with what they wait for, and of operations. ``late_ns``: what a transfer deviates by."""

    sends: float
    works: float
    late_ns: int

    def __bool__(self) -> bool:
        return self.sends > SENDS or self.works > WORKS

    def __str__(self) -> str:
        told = [("transfers", self.sends, SENDS), ("operations", self.works, WORKS)]
        return ", ".join(f"{what} vary by {100 * found:.0f} %" for what, found, most in told if found > most)


STEADY: Final = Unsteady(0.0, 0.0, 0)


def unsteady(steps: Iterable[Step]) -> Unsteady:
    """The same transfer and the same operation of a plan, over the steps: what the plan itself makes longer is so in each."""
    seen: dict[tuple[str, str, int, int, str], list[int]] = {}
    for step in sorted(steps, key=lambda step: step.number):
        for row in step.rows:
            if row.op in ("F", "B", "W", "R", "send"):
                key = (row.device_or_link, row.op, row.microbatch, row.chunk, row.of)
                seen.setdefault(key, []).append(row.end_ns - row.start_ns)
    known = {key: times for key, times in seen.items() if len(times) >= _STEPS_LEAST}
    sends = [times for key, times in known.items() if key[1] == "send"]
    works = [times for key, times in known.items() if key[1] != "send"]
    late = statistics.fmean(_deviation(times) for times in sends) if sends else 0.0
    return Unsteady(_variation(sends), _variation(works), round(late))


def _variation(groups: Sequence[Sequence[int]]) -> float:
    """Of all groups together, each relative to its own mean."""
    squares = [(_deviation(times) / mean) ** 2 for times in groups if (mean := statistics.fmean(times)) > 0]
    return math.sqrt(statistics.fmean(squares)) if squares else 0.0


def _deviation(times: Sequence[int]) -> float:
    """The standard deviation by differences of neighbours: what became slower once and stays so is no unsteadiness."""
    return math.sqrt(statistics.fmean((b - a) ** 2 for a, b in pairwise(times)) / 2)


def expected_ns(made: Simulation, setting: Setting, weather: Unsteady) -> int | None:
    """The mean iteration of what was planned as ``made``, in ``setting``, over the same tries for all; None where it is too large."""
    program = made.program
    if setting.devices * program.units > UNITS_MOST:
        return None
    steps, chance = steps_of(made.setting, program, made.run), np.random.default_rng(1)
    tries = (luck(setting, program, weather.works, chance, sends=weather.sends) for _ in range(TRIES))
    return round(statistics.fmean(fixed_ns(setting, program, steps, each) for each in tries))
