"""Replay of a synthetic trace of 10,000 jobs at 1,000 nodes of 8 GPUs: jobs per second, memory, reading.

Each replay runs in a process of its own, so that its memory is its own; its ledger is checked to the
nanosecond. Next to plain policies: one replay with node faults, checkpoints and gangs that share uplinks.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _table import Row, main
from unidle.control.replay.outcome import outcome_of
from unidle.control.replay.workload import Assumptions, replay, scenario_of
from unidle.files.trace import COLUMNS, load_trace
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.ledger.current import check_batches
from unidle.store.memory import ForgetfulStore
from unidle.view.source import ledger_source

JOBS, NODES, PER_NODE, PER_LEAF = 10_000, 1_000, 8, 16
GOAL_PER_S, GOAL_MIB = 1_000.0, 1_024.0
GANGS = (1, 1, 1, 1, 2, 2, 4, 8, 8, 16, 64)
MEAN_S, LOAD = (
    2_700.0,
    1.1,
)  # of the durations as they are drawn; more than the fleet holds, so that jobs wait
EVENTFUL = Assumptions(checkpoint_every_s=900.0, checkpoint_s=5.0, comm_ppm=200_000, mtbf_s=30 * 86_400.0)


def fleet(nodes: int) -> Fleet:
    leaves = [Tier(f"l{k}", "leaf", "spine") for k in range(-(-nodes // PER_LEAF))]
    names = [f"n{k}" for k in range(nodes)]
    return Fleet(
        (Tier("spine", "spine"), *leaves),
        tuple(
            Node(n, f"l{k // PER_LEAF}", tuple(Device(f"{n}/{i}", n, i, "gpu", "H100") for i in range(PER_NODE)))
            for k, n in enumerate(names)
        ),
    )  # fmt: skip


def write_trace(path: Path, jobs: int, nodes: int, seed: int = 1, queues: str = "abc") -> None:
    """Poisson arrivals that ask for ``LOAD`` of the fleet; lognormal durations; queues by letter.

    A rank holds up to a node's GPUs, so that where jobs are put decides who fits later.
    """
    chance = random.Random(seed)
    per_s = LOAD * nodes * PER_NODE / (sum(GANGS) / len(GANGS)) / MEAN_S
    at_s, lines = 0.0, [",".join(COLUMNS)]
    for k in range(jobs):
        at_s += chance.expovariate(per_s)
        gpus = chance.choice(GANGS)
        duration_s = min(chance.lognormvariate(7.5, 1.1), 14_400.0)
        queue, low = chance.choice(queues), chance.choice(("true", "false"))
        lines.append(f"j{k},{at_s:.3f},{duration_s:.3f},{gpus},{gpus * 4000},{gpus * 16384},H100,{queue},0,{low},{max(gpus // PER_NODE, 1)}")  # fmt: skip
    path.write_text("\n".join(lines) + "\n")


def measure(trace: str, nodes: int, policy: str, eventful: bool) -> dict[str, Any]:
    """One replay in this process."""
    there = fleet(nodes)
    begin = time.perf_counter()
    scenario = scenario_of(load_trace(trace), there)
    read_s = time.perf_counter() - begin
    store = ForgetfulStore()
    begin = time.perf_counter()
    view = replay(scenario, policy, store, EVENTFUL if eventful else None)
    replay_s = time.perf_counter() - begin
    begin = time.perf_counter()
    source = ledger_source(store, view)
    found = outcome_of(view, source)
    figures_s = time.perf_counter() - begin
    problems = check_batches(source.batches(source.extent()))
    if problems or found.succeeded != found.jobs:
        raise SystemExit(f"{policy}: {found.succeeded} of {found.jobs} jobs succeeded; {problems}")
    return {
        "jobs": found.jobs, "events": view.seq, "read_s": read_s, "replay_s": replay_s, "figures_s": figures_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "restarts": found.restarts,
        "allocation": 100 * found.allocation, "p95_s": found.queueing.quantiles_s[1],
        "lost_h": found.lost_ns / 3.6e12,
    }  # fmt: skip


def _apart(trace: Path, nodes: int, policy: str, eventful: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", str(trace), str(nodes), policy, str(int(eventful))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    nodes = arguments.nodes
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace.csv"
        write_trace(trace, arguments.jobs, nodes)
        for policy, eventful in (
            ("firstfit", False),
            ("bestfit", False),
            ("spread", False),
            ("firstfit", True),
        ):
            runs = [_apart(trace, nodes, policy, eventful) for _ in range(arguments.runs)]
            what = policy + (", faults, checkpoints and shared uplinks" if eventful else "")
            yield from _rows(what, runs, nodes, None if eventful else GOAL_PER_S)
    reads = sorted(run["read_s"] for run in runs)
    rate = runs[0]["jobs"] / reads[len(reads) // 2]
    yield Row(
        "trace lines read and checked", "jobs/s", rate, how=f"measured here, median of {len(reads)} runs"
    )


def _rows(what: str, runs: list[dict[str, Any]], nodes: int, goal: float | None) -> Iterator[Row]:
    runs = sorted(runs, key=lambda run: run["replay_s"])
    run = runs[len(runs) // 2]
    rate = run["jobs"] / run["replay_s"]
    yield Row(
        f"replay: {what}", "jobs/s", rate, goal=f"at least {goal:,.0f} ({rate / goal:.2f}x)" if goal else None,
        holds=rate >= goal if goal else None,
        how=f"measured here, median of {len(runs)} runs ({run['jobs'] / runs[-1]['replay_s']:,.0f} to"
        f" {run['jobs'] / runs[0]['replay_s']:,.0f}), {run['jobs']:,} jobs, {run['events']:,} events, {nodes:,} nodes x"
        f" {PER_NODE}; modelled: allocation {run['allocation']:.1f} %, queueing p95 {run['p95_s']:,.0f} s,"
        f" {run['restarts']:,} restarts, {run['lost_h']:,.0f} GPU-h lost",
    )  # fmt: skip
    yield Row(
        f"its figures and full ledger: {what}", "s", run["figures_s"],
        how=f"measured here, {len(runs)} runs",
    )  # fmt: skip
    peak = max(r["peak_mib"] for r in runs)
    yield Row(
        f"its peak memory: {what}", "MiB", peak, goal=f"at most {GOAL_MIB:,.0f} ({GOAL_MIB / peak:.2f}x)",
        holds=peak <= GOAL_MIB, how=f"measured here, resident, most of {len(runs)} runs",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--runs", type=int, default=3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "1")))
    else:
        main("replay", rows, add_arguments)
