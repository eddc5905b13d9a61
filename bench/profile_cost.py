"""What a look costs: in the kernel, in the agent, and in the steps of the process that is looked at, beside other profilers.

One training process; all tools look at it in turn, in random order, each right after a stretch in which nobody looks.
Such a pair gives one ratio of mean step times; the row is the mean over pairs with its 95 % interval (bootstrap). A tool's start
(--settle-s) is not in it. On a loaded machine step times show how the kernel shares out processors; processor time does not. The in-kernel cost is the kernel's own count of the programs' run time (bpf_stats).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator

from _profiled import HZ, Looked, Tool, answer, bare, interval, looked, ours, peers, training
from _table import Row, main

KERNEL_GOAL_PERCENT = 0.5
AGENT_GOAL_PERCENT = 1.0  # of a core, at 100 samples a second
MEMORY_GOAL_MB = 100
SLOWDOWN_GOAL_PERCENT = 2.0
LEAST_PAIRS = 3  # fewer give no interval


def rows(given: argparse.Namespace) -> Iterator[Row]:
    load = os.getloadavg()[0]
    with training() as target:
        yield from _kernel(target.pid, given.seconds, load)
        tools = [Tool("unidle profile", ours), *peers()]
        ratios: dict[str, list[float]] = {tool.name: [] for tool in tools}
        used: dict[str, list[float]] = {tool.name: [] for tool in tools}
        costs: dict[str, list[Looked]] = {tool.name: [] for tool in tools}
        pace = []
        chance = random.Random(0)
        for _ in range(given.pairs):
            for tool in chance.sample(tools, len(tools)):
                before = bare(target, given.seconds)
                found = looked(tool, target, given.settle_s, given.seconds)
                after = bare(target, given.seconds)
                if not (before and found.steps and after):
                    sys.exit(f"no step was done in {given.seconds} s: give a longer --seconds")
                others = [*before, *after]
                pace.append(statistics.fmean(step.took_ns for step in others))
                for which, column in (("took_ns", ratios), ("cpu_ns", used)):
                    usual = statistics.fmean(getattr(step, which) for step in others)
                    seen = statistics.fmean(getattr(step, which) for step in found.steps)
                    column[tool.name].append(100 * (seen / usual - 1))
                costs[tool.name].append(found)
    how = f"measured here, {given.pairs} pairs of {given.seconds:g} s, steps of {statistics.fmean(pace) / 1e6:.0f} ms, load before {load:.1f}"
    yield from _agent(costs, how)
    yield from _slowdown("steps take longer", ratios, how)
    yield from _slowdown("steps take more processor time", used, how)


def _kernel(pid: int, seconds: float, load: float) -> Iterator[Row]:
    told, _ = answer(pid, max(seconds, 5))
    cost = told["quality"]["bpf_cpu_pct"]
    if cost is None:
        sys.exit(f"tier {told['tier']} has no programs in the kernel: run as root where eBPF loads")
    how = f"measured here, bpf_stats, {told['quality']['samples']} samples at {HZ} Hz, one busy thread, load {load:.1f}"
    yield Row("in-kernel cost, one busy thread", "% of a CPU", round(cost, 3), goal="<= 0.5 %", holds=cost <= KERNEL_GOAL_PERCENT, how=how)  # fmt: skip
    seen = told["quality"]["samples"] / told["seconds"]
    agent = told["quality"]["agent_cpu_pct"] or 0.0
    each = 100 * agent / max(seen, 1)
    how = f"measured here, its own count: {agent:.2f} % at {seen:.0f} samples/s"
    yield Row("agent, per 100 samples/s", "% of a core", round(each, 3), goal="<= 1 %", holds=each <= AGENT_GOAL_PERCENT, how=how)  # fmt: skip


def _agent(costs: dict[str, list[Looked]], how: str) -> Iterator[Row]:
    mine = costs["unidle profile"]
    memory = max(look.rss_mb for look in mine)
    yield Row("profiler's memory while it looks (RSS)", "MB", round(memory, 1), goal="<= 100 MB", holds=memory <= MEMORY_GOAL_MB, how=how)  # fmt: skip
    cpu = statistics.fmean(look.cpu_pct for look in mine)
    for name, others in costs.items():
        if name in ("unidle profile", "torch.profiler"):
            continue
        peer = statistics.fmean(look.cpu_pct for look in others)
        yield Row("profiler's own processor", "% of a core", round(cpu, 2), round(peer, 2), name, peer / cpu if cpu else None, how=how)  # fmt: skip


def _slowdown(what: str, ratios: dict[str, list[float]], how: str) -> Iterator[Row]:
    mean, low, high = interval(ratios["unidle profile"])
    told = f"{how}; 95 % interval {low:+.2f} to {high:+.2f} %"
    holds = high <= SLOWDOWN_GOAL_PERCENT if len(ratios["unidle profile"]) >= LEAST_PAIRS else None
    yield Row(f"{what}, upper bound", "%", round(high, 2), goal="<= 2 %", holds=holds, how=told)
    for name, values in ratios.items():
        if name == "unidle profile":
            continue
        peer, below, above = interval(values)
        told = f"{how}; 95 % intervals {low:+.2f} to {high:+.2f}, peer {below:+.2f} to {above:+.2f}"
        beats = None if holds is None else low <= above  # unless it is surely worse
        yield Row(
            what, "%", round(mean, 2), round(peer, 2), name, goal="not above the peer", holds=beats, how=told
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=6, help="looks of each tool")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each stretch")
    parser.add_argument("--settle-s", type=float, default=4.0, help="time for a tool's start")


if __name__ == "__main__":
    main("profile_cost", rows, add_arguments)
