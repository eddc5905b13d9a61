"""The loop on the simulated engine: job life cycles per second of wall time, at 1,000 nodes of 8 devices.

A life cycle is all of it: submission, decision, placement, start, the ranks' marks, end, ledger. Next to a
fleet at 40 % load: one whose gangs often fail and are retried, and one with a long queue all the time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from _table import Row, main
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, Workload, seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Restart
from unidle.ledger.current import check_batches
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore
from unidle.view.source import ledger_source
from unidle.view.state import View

NODES, PER_NODE = 1_000, 8
GOAL_PER_S = 2_000.0
GANGS = (1, 1, 1, 2, 2, 4, 8)
MEAN_WORK_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    what: str
    of_capacity: float
    failures_per_rank_hour: float = 0.0
    waiting: int = 0  # jobs in the queue from the first moment on, beyond what fills the fleet


LOADS = (
    Load("jobs/s at 40 % load", 0.4, 0.01),
    Load("jobs/s at 40 % load, a failure every 5 h of a rank", 0.4, 0.2),
    Load("jobs/s with 10,000 jobs waiting", 1.0, 0.01, waiting=10_000),
)


def fleet(nodes: int) -> Fleet:
    names = [f"n{k}" for k in range(nodes)]
    return Fleet(nodes=tuple(Node(n, "", tuple(Device(f"{n}/{i}", n, i, "gpu") for i in range(PER_NODE))) for n in names))  # fmt: skip


def arrivals(load: Load, nodes: int, jobs: int, seed: int = 1) -> list[Arrival]:
    """Poisson arrivals that fill ``load.of_capacity`` of the fleet, and the queue of the first moment."""
    chance = random.Random(seed)
    devices_per_job = sum(GANGS) / len(GANGS)
    per_s = load.of_capacity * nodes * PER_NODE / devices_per_job / MEAN_WORK_S
    at_once = int(nodes * PER_NODE / devices_per_job) + load.waiting if load.waiting else 0
    at_ns, made = 1, []
    for k in range(jobs):
        if k >= at_once:
            at_ns += int(chance.expovariate(per_s) * S)
        spec = JobSpec(("train",), ranks=chance.choice(GANGS), restart=Restart(max=1_000, backoff_s=5.0))
        made.append(Arrival(at_ns, f"j{k}", spec))
    return made


def workload(load: Load) -> Workload:
    return seeded(1, mean_work_s=MEAN_WORK_S, failures_per_rank_hour=load.failures_per_rank_hour)


def measure(load: Load, nodes: int, jobs: int) -> tuple[float, View]:
    """Seconds that the simulation took, and its final view, whose ledger adds up."""
    store, given = MemoryStore(), arrivals(load, nodes, jobs)
    begin = time.perf_counter()
    view = simulate(store, fleet(nodes), given, workload(load), FirstFit())
    took_s = time.perf_counter() - begin
    ended = sum(job.state == "succeeded" for job in view.jobs.values())
    source = ledger_source(store, view)
    problems = check_batches(source.batches(source.extent(), detail=True))
    if ended != jobs or problems:
        raise SystemExit(f"{load.what}: {ended} of {jobs} jobs succeeded; {problems}")
    return took_s, view


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    for load in LOADS:
        jobs = max(arguments.jobs, load.waiting * 2)
        runs = sorted(
            (measure(load, arguments.nodes, jobs) for _ in range(arguments.runs)), key=lambda run: run[0]
        )
        took_s, view = runs[len(runs) // 2]
        attempts = sum(len(job.attempts) for job in view.jobs.values())
        rate = jobs / took_s
        yield Row(
            load.what, "jobs/s", rate, ratio=None, goal=f"at least {GOAL_PER_S:,.0f} ({rate / GOAL_PER_S:.2f}x)",
            holds=rate >= GOAL_PER_S,
            how=f"measured here, median of {len(runs)} runs ({jobs / runs[-1][0]:,.0f} to {jobs / runs[0][0]:,.0f}),"
            f" {jobs:,} jobs, {attempts:,} attempts, {view.seq:,} events, {arguments.nodes:,} nodes x {PER_NODE}",
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)


if __name__ == "__main__":
    main("loop", rows, add_arguments)
