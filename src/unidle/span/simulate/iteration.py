"""From a setting and a schedule to its result: choose, run, look it over, and what is reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from unidle.errors import BadInput
from unidle.span.model.cost import repeats, stretch
from unidle.span.model.setting import Setting
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.check import check
from unidle.span.simulate.engine import IterationRun, run, run_many
from unidle.span.simulate.program import Ints, Program, peak_bytes
from unidle.span.simulate.schedules import Schedule
from unidle.span.simulate.timeline import OpRow, rows


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """One schedule in one setting.

    ``utilisation``: forward and both backward parts, without recompute, over devices times iteration.
    ``exposed_wan_ns``: what a device waits for a transfer between sites and for nothing else, mean over the devices.
    ``peak_memory_bytes``: of the fullest device. ``wan_bytes``: over all links between sites in one iteration.
    ``cost_per_iteration``: GPU-hours at the sites' prices, and egress. ``chosen``: what a schedule that searches took.
    """

    schedule: str
    iteration_ns: int
    utilisation: float
    exposed_wan_ns: int
    peak_memory_bytes: int
    wan_bytes: int
    lower_bound_ns: int
    cost_per_iteration: float
    chosen: str
    peak_memory_by_stage: tuple[int, ...]
    checked: bool
    reconstructed: bool


def cost_of(setting: Setting, iteration_ns: int, egress: float) -> float:
    """Money of an iteration: all devices for as long as it takes, and ``egress``."""
    hour_ns = 3_600_000_000_000
    devices = sum(site.stages * setting.pipelines * site.price_per_gpu_hour for site in setting.sites)
    return devices * iteration_ns / hour_ns + egress


@dataclass(frozen=True, slots=True)
class Expected:
    """An iteration with lost work, checkpoints and restarts in the mean; ``stretch``: over the undisturbed one."""

    revocations_per_hour: float
    iteration_ns: int
    cost_per_iteration: float
    stretch: float


def expected(setting: Setting, result: ScheduleResult) -> Expected | None:
    """The expected iteration where devices are revoked; None if the setting has no ``saving``. Source: `model/cost.py`."""
    saving, length = setting.saving, result.iteration_ns
    if saving is None:
        return None
    rate, seconds = setting.revocations_per_hour, length / 1e9
    more = stretch(saving, rate, seconds)
    hours = cost_of(setting, length, 0.0)
    egress = (result.cost_per_iteration - hours) * repeats(saving, rate, seconds)
    return Expected(rate, round(length * more), hours * more + egress, more)


CHECKED_OPERATIONS = 20_000  # a larger timeline is not checked unless it is asked for


@dataclass(frozen=True, slots=True)
class Simulation:
    """A program that was run."""

    setting: Setting
    program: Program
    run: IterationRun
    result: ScheduleResult

    def rows(self, pipelines: int | None = None) -> Iterator[OpRow]:
        """The whole timeline, or that of the first pipelines (whole cells)."""
        traced = run(self.setting, self.program, trace=True) if self.run.routes.turns else self.run
        return rows(self.setting, self.program, traced, pipelines)


@dataclass(slots=True)
class Trials:
    """What a schedule that searches may ask: how long would this take? Keeps the best."""

    setting: Setting
    best: tuple[int, Program, IterationRun, Ints] | None = field(default=None)

    def __call__(self, program: Program) -> int | None:
        """The iteration in nanoseconds; None where the cap is exceeded or stages wait for each other."""
        return self.many([program])[0]

    def many(self, programs: Sequence[Program], limit_ns: int | None = None) -> list[int | None]:
        """The same for several that differ in orders and fillers alone; None also where it takes ``limit_ns`` or longer."""
        found: list[int | None] = [None] * len(programs)
        peaks = [None if each.filler else peak_bytes(self.setting, each) for each in programs]
        able = [k for k, most in enumerate(peaks) if most is None or _fits(self.setting, most)]
        if able:
            runs = run_many(self.setting, [programs[k] for k in able], limit_ns=limit_ns)
            for k, done in zip(able, runs, strict=True):
                found[k] = self._enter(programs[k], done, peaks[k])
        return found

    def _enter(self, program: Program, done: IterationRun | None, peaks: Ints | None) -> int | None:
        if done is None:
            return None
        if peaks is None:
            peaks = filled_peak(self.setting, program, done)
            if not _fits(self.setting, peaks):
                return None
        length = iteration_ns(self.setting, done)
        if self.best is None or length < self.best[0]:
            self.best = (length, program, done, peaks)
        return length


def simulate(setting: Setting, schedule: Schedule, *, checked: bool | None = None) -> Simulation:
    """Run a schedule. ``checked``: look the timeline over; None: unless it is large.

    Errors: :class:`unidle.errors.BadInput` where a stage does not fit into memory, or a schedule of the user's own
    cannot be run.
    """
    trials = Trials(setting)
    program = schedule.choose(setting, trials)
    if trials.best is None or trials.best[1] is not program:
        trials.best = None
        trials(program)
    if trials.best is None:
        _refuse(setting, schedule, program)
    _, program, done, peaks = trials.best
    size = setting.devices * setting.microbatches * program.chunks * 4
    wanted = size <= CHECKED_OPERATIONS if checked is None else checked
    result = _result(setting, schedule, program, done, peaks, wanted)
    simulation = Simulation(setting, program, done, result)
    if wanted:
        verdict = check(setting, simulation.rows(), program.chunks)
        if verdict.problems:
            raise AssertionError(f"{schedule.name}: {verdict.problems[0]}")
        if verdict.peak_bytes != result.peak_memory_bytes:
            raise AssertionError(
                f"{schedule.name}: {verdict.peak_bytes} bytes, not {result.peak_memory_bytes}"
            )
    return simulation


def iteration_ns(setting: Setting, done: IterationRun) -> int:
    """When the last device ends, all-reduce included."""
    stages = len(setting.stages)
    by_stage = done.ends.reshape(-1, stages).max(axis=0)
    return max(int(end) + setting.reduce_ns(s) for s, end in enumerate(by_stage.tolist()))


def filled_peak(setting: Setting, program: Program, done: IterationRun) -> Ints:
    """The peak of each stage over all pipelines that were run."""
    stages = len(setting.stages)
    peaks = [
        peak_bytes(setting, program, done.fills[first : first + stages])
        for first in range(0, len(done.fills), stages)
    ]
    highest: Ints = np.max(peaks, axis=0)
    return highest


def _fits(setting: Setting, peaks: Ints) -> bool:
    return setting.memory_cap_bytes is None or int(peaks.max()) <= setting.memory_cap_bytes


def _refuse(setting: Setting, schedule: Schedule, program: Program) -> NoReturn:
    cap = setting.memory_cap_bytes
    if cap is not None and program.filler is None:
        peaks = peak_bytes(setting, program)
        stage = int(peaks.argmax())
        if (most := int(peaks[stage])) > cap:
            site = setting.sites[setting.site_of[stage]].name
            raise BadInput(
                f"stage {stage} (site {site}) needs {most:,} bytes under {schedule.name}, {most - cap:,} more than a device may hold",
                field="memory_cap_bytes", value=cap, remedy="use more stages, a smaller microbatch, or a larger cap",
            )  # fmt: skip
    raise BadInput(
        "its stages wait for each other", field="schedule", value=schedule.name,
        remedy="let no stage do a backward before its forwards let the next stage get there",
    )  # fmt: skip


def _result(
    setting: Setting, schedule: Schedule, program: Program, done: IterationRun, peaks: Ints, checked: bool
) -> ScheduleResult:
    length = iteration_ns(setting, done)
    useful = setting.pipelines * setting.microbatches * sum(stage.useful_ns for stage in setting.stages)
    crossings = np.argwhere(done.routes.wan)
    sent, egress = 0, 0.0
    for s, group in crossings.tolist():
        to = int(done.routes.to[s, group])
        path, each = (
            setting.path(s, to),
            setting.crossing_bytes(s, to) * setting.microbatches * setting.pipelines,
        )
        sent += each
        egress += path.egress_per_gb * each / 1e9 if path else 0.0
    return ScheduleResult(
        schedule=schedule.name,
        iteration_ns=length,
        utilisation=useful / (setting.devices * length) if length else 0.0,
        exposed_wan_ns=round(int(done.exposed_ns.sum()) / len(done.exposed_ns)),
        peak_memory_bytes=int(peaks.max()),
        wan_bytes=sent,
        lower_bound_ns=lower_bound_ns(setting, program.chunks),
        cost_per_iteration=cost_of(setting, length, egress),
        chosen=program.label,
        peak_memory_by_stage=tuple(peaks.tolist()),
        checked=checked,
        reconstructed=schedule.reconstructed,
    )
