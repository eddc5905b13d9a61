"""Whether another plan would be faster, by what the last steps of a run measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from unidle.errors import BadInput, CannotRun
from unidle.span.ahead import Ahead
from unidle.span.layers import balanced
from unidle.span.observed import Step, transfers_ns
from unidle.span.replan import corrected, moved, useful_speeds
from unidle.span.schedules import SCHEDULES, Schedule
from unidle.span.schedules.sturdy import sturdy
from unidle.span.setting import Setting, Stage
from unidle.span.simulate import Trials
from unidle.span.unequal import Modelled, Shares, Together, at_speed, members, simulated
from unidle.words import counted

DRIFT: Final = (
    1.4  # links that take so much longer than planned are worth a look; less is headers and acknowledgements
)
SLOWER: Final = 1.25  # so are stages, in either direction
SIZE_MOST: Final = (
    25_000  # microbatches x stages of a cell, up to which all schedules are simulated within a second
)
_LEAST_ROWS: Final = 3  # of an operation of a stage; fewer tell nothing

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Drift:
    """What took longer or less than planned: transfers by pair of sites and stages by number, as measured over planned.

    ``setting``: the one that was planned with, with what was measured.
    """

    setting: Setting
    links: Mapping[Pair, float]
    stages: Mapping[int, float]

    def __bool__(self) -> bool:
        return bool(self.links or self.stages)

    def __str__(self) -> str:
        told = [f"transfers {a}-{b} take {ratio:.2f}x" for (a, b), ratio in self.links.items()]
        names = (self.setting.device(0, stage).split("/")[0] for stage in self.stages)
        told += [
            f"stage {s} ({site}) takes {ratio:.2f}x"
            for (s, ratio), site in zip(self.stages.items(), names, strict=True)
        ]
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to go on with: ``planned`` is its setting without what was measured. ``same_ns``: a step of what runs now, None
    where it cannot go on; both are simulated with what was measured."""

    setting: Setting
    planned: Setting
    schedule: Schedule
    cut: tuple[int, ...] | None
    same_ns: int | None
    best_ns: int
    label: str

    def is_better(self, left: Ahead) -> bool:
        """Whether it is faster; anything is than what cannot go on."""
        return self.same_ns is None or left.is_better(self.same_ns, self.best_ns)

    def is_worth(self, left: Ahead) -> bool:
        """Whether it is worth a restart."""
        return self.same_ns is None or left.is_worth(self.same_ns, self.best_ns)


def drift(running: Modelled, steps: Iterable[Step]) -> Drift:
    """Links and stages that differ from the setting that was planned with; of pipelines that are not alike, links."""
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
    return Drift(replace(links, stages=tuple(stages)), ratios, found)


def reconsider(
    seen: Drift, planned: Setting, running: Modelled, schedule: Schedule, cut: Sequence[int] | None,
    shares: Shares | None = None,
) -> Choice:  # fmt: skip
    """The best of: the schedule planned anew, all others, and all of them with layers moved to where they are faster.

    ``planned``: the setting that ``running`` was planned with, less what was measured before; ``schedule``, ``shares``: of
    ``running``; ``cut``: layers of each stage, None where their number is not known: then none are moved. What does not fit into
    memory is passed over.
    """
    same = _again(seen.setting, running)
    best: Choice | None = None
    for setting, plain, counts in _layouts(seen, planned, cut):
        for each in _schedules(setting, schedule):
            try:
                told = simulated(setting, each, shares, checked=False).result
            except BadInput:
                continue
            if best is None or told.iteration_ns < best.best_ns:
                where = "" if counts == cut else f", layers {' '.join(map(str, counts or ()))}"
                best = Choice(
                    setting, plain, each, counts, same, told.iteration_ns, f"{told.schedule} ({told.chosen}){where}"
                )  # fmt: skip
    if best is None:  # by what was measured nothing fits, and what runs goes on
        known = None if cut is None else tuple(cut)
        return Choice(seen.setting, planned, schedule, known, same, same or 0, schedule.name)
    return best


def _again(setting: Setting, running: Modelled) -> int | None:
    """What runs, with other times; of pipelines that are not alike that of the slowest group."""
    took = []
    for each, speed in zip(members(running), _speeds(running), strict=True):
        stages = tuple(at_speed(stage, speed) for stage in setting.stages)
        own = replace(each.simulation.setting, links=setting.links, stages=stages)
        took.append(Trials(own)(each.simulation.program))
    known = [ns for ns in took if ns is not None]
    return max(known) if len(known) == len(took) else None


def _speeds(running: Modelled) -> list[float]:
    return [group.speed for group in running.groups] if isinstance(running, Together) else [1.0]


def _layouts(
    seen: Drift, planned: Setting, cut: Sequence[int] | None
) -> Iterator[tuple[Setting, Setting, tuple[int, ...] | None]]:
    """As it is first."""
    setting, known = seen.setting, None if cut is None else tuple(cut)
    yield setting, planned, known
    if known is None or len(known) != len(setting.stages) or not seen.stages:
        return
    whole = sum(known)
    counts = balanced(whole, useful_speeds(setting.stages, known), whole)
    if counts is None or counts == known:
        return
    try:
        yield moved(setting, known, counts), moved(planned, known, counts), counts
    except CannotRun:  # it does not fit
        return


def _schedules(setting: Setting, first: Schedule) -> Iterator[Schedule]:
    """The run's own, then the built-in ones whose parts are stages."""
    yield first
    if setting.microbatches * len(setting.stages) * setting.cell > SIZE_MOST or first.name == "interleaved":
        return
    for name, schedule in SCHEDULES.items():
        if name not in (first.name, "interleaved"):
            yield sturdy(schedule) if name == "unidle" else schedule


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


def said(choice: Choice, seen: Drift, left: Ahead) -> str:
    """The decision in one sentence."""
    if not choice.is_better(left):
        return f"not as planned: {seen}; no other plan is better by 5 %"
    if not choice.is_worth(left):
        return f"not as planned: {seen}; {choice.label} would win less in {counted(left.steps, 'step')} than a restart takes"
    same = "cannot go on" if choice.same_ns is None else f"{choice.same_ns / 1e6:.1f} ms a step like this"
    return f"not as planned: {seen}; {same}, {choice.best_ns / 1e6:.1f} with {choice.label}: from the next checkpoint on"
