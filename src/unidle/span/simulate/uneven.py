"""Unequal pipelines: other numbers of microbatches, other speeds. They meet at the all-reduce.

How many microbatches each gets follows from how fast its devices are.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from unidle.errors import BadInput
from unidle.span.model.setting import Setting, Stage
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.iteration import ScheduleResult, Simulation, cost_of, simulate
from unidle.span.simulate.schedules import Schedule
from unidle.span.simulate.timeline import OpRow
from unidle.words import counted


def shares(speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """Microbatches of each pipeline, ``batch`` together and at least one each, so that the slowest ends as soon as it can.

    ``speeds``: microbatches in any unit of time. The next one goes to the pipeline that then ends first: as with
    :func:`unidle.span.plan.partition.balanced` no other way makes the largest of ``share / speed`` smaller. The gradient stays
    that of the whole batch where each pipeline's mean counts by its share of it. Errors:
    :class:`unidle.errors.BadInput`.
    """
    if not speeds or min(speeds) <= 0:
        raise BadInput(
            "must be numbers over 0", field="speeds", value=list(speeds), remedy="one for each pipeline"
        )
    if batch < len(speeds):
        raise BadInput(
            f"are fewer than {counted(len(speeds), 'pipeline')}, and each needs one", field="microbatches", value=batch,
            remedy="use fewer pipelines",
        )  # fmt: skip
    given = [1] * len(speeds)
    # What is rounded down of an even share is the least that any best way gives, unless the ones take too much.
    total = sum(speeds)
    least = [max(int(batch * speed / total * (1 - 1e-12)), 1) for speed in speeds]
    if sum(least) <= batch:
        given = least
    heap = [((n + 1) / speed, k) for k, (n, speed) in enumerate(zip(given, speeds, strict=True))]
    heapq.heapify(heap)
    for _ in range(batch - sum(given)):
        _, k = heap[0]
        given[k] += 1
        heapq.heapreplace(heap, ((given[k] + 1) / speeds[k], k))
    return tuple(given)


def shares_by_cell(speeds: Sequence[float], batch: int, cell: int) -> tuple[int, ...]:
    """The same where ``cell`` pipelines, one after the other, do as many each and ``batch`` is a multiple of ``cell``.

    A cell is as fast as its slowest pipeline. Errors: :class:`unidle.errors.BadInput`.
    """
    slowest = [min(speeds[first : first + cell]) for first in range(0, len(speeds), cell)]
    return tuple(count for count in shares(slowest, batch // cell) for _ in range(cell))


# The pipeline in the name of a device, of its wires, of both ends of a link.
_PLACE: Final = re.compile(r"/(\d+)/(?=\d+(?:[>:]|$))")


@dataclass(frozen=True, slots=True)
class PipelineGroup:
    """Pipelines that are equal. ``pipelines``: their numbers; ``setting``: for them alone."""

    pipelines: tuple[int, ...]
    setting: Setting
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class PipelineShares:
    """What each pipeline does. ``microbatches``: in an iteration; ``speeds``: relative to the times of the setting."""

    microbatches: tuple[int, ...]
    speeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A group as it was simulated. ``pipelines``: what its own ones, counted from 0, are called in the whole."""

    simulation: Simulation
    pipelines: tuple[int, ...]

    def device(self, pipeline: int, stage: int) -> str:
        """The name in the whole of a device of this group."""
        return self.simulation.setting.device(self.pipelines[pipeline], stage)

    def rows(self, pipelines: int | None = None) -> Iterator[OpRow]:
        """Its timeline without the all-reduce, which is not its own; ``pipelines``: of its first ones only, whole cells."""
        for row in self.simulation.rows(pipelines):
            if row.op == "allreduce":
                continue
            place = _PLACE.sub(lambda found: f"/{self.pipelines[int(found[1])]}/", row.device_or_link)
            yield row._replace(device_or_link=place, pipeline=self.pipelines[row.pipeline])


@dataclass(frozen=True, slots=True)
class Together:
    """One iteration of unequal pipelines. ``setting``: all of them, with the most microbatches of any."""

    setting: Setting
    groups: tuple[PipelineGroup, ...]
    parts: tuple[Simulation, ...]
    result: ScheduleResult

    def members(self) -> tuple[Member, ...]:
        """The groups, each with its pipelines."""
        return tuple(
            Member(part, group.pipelines) for part, group in zip(self.parts, self.groups, strict=True)
        )

    def rows(self, *, first_cells: bool = False) -> Iterator[OpRow]:
        """The whole timeline; ``first_cells``: of the first cell of each group, which the others are like."""
        for member in self.members():
            count = member.simulation.setting.cell if first_cells else len(member.pipelines)
            yield from member.rows(count)
            yield from self._reduce(member.pipelines[:count])

    def _reduce(self, pipelines: Sequence[int]) -> Iterator[OpRow]:
        setting, count = self.setting, self.setting.pipelines
        for stage, each in enumerate(setting.stages):
            if not each.gradient_bytes or count == 1 or setting.local is None:
                continue
            start, size = meeting_ns(self, stage), 2 * (count - 1) * each.gradient_bytes // count
            for pipeline in pipelines:
                name = f"{setting.device(pipeline, stage)}:ring"
                end = start + setting.reduce_ns(stage)
                yield OpRow(name, "allreduce", pipeline, stage, -1, start, end, 0, size)


Modelled = Simulation | Together


def members(found: Modelled) -> tuple[Member, ...]:
    """The groups of any iteration; a single group of all pipelines if they are equal."""
    if isinstance(found, Together):
        return found.members()
    return (Member(found, tuple(range(found.setting.pipelines))),)


def meeting_ns(found: Modelled, stage: int) -> int:
    """When the slowest device of a stage begins its all-reduce."""
    stages = len(found.setting.stages)
    return max(int(each.simulation.run.ends[stage::stages].max()) for each in members(found))


def microbatches_of(found: Modelled) -> tuple[int, ...]:
    """Of each pipeline."""
    by_pipeline = {p: each.simulation.setting.microbatches for each in members(found) for p in each.pipelines}
    return tuple(by_pipeline[p] for p in range(found.setting.pipelines))


def simulated(
    setting: Setting, schedule: Schedule, shares: PipelineShares | None, *, checked: bool | None = None
) -> Modelled:
    """One iteration; without ``shares`` all pipelines are equal. Errors: :class:`unidle.errors.BadInput`."""
    if shares is None:
        return simulate(setting, schedule, checked=checked)
    return together(setting, grouped(setting, shares.microbatches, shares.speeds), schedule, checked=checked)


def together(
    setting: Setting, groups: Sequence[PipelineGroup], schedule: Schedule, *, checked: bool | None = None
) -> Together:
    """One iteration of all groups. Errors: :class:`unidle.errors.BadInput`."""
    whole = replace(setting, microbatches=max(group.setting.microbatches for group in groups))
    result, parts = simulate_groups(whole, groups, schedule, checked=checked)
    return Together(whole, tuple(groups), parts, result)


def grouped(
    setting: Setting, microbatches: Sequence[int], speeds: Sequence[float]
) -> tuple[PipelineGroup, ...]:
    """The pipelines by their microbatches and speed, ``(pipelines,)`` each. A cell holds pipelines of one group."""
    alike: dict[tuple[int, float], list[int]] = {}
    for pipeline, key in enumerate(zip(microbatches, speeds, strict=True)):
        alike.setdefault(key, []).append(pipeline)
    return tuple(
        PipelineGroup(
            tuple(those),
            replace(
                setting, microbatches=count, pipelines=len(those), cell=gcd(setting.cell, len(those)),
                stages=tuple(at_speed(stage, speed) for stage in setting.stages),
            ),
            speed,
        )
        for (count, speed), those in alike.items()
    )  # fmt: skip


def at_speed(stage: Stage, speed: float) -> Stage:
    """A stage on a device of ``speed``, where the stage's own times are of 1."""
    forward, backward, weight = (
        max(round(ns / speed), 1) if ns else 0
        for ns in (stage.forward_ns, stage.backward_ns, stage.weight_ns)
    )
    return replace(
        stage, forward_ns=forward, backward_ns=backward, weight_ns=weight, recompute_ns=round(stage.recompute_ns / speed)
    )  # fmt: skip


def simulate_groups(
    whole: Setting, groups: Sequence[PipelineGroup], schedule: Schedule, *, checked: bool | None = None
) -> tuple[ScheduleResult, tuple[Simulation, ...]]:
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
    result = ScheduleResult(
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
