"""Pipelines that are not alike: other numbers of microbatches, other speeds. They meet at the all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from unidle.span.bound import lower_bound_ns
from unidle.span.result import Result, cost_of
from unidle.span.schedules import Schedule
from unidle.span.setting import Setting, Stage
from unidle.span.simulate import Simulation, simulate


@dataclass(frozen=True, slots=True)
class Group:
    """Pipelines that are alike. ``pipelines``: which; ``setting``: theirs alone."""

    pipelines: tuple[int, ...]
    setting: Setting
    speed: float = 1.0


def grouped(setting: Setting, microbatches: Sequence[int], speeds: Sequence[float]) -> tuple[Group, ...]:
    """The pipelines by their microbatches and speed, ``(pipelines,)`` each. A cell holds pipelines of one group."""
    alike: dict[tuple[int, float], list[int]] = {}
    for pipeline, key in enumerate(zip(microbatches, speeds, strict=True)):
        alike.setdefault(key, []).append(pipeline)
    return tuple(
        Group(
            tuple(those),
            replace(
                setting, microbatches=count, pipelines=len(those), cell=gcd(setting.cell, len(those)),
                stages=tuple(_at_speed(stage, speed) for stage in setting.stages),
            ),
            speed,
        )
        for (count, speed), those in alike.items()
    )  # fmt: skip


def _at_speed(stage: Stage, speed: float) -> Stage:
    forward, backward, weight = (
        max(round(ns / speed), 1) if ns else 0
        for ns in (stage.forward_ns, stage.backward_ns, stage.weight_ns)
    )
    return replace(
        stage, forward_ns=forward, backward_ns=backward, weight_ns=weight, recompute_ns=round(stage.recompute_ns / speed)
    )  # fmt: skip


def simulate_groups(
    whole: Setting, groups: Sequence[Group], schedule: Schedule, *, checked: bool | None = None
) -> tuple[Result, tuple[Simulation, ...]]:
    """One iteration of all groups: each under the schedule alone, then the all-reduce of each stage over all pipelines.

    ``whole``: all pipelines, for the all-reduce, and what devices cost. Errors: :class:`unidle.errors.BadInput`.
    """
    found = tuple(simulate(group.setting, schedule, checked=checked) for group in groups)
    stages = len(whole.stages)
    length = max(
        max(int(each.run.ends[s::stages].max()) for each in found) + whole.reduce_ns(s) for s in range(stages)
    )
    useful = sum(
        group.setting.devices
        // stages
        * group.setting.microbatches
        * sum(stage.useful_ns for stage in group.setting.stages)
        for group in groups
    )
    egress = sum(
        each.result.cost_per_iteration - cost_of(each.setting, each.result.iteration_ns, 0.0)
        for each in found
    )
    exposed = sum(
        each.result.exposed_wan_ns * len(group.pipelines) for each, group in zip(found, groups, strict=True)
    )
    peaks = tuple(max(each.result.peak_memory_by_stage[s] for each in found) for s in range(stages))
    bound = max(
        lower_bound_ns(replace(group.setting, pipelines=whole.pipelines), each.program.chunks)
        for each, group in zip(found, groups, strict=True)
    )
    result = Result(
        schedule=schedule.name,
        iteration_ns=length,
        utilisation=useful / (whole.devices * length) if length else 0.0,
        exposed_wan_ns=round(exposed / whole.pipelines),
        peak_memory_bytes=max(peaks),
        wan_bytes=sum(each.result.wan_bytes for each in found),
        lower_bound_ns=bound,
        cost_per_iteration=cost_of(whole, length, egress),
        chosen="; ".join(
            f"{len(g.pipelines)} x {each.result.chosen}" for g, each in zip(groups, found, strict=True)
        ),
        peak_memory_by_stage=peaks,
        checked=all(each.result.checked for each in found),
        reconstructed=schedule.reconstructed,
    )
    return result, found
