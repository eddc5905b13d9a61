"""An iteration whose operations and transfers do not last as planned: the fixed order, and one that follows what is ready.

Each operation and each transfer (wire and latency) is multiplied by a factor of its own: log-normal with mean 1 and the
given coefficient of variation, rounded to whole nanoseconds. Both ways meet the same factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from unidle.errors import BadInput
from unidle.span.model.setting import Setting
from unidle.span.simulate.dynamic import Luck, Wires, ended_ns, online
from unidle.span.simulate.engine import IterationRun
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.program import Program
from unidle.span.simulate.routes import routes_of, times_of
from unidle.span.simulate.timeline import compute_rows

UNITS_MOST: Final = 50_000  # microbatches x chunks x devices of all pipelines
Steps = list[tuple[str, int]]
Floats = npt.NDArray[np.float64]


def luck(
    setting: Setting, program: Program, jitter: float, chance: np.random.Generator, sends: float | None = None
) -> Luck:
    """One try; ``jitter``: the coefficient of variation, 0 for everything as planned; ``sends``: another one of transfers."""
    times, stages, units = times_of(setting, program.chunks), len(setting.stages), program.units
    devices = setting.devices
    chunk = np.arange(units) // setting.microbatches
    planned = {"F": times.forward, "B": times.backward, "W": times.weight, "R": times.again}
    lasts = {
        op: np.rint(np.tile(table[:, chunk], (setting.pipelines, 1)) * _factors(jitter, (devices, units), chance))
        for op, table in planned.items()
    }  # fmt: skip
    reduces = np.array([setting.reduce_ns(s) for s in range(stages)])
    return Luck(
        {op: table.astype(np.int64).tolist() for op, table in lasts.items()},
        _factors(jitter if sends is None else sends, (devices, 2 * units), chance).tolist(),
        np.rint(reduces * _factors(jitter, (stages,), chance)).astype(np.int64).tolist(),
    )


def _factors(jitter: float, shape: tuple[int, ...], chance: np.random.Generator) -> Floats:
    spread = math.sqrt(math.log1p(jitter**2))
    found: Floats = np.exp(chance.standard_normal(shape) * spread - spread**2 / 2)
    return found


def steps_of(setting: Setting, program: Program, run: IterationRun) -> list[Steps]:
    """What each device does in order: operations and units, gradients of weights where the plan has them."""
    found = list[Steps]()
    for pipeline in range(setting.pipelines):
        seen = pipeline % run.pipelines
        for stage in range(len(setting.stages)):
            rows = compute_rows(setting, program, run, pipeline, seen, stage)
            found.append([(row.op, row.chunk * setting.microbatches + row.microbatch) for row in rows])
    return found


def fixed_ns(setting: Setting, program: Program, steps: list[Steps], given: Luck) -> int:
    """The iteration where every device does its steps in their order, whatever comes sooner."""
    wires = Wires(setting, program, routes_of(setting, program), given, planned=True)
    stages, units = len(setting.stages), program.units
    free, at = [0] * setting.devices, [0] * setting.devices
    ready: list[dict[int, int]] = [{} for _ in range(setting.devices)]
    for first in range(0, setting.devices, stages):
        ready[first] = dict.fromkeys(range(setting.microbatches), 0)
    todo = list(range(setting.devices))
    while todo:
        device = todo.pop()
        while at[device] < len(steps[device]):
            op, unit = steps[device][at[device]]
            code = unit if op == "F" else units + unit
            begin = free[device]
            if op in "FB" or (op == "R" and not program.early):
                if code not in ready[device]:
                    break
                begin = max(begin, ready[device][code])
            free[device] = begin + given.compute[op][device][unit]
            at[device] += 1
            if op == "F" or op == ("W" if program.joined else "B"):
                for there, what, when in wires.leave(device, code, free[device]):
                    ready[there][what] = when
                    todo.append(there)
    return ended_ns(setting, free, given)


@dataclass(frozen=True, slots=True)
class Spread:
    """Iterations of several tries, in nanoseconds."""

    mean_ns: int
    p50_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True)
class Weathered:
    """``planned_ns``: what the order took where it was made; ``online``: None for several chunks."""

    planned_ns: int
    fixed: Spread
    online: Spread | None


def weathered(
    made: Simulation, setting: Setting, jitter: float, tries: int, chance: np.random.Generator
) -> Weathered:
    """A simulated schedule in a setting that may have changed since it was made, as often as ``tries``.

    ``jitter``: the coefficient of variation of everything. Errors: :class:`unidle.errors.BadInput` where it is too large.
    """
    program = made.program
    size = setting.devices * program.units
    if size > UNITS_MOST:
        raise BadInput(
            f"{size:,} microbatches x devices of all pipelines are more than the {UNITS_MOST:,} that are tried",
            field="pipelines", value=setting.pipelines, remedy="give a file with fewer pipelines or microbatches",
        )  # fmt: skip
    steps = steps_of(made.setting, program, made.run)
    fixed, found = list[int](), list[int]()
    for _ in range(tries):
        given = luck(setting, program, jitter, chance)
        fixed.append(fixed_ns(setting, program, steps, given))
        if program.chunks == 1:
            found.append(online(setting, program, made.result.peak_memory_by_stage, given).iteration_ns)
    return Weathered(made.result.iteration_ns, _spread(fixed), _spread(found) if found else None)


def _spread(found: list[int]) -> Spread:
    middle, high = (int(np.quantile(found, part, method="higher")) for part in (0.5, 0.99))
    return Spread(round(sum(found) / len(found)), middle, high)
