"""What of a run was not as planned, by its last steps, and how unsteady it is from step to step. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from unidle.span.model.setting import Setting, Stage
from unidle.span.replan.observed import Step, transfers_ns
from unidle.span.replan.survivors import corrected
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.jitter import fixed_ns, luck, steps_of
from unidle.span.simulate.uneven import Modelled, Together

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


DRIFT: Final = (
    1.4  # links that take so much longer than planned are worth a look; less is headers and acknowledgements
)
SLOWER: Final = 1.25  # so are stages, in either direction
_LEAST_ROWS: Final = 3  # of an operation of a stage; fewer tell nothing

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Drift:
    """What took longer or less than planned: transfers by pair of sites and stages by number, as measured over planned.

    ``setting``: the one that was planned with, with what was measured; ``weather``: how far it varied from step to step.
    """

    setting: Setting
    links: Mapping[Pair, float]
    stages: Mapping[int, float]
    weather: Unsteady = STEADY

    def __bool__(self) -> bool:
        return bool(self.links or self.stages or self.weather)

    def __str__(self) -> str:
        told = [f"transfers {a}-{b} take {ratio:.2f}x" for (a, b), ratio in self.links.items()]
        names = (self.setting.device(0, stage).split("/")[0] for stage in self.stages)
        told += [
            f"stage {s} ({site}) takes {ratio:.2f}x"
            for (s, ratio), site in zip(self.stages.items(), names, strict=True)
        ]
        return ", ".join([*told, str(self.weather)] if self.weather else told)


def drift(running: Modelled, steps: Iterable[Step]) -> Drift:
    """Links and stages that differ from the planned setting; only links if the pipelines are not all equal."""
    setting, recent = running.setting, list(steps)
    took = transfers_ns(setting, recent)
    wires = {
        (min(link.a, link.b), max(link.a, link.b)): setting.largest_cut_bytes * 8 / link.rate_gbps(None)
        for link in setting.links
    }
    slow = {pair: ns for pair, ns in took.items() if pair in wires and ns > DRIFT * wires[pair]}
    stages, found = [], dict[int, float]()
    medians = {} if isinstance(running, Together) else _medians(recent)
    for s, stage in enumerate(setting.stages):
        now = _measured(stage, {op: ns for (of, op), ns in medians.items() if of == s})
        ratio = now.useful_ns / stage.useful_ns if stage.useful_ns else 1.0
        if not 1 / SLOWER <= ratio <= SLOWER:
            found[s] = ratio
        stages.append(now if s in found else stage)
    links = corrected(setting, slow) if slow else setting
    ratios = {pair: ns / wires[pair] for pair, ns in slow.items()}
    weather = STEADY if isinstance(running, Together) else unsteady(recent)
    return Drift(replace(links, stages=tuple(stages)), ratios, found, weather)


def _medians(steps: Iterable[Step]) -> dict[tuple[int, str], float]:
    """Of each stage's operations over all pipelines, in nanoseconds."""
    seen: dict[tuple[int, str], list[int]] = {}
    for step in steps:
        for row in step.rows:
            if row.op in ("F", "B", "W", "R"):
                seen.setdefault((row.stage, row.op), []).append(row.end_ns - row.start_ns)
    return {key: statistics.median(times) for key, times in seen.items() if len(times) >= _LEAST_ROWS}


def _measured(stage: Stage, took: Mapping[str, float]) -> Stage:
    """A stage with the times that its operations took; what was not seen changes as the rest does."""

    def ratio(*names: tuple[str, int]) -> float | None:
        known = [(took[op], ns) for op, ns in names if op in took and ns]
        return sum(now for now, _ in known) / sum(ns for _, ns in known) if known else None

    forward = ratio(("F", stage.forward_ns))
    backward = ratio(("B", stage.backward_ns), ("W", stage.weight_ns))
    again = ratio(("R", stage.recompute_ns))
    forward, backward = forward or backward or 1.0, backward or forward or 1.0
    return replace(
        stage, forward_ns=_times(stage.forward_ns, forward), backward_ns=_times(stage.backward_ns, backward),
        weight_ns=_times(stage.weight_ns, backward), recompute_ns=_times(stage.recompute_ns, again or forward),
    )  # fmt: skip


def _times(ns: int, ratio: float) -> int:
    return max(round(ns * ratio), 1) if ns else 0
