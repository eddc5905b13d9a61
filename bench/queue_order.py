"""Queue orders on the jobs of Microsoft's Philly cluster: completion, waits and allocation at loads 0.8, 1.0 and 1.2.

UNIDLE_DATA names the directory that holds philly/ (default: `../shared/data` next to the checkout). A fleet of nodes of
8 GPUs is sized for each file and load. All jobs can be stopped, save their state then, and need 60 s to begin again;
EASY is given the true run times. HELD_OUT files were not looked at while the order was made. The order is that of
``--order``, by default `predicted`: what is known of run times is what was learned from jobs that ended before, by size.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from _table import Row, main
from unidle.control.replay.outcome import outcome_of
from unidle.control.replay.workload import Assumptions, replay, scenario_of
from unidle.files.trace import COLUMNS, load_trace
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import Order, QueueOrder
from unidle.place.queue.order import QueueTurns, waits_of
from unidle.store.memory import ForgetfulStore
from unidle.view.source import ledger_source
from unidle.view.state import View

DATA = Path(os.environ.get("UNIDLE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "philly"
HELD_OUT = ("b436b2",)
LOADS = (0.8, 1.0, 1.2)
PER_NODE, HOUR_NS, BOUND_H = 8, 3_600_000_000_000, 12.0
JOBS_MOST = 2_000
WAY_LEAST, FAR, P99_MOST, ALLOCATION_LESS, NOISE = 0.60, 0.20, 1.5, 0.3, 1.005
SIDES = (
    "fifo",
    "easy",
    "firstfit",
    "sjf-true",
    "las",
    "qssf",
    "unidle",
    "unidle, true times",
    "unidle, cannot stop",
)

Estimates = Literal["none", "exact", "learned"]


class TraceRow(NamedTuple):
    submit_s: float
    duration_s: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One replay; seconds, percent of capacity. ``over``: the part of the jobs that fell behind their turn by more."""

    mean_s: float
    p99_s: float
    gangs_p95_s: float
    allocation: float
    over: float
    behind_p99_h: float
    preemptions: int
    cpu_s: float


class Task(NamedTuple):
    file: str
    load: float
    side: str
    bound_h: float = BOUND_H
    jobs: int = JOBS_MOST
    order: Order = "predicted"


def trace_of(name: str, jobs: int) -> list[TraceRow]:
    with (DATA / f"{name}.csv").open() as text:
        found = [TraceRow(float(a), float(b), int(float(c))) for a, b, c in list(csv.reader(text))[1:]]
    return found[:jobs] if jobs else found


def gpus_for(trace: list[TraceRow], load: float) -> int:
    """GPUs of which the jobs need this part while they come, at least those of the largest."""
    span = max(row.submit_s for row in trace) - min(row.submit_s for row in trace)
    work = sum(row.duration_s * row.gpus for row in trace)
    return max(round(work / span / load), max(row.gpus for row in trace), PER_NODE)


def fleet_of(gpus: int, bound_h: float, order: Order) -> Fleet:
    sizes = [PER_NODE] * (gpus // PER_NODE) + ([gpus % PER_NODE] if gpus % PER_NODE else [])
    nodes = tuple(
        Node(f"n{k}", "site", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu", "P100") for i in range(size)))
        for k, size in enumerate(sizes)
    )
    return Fleet((Tier("site", "site"),), nodes, order=QueueOrder(order, round(bound_h * HOUR_NS)))


def write_trace(path: Path, trace: list[TraceRow], stops: bool) -> None:
    """Up to 8 GPUs are on one node, more in ranks of a node each."""
    lines = [",".join(COLUMNS)]
    for k, row in enumerate(trace):
        ranks = -(-row.gpus // PER_NODE)
        while row.gpus % ranks:
            ranks += 1
        lines.append(
            f"j{k},{row.submit_s},{row.duration_s},{row.gpus},,,,default,0,{str(stops).lower()},{ranks}"
        )
    path.write_text("\n".join(lines) + "\n")


def measure(task: Task) -> Figures:
    """One replay."""
    trace = trace_of(task.file, task.jobs)
    fleet = fleet_of(gpus_for(trace, task.load), task.bound_h, task.order)
    policy, _, how = task.side.partition(", ")
    estimates: Estimates = "exact" if how == "true times" or policy == "easy" else "learned"
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.csv"
        write_trace(path, trace, stops=how != "cannot stop")
        scenario = scenario_of(load_trace(path), fleet)
    store, begun_s = ForgetfulStore(), time.process_time()
    view = replay(scenario, policy, store, Assumptions(saves_on_stop=True, estimates=estimates))
    cpu_s = time.process_time() - begun_s
    found = outcome_of(view, ledger_source(store, view))
    if found.succeeded != found.jobs:
        raise SystemExit(f"{task}: {found.succeeded} of {found.jobs} jobs succeeded")
    jobs = list(view.jobs.values())
    least = sorted((job.spec.devices for job in jobs), reverse=True)[max(len(jobs) // 20 - 1, 0)]
    waits = [(j.attempts[0].placed_ns - j.submitted_ns) / 1e9 for j in jobs if j.spec.devices >= least]
    behind = behind_h(view, len(fleet.devices()))
    return Figures(
        found.completion.mean_s, found.completion.quantiles_s[2], float(np.percentile(waits, 95)), 100 * found.allocation,
        sum(h > task.bound_h for h in behind) / len(behind), float(np.percentile(behind, 99)), found.preemptions,
        cpu_s,
    )  # fmt: skip


def behind_h(view: View, gpus: int) -> list[float]:
    """How far each job fell behind its turn, from the final view alone: the definition of ``place.queue.order``."""
    turns, ended = QueueTurns(((gpus,), (gpus,))), list[float]()
    jobs = sorted(view.jobs.values(), key=lambda job: job.order)
    events = [(job.submitted_ns, 0, job) for job in jobs] + [(job.ended_ns or 0, 1, job) for job in jobs]
    for at_ns, ends, job in sorted(events, key=lambda event: (*event[:2], event[2].order)):
        if ends:
            ended.append(turns.behind_ns(job.id, at_ns) / HOUR_NS)
            turns.end(job.id)
        else:
            turns.see(job.id, 1, job.submitted_ns, (job.spec.devices,), 0)
            turns.waited(job.id, waits_of(job))
        turns.come(1, at_ns)
    return ended


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    if not DATA.is_dir():
        raise SystemExit(f"no {DATA}: set UNIDLE_DATA to the directory that holds philly/")
    names = [
        name
        for name in sorted(path.stem for path in DATA.glob("*.csv"))
        if not arguments.files or name in arguments.files
    ]
    tasks = [
        Task(name, load, side, BOUND_H, arguments.jobs, arguments.order)
        for name in names
        for load in arguments.loads
        for side in SIDES
    ]
    curve = [
        Task(name, 1.0, "unidle", bound_h, arguments.jobs, arguments.order)
        for name in names
        if name not in HELD_OUT
        for bound_h in arguments.bounds
    ]
    with ProcessPoolExecutor(arguments.workers, initializer=os.nice, initargs=(arguments.nice,)) as workers:
        found = dict(zip([*tasks, *curve], workers.map(measure, [*tasks, *curve]), strict=True))
    for part in ("developed on", "held out"):
        some = [name for name in names if (name in HELD_OUT) == (part == "held out")]
        for load in arguments.loads:
            cells = {
                name: {t.side: found[t] for t in tasks if (t.file, t.load) == (name, load)} for name in some
            }
            if cells:
                yield from _rows(f"{len(cells)} Philly files {part}, load {load}", cells)
    for bound_h in arguments.bounds:
        points = [found[task] for task in curve if task.bound_h == bound_h]
        bases = [
            found[Task(t.file, 1.0, "firstfit", BOUND_H, arguments.jobs, arguments.order)]
            for t in curve
            if t.bound_h == bound_h
        ]
        if points:
            yield from _curve(bound_h, points, bases)


def _curve(bound_h: float, points: list[Figures], bases: list[Figures]) -> Iterator[Row]:
    mean = math.exp(
        sum(math.log(p.mean_s / b.mean_s) for p, b in zip(points, bases, strict=True)) / len(points)
    )
    p99 = max(p.p99_s / b.p99_s for p, b in zip(points, bases, strict=True))
    over = max(p.over for p in points)
    yield Row(
        f"order.bound {bound_h:g} h, load 1.0: mean completion over first fit's", "ratio", mean, 1.0, "firstfit", 1 / mean,
        how=f"modelled: geometric mean of {len(points)} files developed on; worst p99 {p99:.2f}x, at most {100 * over:.1f} %"
        " of jobs over the bound",
    )  # fmt: skip


Cells = dict[str, dict[str, Figures]]


class _Table:
    """The rows of some files at one load."""

    def __init__(self, where: str, cells: Cells) -> None:
        self._where, self.cells = where, cells

    def each(self, figure: Callable[[dict[str, Figures]], float | None]) -> dict[str, float]:
        found = {name: figure(sides) for name, sides in self.cells.items()}
        return {name: value for name, value in found.items() if value is not None}

    def most(
        self, what: str, unit: str, found: dict[str, float], goal: str, bound: float, peer: str | None = None
    ) -> Row:
        """A row of figures of which none may be over the bound."""
        return self._row(what, unit, found, goal, [value <= bound for value in found.values()], max, peer)

    def least(
        self, what: str, unit: str, found: dict[str, float], goal: str, bound: float, peer: str | None = None
    ) -> Row:
        """A row of figures of which none may be below the bound."""
        return self._row(what, unit, found, goal, [value >= bound for value in found.values()], min, peer)

    def _row(self, what: str, unit: str, found: dict[str, float], goal: str, holds: list[bool],
             worst: Callable[..., str], peer: str | None) -> Row:  # fmt: skip
        at = worst(found, key=lambda name: found[name])
        listed = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        return Row(
            f"{self._where}: {what}", unit, found[at], None, peer, goal=goal or None, holds=all(holds) if goal else None,
            how=f"modelled: one replay each; the worst, {at}; holds for {sum(holds)} of {len(found)}: {listed}",
        )  # fmt: skip


def _rows(where: str, cells: Cells) -> Iterator[Row]:
    table = _Table(where, cells)
    each, most, least = table.each, table.most, table.least
    best = each(lambda s: s["unidle"].mean_s / min(s[p].mean_s for p in ("fifo", "easy", "firstfit")))
    yield most(
        "mean completion over the best of FIFO, EASY and first fit", "ratio", best, "at most 1.005", NOISE
    )
    if way := each(_way):
        goal = "at least 0.6 where it is over 20 %"
        yield least(
            "share of the way from first fit to SJF with true times", "part", way, goal, WAY_LEAST, "sjf-true"
        )
    p99 = each(lambda s: s["unidle"].p99_s / s["firstfit"].p99_s)
    yield most("p99 of completion over first fit's", "ratio", p99, "at most 1.5", P99_MOST, "firstfit")
    over = each(lambda s: 100 * s["unidle"].over)
    yield most("jobs that fell behind their turn by more than 12 h", "%", over, "at most 1", 1.0)
    gangs = each(lambda s: s["unidle"].gangs_p95_s - s["easy"].gangs_p95_s)
    yield most(
        "p95 of the wait of the largest 5 % of gangs less EASY's", "s", gangs, "at most 1", 1.0, "easy"
    )
    less = each(lambda s: s["unidle"].allocation - s["firstfit"].allocation)
    yield least("allocation less first fit's", "points", less, "at least -0.3", -ALLOCATION_LESS, "firstfit")
    true = each(lambda s: s["unidle, true times"].mean_s / s["unidle"].mean_s)
    yield most(
        "mean completion with true times over that with learned ones", "ratio", true, "at most 1.005", NOISE
    )
    firm = each(lambda s: s["unidle, cannot stop"].mean_s / s["firstfit"].mean_s)
    what = "jobs that cannot be stopped: mean completion over first fit's"
    yield most(what, "ratio", firm, "at most 1.005", NOISE, "firstfit")
    yield most(
        "CPU time of a replay", "s", each(lambda s: s["unidle"].cpu_s), "at most 5 for 2,000 jobs", 5.0
    )
    for peer in ("las", "qssf", "easy", "fifo"):
        means = {name: sides["unidle"].mean_s / sides[peer].mean_s for name, sides in cells.items()}
        yield most(f"mean completion over that of {peer}", "ratio", means, "", math.inf, peer)


def _way(sides: dict[str, Figures]) -> float | None:
    """The share of the way; None where the way is short."""
    whole = sides["firstfit"].mean_s - sides["sjf-true"].mean_s
    if whole <= FAR * sides["firstfit"].mean_s:
        return None
    return (sides["firstfit"].mean_s - sides["unidle"].mean_s) / whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("--loads", nargs="*", type=float, default=list(LOADS))
    parser.add_argument("--jobs", type=int, default=JOBS_MOST, help="the first jobs of each file; 0: all")
    parser.add_argument("--order", choices=get_args(Order), default="predicted", help="the order of unidle")
    parser.add_argument("--workers", type=int, default=2, help="replays at once")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness of the replays")
    parser.add_argument("--bounds", nargs="*", type=float, default=[3.0, 6.0, 12.0, 24.0, 48.0, 96.0])


if __name__ == "__main__":
    main("queue_order", rows, add_arguments)
