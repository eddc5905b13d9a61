"""During a run: pipelines whose devices prove slower than others' get fewer microbatches. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.errors import BadInput
from unidle.span.model.setting import Setting
from unidle.span.replan.observed import Remaining, Step
from unidle.span.simulate.schedules import Schedule
from unidle.span.simulate.uneven import Modelled, PipelineShares, microbatches_of, shares_by_cell, simulated

ALIKE: Final = 1.05  # pipelines whose times differ by less are taken as equally fast


@dataclass(frozen=True, slots=True)
class NewShares:
    """Microbatches shared out again. ``before_ns``, ``after_ns``: modelled, both with the measured speeds."""

    shares: PipelineShares
    before: tuple[int, ...]
    before_ns: int
    after_ns: int

    def line(self) -> str:
        """What changes and why, in words."""
        speeds = self.shares.speeds
        seen = ", ".join(f"{p}: {100 * speed / max(speeds):.0f} %" for p, speed in enumerate(speeds))
        old, new = (", ".join(map(str, counts)) for counts in (self.before, self.shares.microbatches))
        return (
            f"pipelines are not equally fast ({seen}): microbatches {new} instead of {old} from the next checkpoint on"
            f" (modelled {self.after_ns / 1e6:.1f} ms, not {self.before_ns / 1e6:.1f} ms)"
        )


def new_shares(
    running: Modelled, schedule: Schedule, steps: Sequence[Step], left: Remaining
) -> NewShares | None:
    """Microbatches in proportion to the measured speeds, as many together; None where that is not worth a restart.

    ``running``: the plan that the ``steps`` followed.
    """
    setting, counts = running.setting, microbatches_of(running)
    speeds = measured_speeds(setting, counts, steps)
    if speeds is None:
        return None
    shared = shares_by_cell(speeds, sum(counts), setting.cell)
    if shared == counts:
        return None
    try:
        before, after = (
            simulated(setting, schedule, PipelineShares(each, speeds)).result.iteration_ns
            for each in (counts, shared)
        )
    except BadInput:  # more in flight than memory holds
        return None
    return (
        NewShares(PipelineShares(shared, speeds), counts, before, after)
        if left.is_worth(before, after)
        else None
    )


def measured_speeds(
    setting: Setting, counts: Sequence[int], steps: Iterable[Step]
) -> tuple[float, ...] | None:
    """Speed of each pipeline relative to the setting's times, the same within a cell; None until all are measured.

    A pipeline is as fast as its slowest stage. A stage's time is the mean over the microbatches of a step of forward,
    backward and weight gradient, and of that the median over the steps, so that one slow step has no effect.
    """
    took: dict[tuple[int, int], list[float]] = {}
    for step in steps:
        for (pipeline, stage), ns in _computed(step).items():
            took.setdefault((pipeline, stage), []).append(ns / counts[pipeline])
    if len(took) < setting.devices:
        return None
    stages = range(len(setting.stages))
    slowest = [max(statistics.median(took[p, s]) for s in stages) for p in range(setting.pipelines)]
    cells = [max(slowest[k : k + setting.cell]) for k in range(0, setting.pipelines, setting.cell)]
    if min(cells) <= 0:
        return None
    alike, planned = _levelled(cells), max(stage.useful_ns for stage in setting.stages)
    return tuple(planned / ns for ns in alike for _ in range(setting.cell))


def _computed(step: Step) -> Mapping[tuple[int, int], int]:
    """Nanoseconds of a step by pipeline and stage."""
    found: dict[tuple[int, int], int] = {}
    for row in step.rows:
        if row.op in ("F", "B", "W"):
            key = (row.pipeline, row.stage)
            found[key] = found.get(key, 0) + row.end_ns - row.start_ns
    return found


def _levelled(times: Sequence[float]) -> list[float]:
    """Replace times that are nearly equal by their mean, so that pipelines are of few kinds."""
    ordered = sorted(range(len(times)), key=lambda k: times[k])
    groups: list[list[int]] = []
    for k in ordered:
        if groups and times[k] <= ALIKE * times[groups[-1][0]]:
            groups[-1].append(k)
        else:
            groups.append([k])
    found = [0.0] * len(times)
    for group in groups:
        mean = statistics.fmean(times[k] for k in group)
        for k in group:
            found[k] = mean
    return found
