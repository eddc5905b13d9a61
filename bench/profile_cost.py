"""What a look costs: in the kernel, in the agent, and in the steps of the process that is looked at, compared with other profilers.

One training process with steps of some 60 ms; all tools look at it in turn, in random order, ours three times as often, each between two stretches
in which nobody looks. The steps' mean against the mean of both stretches is one value; a row is the middle of a tool's values
(Hodges and Lehmann: the median of all pairs' means) with its 95 % interval (bootstrap). A tool's start is not in it. Step times of a loaded machine
show how the kernel shares out processors; processor time does not. The in-kernel cost is the kernel's own count of the programs' run time (bpf_stats).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator

from _profiled import HZ, OURS, Looked, Tool, answer, bare, interval, looked, peers, training
from _table import Row, main

KERNEL_GOAL_PERCENT = 0.5
AGENT_GOAL_PERCENT = 1.0  # of a core, at 100 samples a second
MEMORY_GOAL_MB = 100
SLOWDOWN_GOAL_PERCENT = 2.0
LEAST_VALUES = 3  # fewer give no interval
OFTEN = 3  # looks of ours for one of each peer
DEFAULT_LOOK_S = 10.0
Values = dict[str, list[float]]


def rows(given: argparse.Namespace) -> Iterator[Row]:
    load = os.getloadavg()[0]
    others, absent = peers()
    tools = [OURS, *others]
    took: Values = {tool.name: [] for tool in tools}
    used: Values = {tool.name: [] for tool in tools}
    costs: dict[str, list[Looked]] = {tool.name: [] for tool in tools}
    pace = []
    with training("--batch", str(given.batch)) as target:
        told, _ = answer(target.pid, 2 if given.quick else DEFAULT_LOOK_S)
        if told["quality"]["bpf_cpu_pct"] is None:
            sys.exit(f"tier {told['tier']} has no programs in the kernel: run as root where eBPF loads")
        looked(others[0], target, 0.5)  # torch.profiler's first start loads what later ones have
        before = bare(target, given.seconds)
        for tool in _turns(tools, 1 if given.quick else given.rounds, 1 if given.quick else OFTEN):
            found = looked(tool, target, given.seconds)
            after = bare(target, given.seconds)
            if not (before and found.steps and after):
                sys.exit(f"no step was done in {given.seconds} s: give a longer --seconds")
            usual = [*before, *after]
            pace.append(statistics.fmean(step.took_ns for step in usual))
            for which, column in (("took_ns", took), ("cpu_ns", used)):
                ratio = _mean(found, which) / _mean(Looked(steps=usual), which)
                column[tool.name].append(100 * (ratio - 1))
            costs[tool.name].append(found)
            before = after
    how = f"measured here, looks of {given.seconds:g} s in turn, steps of {statistics.median(pace) / 1e6:.0f} ms, load before {load:.1f}"
    yield from _own(told, costs[OURS.name], how)
    yield from _processor(costs, absent, how)
    yield from _slowdown("steps take longer", took, absent, how)
    yield from _slowdown("steps take more processor time", used, absent, how)


def _turns(tools: list[Tool], rounds: int, often: int) -> Iterator[Tool]:
    chance = random.Random(0)
    for _ in range(rounds):
        once = [OURS] * often + [tool for tool in tools if tool is not OURS]
        yield from chance.sample(once, len(once))


def _mean(found: Looked, which: str) -> float:
    return statistics.fmean(getattr(step, which) for step in found.steps)


def _own(told: dict[str, object], mine: list[Looked], how: str) -> Iterator[Row]:
    """What the kernel and the agent count of themselves."""
    kernel = [look.wrote["quality"]["bpf_cpu_pct"] for look in mine]
    seen = [_rate(look.wrote["quality"]["samples"], look.wrote) for look in mine]
    cost = statistics.median(kernel)
    text = f"{how}; bpf_stats, median of {len(mine)}, most {max(kernel):.3f}; {statistics.median(seen):.0f} samples/s of one busy thread at {HZ} Hz"
    yield Row("in-kernel cost, one busy thread", "% of a CPU", round(cost, 3), goal="<= 0.5 %", holds=cost <= KERNEL_GOAL_PERCENT, how=text)  # fmt: skip
    each = [100 * look.cpu_pct / max(rate, 1) for look, rate in zip(mine, seen, strict=True)]
    steady = statistics.median(each)
    text = f"{how}; its threads' run time, median of {len(mine)}, most {max(each):.2f}"
    yield Row("agent, per 100 samples/s, once it runs", "% of a core", round(steady, 3), goal="<= 1 %", holds=steady <= AGENT_GOAL_PERCENT, how=text)  # fmt: skip
    quality = told["quality"]
    assert isinstance(quality, dict)
    rate = _rate(quality["samples"], told)
    whole = 100 * quality["agent_cpu_pct"] / max(rate, 1)
    text = f"measured here, its own count in one look: {quality['agent_cpu_pct']:.2f} % at {rate:.0f} samples/s, reading of symbols included"
    yield Row(f"agent, per 100 samples/s, the first {DEFAULT_LOOK_S:g} s", "% of a core", round(whole, 3), goal="<= 1 %", holds=whole <= AGENT_GOAL_PERCENT, how=text)  # fmt: skip
    memory = max(look.rss_mb for look in mine)
    yield Row("agent's memory, at most (RSS)", "MB", round(memory, 1), goal="<= 100 MB", holds=memory <= MEMORY_GOAL_MB, how=how)  # fmt: skip
    lost = sum(look.wrote["quality"]["drops"] for look in mine)
    total = sum(look.wrote["quality"]["samples"] for look in mine)
    yield Row("samples lost in all looks", "samples", lost, goal="0", holds=lost == 0, how=f"{how}; {total} samples")  # fmt: skip


def _rate(samples: int, told: dict[str, object]) -> float:
    """Samples a second, of a profile or of the command's JSON."""
    seconds = told.get("seconds")
    if not isinstance(seconds, int | float):
        start, end = told["start_ns"], told["end_ns"]
        assert isinstance(start, int)
        assert isinstance(end, int)
        seconds = (end - start) / 1e9
    return samples / seconds


def _processor(costs: dict[str, list[Looked]], absent: list[str], how: str) -> Iterator[Row]:
    mine = statistics.median(look.cpu_pct for look in costs[OURS.name])
    what, unit = "profiler's own processor time, once it runs", "% of a core"
    for name, looks in costs.items():
        if name not in (OURS.name, "torch.profiler"):
            peer = statistics.median(look.cpu_pct for look in looks)
            yield Row(what, unit, round(mine, 2), round(peer, 2), name, peer / mine if mine else None, how=how)  # fmt: skip
    for name in absent:
        yield Row(what, unit, round(mine, 2), peer_name=f"{name}: not here", how=how)


def _slowdown(what: str, values: Values, absent: list[str], how: str) -> Iterator[Row]:
    own = values[OURS.name]
    mine, low, high = interval(own)
    enough = len(own) >= LEAST_VALUES
    told = f"{how}; {len(own)} looks: {mine:+.2f} % ({low:+.2f} to {high:+.2f})"
    holds = high <= SLOWDOWN_GOAL_PERCENT if enough else None
    yield Row(f"{what}: upper bound of the 95 % interval", "%", round(high, 2), goal="<= 2 %", holds=holds, how=told)  # fmt: skip
    for name, other in values.items():
        if name == OURS.name:
            continue
        peer, below, above = interval(other)
        text = f"{told}; peer, {len(other)} looks: {peer:+.2f} % ({below:+.2f} to {above:+.2f})"
        if low <= above and below <= high:
            text += "; the intervals overlap"
        beats = mine <= peer if enough and len(other) >= LEAST_VALUES else None
        yield Row(what, "%", round(mine, 2), round(peer, 2), name, (100 + peer) / (100 + mine), "not above the peer", beats, text)  # fmt: skip
    for name in absent:
        yield Row(what, "%", round(mine, 2), peer_name=f"{name}: not here", how=told)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=4, help=f"looks of each peer; of ours {OFTEN} times as many"
    )
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each stretch")
    parser.add_argument("--batch", type=int, default=48, help="of the training process: longer steps")
    parser.add_argument("--quick", action="store_true", help="one look of each tool, to try it")


if __name__ == "__main__":
    main("profile_cost", rows, add_arguments)
