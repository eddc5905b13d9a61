"""The layout of a plan under the other schedules, at equal memory: what the choice of the schedule is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.errors import BadInput
from unidle.span.plan.offer import setting_of
from unidle.span.plan.search import Plan
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.result import Result
from unidle.span.simulate.schedules import SCHEDULES

SIZE_MOST: Final = 25_000  # microbatches x stages of a cell, up to which all of them take less than a second
_OTHERS: Final = ("gpipe", "1f1b", "interleaved", "zb-h1", "varuna", "atlas", "atlas-keep")


class NotCompared(NamedTuple):
    schedule: str
    because: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan's own result first, then the others' in the order of their time."""

    results: tuple[Result, ...]
    missing: tuple[NotCompared, ...]


def compare(plan: Plan) -> Comparison:
    """The plan's layout under the schedules that do not search; those that cannot be simulated say why."""
    setting = setting_of(plan.wanted, plan.layout)
    size = len(setting.stages) * setting.microbatches * setting.cell
    found, missing = list[Result](), list[NotCompared]()
    for name in _OTHERS:
        if name == plan.result.schedule:
            continue
        if size > SIZE_MOST:
            because = f"{size:,} microbatches x stages of a cell are more than the {SIZE_MOST:,} that take less than a second"
            missing.append(NotCompared(name, because))
            continue
        if name == "interleaved" and min(plan.layout.layers) < setting.chunks:
            because = (
                f"a stage has {min(plan.layout.layers)} of the {setting.chunks} layers that its chunks need"
            )
            missing.append(NotCompared(name, because))
            continue
        try:
            found.append(simulate(setting, SCHEDULES[name], checked=False).result)
        except BadInput as error:
            missing.append(NotCompared(name, error.problem))
    ranked = sorted(found, key=lambda result: result.iteration_ns)
    return Comparison((plan.result, *ranked), tuple(missing))
