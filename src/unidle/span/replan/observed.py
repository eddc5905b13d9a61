"""What a real run did, step by step and attempt by attempt, and whether a better plan is worth its restart for what is left.

Pure: from what ranks wrote to figures and rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unidle.span.model.setting import Setting
from unidle.span.simulate.timeline import Op, OpRow
from unidle.span.simulate.uneven import Modelled


@dataclass(slots=True)
class Step:
    """One step of one attempt, from the records of its devices. Times in ns on the clock of the first device's host.

    ``microbatches``: of each pipeline.
    """

    number: int
    attempt: int
    microbatches: tuple[int, ...]
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    exposed: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    wan_bytes: dict[str, int] = field(default_factory=dict)
    rows: list[OpRow] = field(default_factory=list)
    took_ns: int = 0

    def take(self, device: str, record: Mapping[str, Any], shift_ns: int = 0) -> None:
        """A rank's record of the whole step."""
        self.begins[device] = int(record["begin_ns"]) + shift_ns
        self.ends[device] = int(record["end_ns"]) + shift_ns
        self.exposed[device] = int(record.get("exposed_wan_ns") or 0)
        self.wan_bytes[device] = int(record.get("wan_bytes") or 0)
        if record.get("loss") is not None:
            self.losses[device] = float(record["loss"])

    @property
    def begin_ns(self) -> int:
        return min(self.begins.values())

    @property
    def end_ns(self) -> int:
        return max(self.ends.values())

    @property
    def loss(self) -> float | None:
        """The mean over the microbatches of all pipelines that recorded a loss."""
        told = {int(device.split("/")[1]): loss for device, loss in self.losses.items()}
        return batch_loss(told, self.microbatches) if told else None


def batch_loss(losses: Mapping[int, float], microbatches: Sequence[int]) -> float:
    """From the mean of each pipeline to that of all microbatches."""
    total = math.fsum(loss * microbatches[pipeline] for pipeline, loss in losses.items())
    return total / sum(microbatches[pipeline] for pipeline in losses)


def row_of(setting: Setting, device: str, record: Mapping[str, Any], shift_ns: int = 0) -> OpRow:
    """A rank's record of one operation as a row of a timeline; transfers are named as in a simulation."""
    _, pipeline, stage = device.split("/")
    op: Op = record["op"]
    start, end = int(record["start_ns"]) + shift_ns, int(record["end_ns"]) + shift_ns
    place, of = device, str(record.get("of") or "")
    if op in ("send", "scatter", "gather"):
        to = record.get("to")
        if to is None:
            there = int(stage) + (1 if of == "F" else -1)
            to = setting.device(int(pipeline), there % len(setting.stages))
        place = f"{device}>{to}"
    elif op == "allreduce":
        place = f"{device}:ring"
    return OpRow(
        place, op, int(pipeline), int(stage), int(record.get("microbatch", -1)), start, end,
        int(record.get("chunk") or 0), int(record.get("bytes") or 0), of,
    )  # fmt: skip


def measured_ns(steps: Iterable[Step]) -> int:
    """What a step took, the median; 0 where none was whole."""
    took = [step.took_ns for step in steps if step.took_ns]
    return round(statistics.median(took)) if took else 0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run's figures; ``None`` where nothing was measured. ``step_ns``: the median of the steps after the first one.

    ``busy``: forward and both backward parts over devices times step; ``exposed_wan_ns``: mean over devices, median over
    steps; ``link_bytes``: of a step by pair of sites; ``link_use``: the part of the step in which the busiest wire of the pair carried
    bytes at the stated capacity.
    """

    steps: int
    step_ns: int | None
    busy: float | None
    exposed_wan_ns: int | None
    link_bytes: dict[str, int]
    link_use: dict[str, float]


def summary(setting: Setting, steps: Iterable[Step]) -> RunSummary:
    """The figures of the steps of one plan."""
    known = [step for step in steps if step.took_ns]
    steady = known[1:] if len(known) > 2 else known
    if not steady:
        return RunSummary(len(known), None, None, None, {}, {})
    took = round(statistics.median(step.took_ns for step in steady))
    busy = [
        sum(row.end_ns - row.start_ns for row in step.rows if row.op in ("F", "B", "W"))
        / (setting.devices * step.took_ns)
        for step in steady
        if step.rows
    ]
    exposed = round(statistics.median(sum(step.exposed.values()) / setting.devices for step in steady))
    last = next((step for step in reversed(steady) if step.rows), None)
    carried, most = _bytes(last.rows) if last is not None else ({}, {})
    use = {}
    for pair, size in most.items():
        a, b = pair.split(">")
        path = _path(setting, a, b)
        if path is not None and last is not None:
            use[pair] = size * 8 / path / took
    return RunSummary(len(known), took, statistics.fmean(busy) if busy else None, exposed, carried, use)


def _bytes(rows: Iterable[OpRow]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes between sites: of the pair, and of the pair's busiest wire in one direction."""
    carried: dict[str, int] = {}
    wires: dict[tuple[str, str], int] = {}
    for row in rows:
        one, _, other = row.device_or_link.partition(">")
        a, b = one.split("/")[0], other.split("/")[0]
        if row.op != "send" or not other or a == b:
            continue
        pair = f"{a}>{b}"
        carried[pair] = carried.get(pair, 0) + row.size_bytes
        wires[pair, row.device_or_link] = wires.get((pair, row.device_or_link), 0) + row.size_bytes
    most: dict[str, int] = {}
    for (pair, _), size in wires.items():
        most[pair] = max(most.get(pair, 0), size)
    return carried, most


def _path(setting: Setting, a: str, b: str) -> float | None:
    """Gbit/s between two neighbouring sites."""
    for s, to in ((s, s + d) for s in range(len(setting.stages)) for d in (-1, 1)):
        if not 0 <= to < len(setting.stages):
            continue
        names = tuple(setting.sites[setting.site_of[k]].name for k in (s, to))
        path = setting.path(s, to)
        if names == (a, b) and path is not None:
            return path.rate_gbps(None)
    return None


def transfers_ns(setting: Setting, steps: Iterable[Step]) -> dict[tuple[str, str], int]:
    """How long a transfer took beyond its latency, by pair of sites: the lower quartile, which no queue made longer.

    A rank's row of a send lasts until the far side has acknowledged it. Transfers in turns are shares and do not count.
    """
    seen: dict[tuple[str, str], list[int]] = {}
    latency = {(min(link.a, link.b), max(link.a, link.b)): link.latency_ns for link in setting.links}
    for step in steps:
        for row in step.rows:
            one, _, other = row.device_or_link.partition(">")
            a, b = one.split("/")[0], other.split("/")[0]
            pair = (min(a, b), max(a, b))
            if row.op == "send" and pair in latency and row.size_bytes >= setting.largest_cut_bytes * 9 // 10:
                took = row.end_ns - row.start_ns - 2 * latency[pair]
                seen.setdefault(pair, []).append(max(took, 1))
    return {pair: sorted(times)[len(times) // 4] for pair, times in seen.items()}


GAIN: Final = 1.05  # a plan that is not so much faster is not worth a restart


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a run: its steps, what one took that was measured, and what a restart takes."""

    steps: int
    step_ns: int
    restart_ns: int

    @classmethod
    def after(cls, recent: Iterable[Step], steps: int, restart_ns: int) -> Remaining:
        """The same after these steps."""
        return cls(steps, measured_ns(recent), restart_ns)

    def is_better(self, before_ns: int, after_ns: int) -> bool:
        """Faster by 5 %: of the modelled step, and of the measured one, which may have other things to wait for."""
        return before_ns - after_ns > (1 - 1 / GAIN) * max(before_ns, self.step_ns)

    def is_worth(self, before_ns: int, after_ns: int) -> bool:
        """Better, and the steps that are left win more time than a restart takes."""
        return self.is_better(before_ns, after_ns) and (before_ns - after_ns) * self.steps > self.restart_ns


@dataclass(slots=True)
class SpanAttempt:
    """One attempt: its plan as it was simulated, and what its ranks reported. ``called``: its devices by their ranks' names."""

    number: int
    simulation: Modelled
    called: dict[str, str]
    devices: tuple[str, ...]
    steps: dict[int, Step] = field(default_factory=dict)
    shifts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    resumed: int = 0
    ready: set[str] = field(default_factory=set)
    stopping: bool = False
    digest: str | None = None
    layers: int | None = None  # of the whole model
    began_ns: int = 0
    start_ns: int = 0  # how long it took until all devices were ready

    def why(self) -> str:
        """The first cause: who found its link dead, rather than who was left by that one."""
        for kind in ("link", "peer"):
            for end in self.ends.values():
                if end.get("why") == kind:
                    return str(end.get("because") or kind)
        return "its ranks ended without a message"
