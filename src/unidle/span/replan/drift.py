"""What of a run was not as planned, by its last steps. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from unidle.span.model.setting import Setting, Stage
from unidle.span.replan.observed import Step, transfers_ns
from unidle.span.replan.survivors import corrected
from unidle.span.replan.unsteady import STEADY, Unsteady, unsteady
from unidle.span.simulate.uneven import Modelled, Together

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
