"""`unidle check`: how long the quick tier takes, and how well two rounds of pairs name what is bad."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from _table import Row, main
from unidle.probe.check.bad_pairs import BadPairs, Pair, Wave, first_round, second_round, verdict

RUNS = 7
FLEETS = 400


def rows(given: argparse.Namespace) -> Iterator[Row]:
    yield quick(given.runs)
    for nodes, bad in ((8, 1), (64, 3), (1024, 10), (1024, 100)):
        yield from pairs(nodes, bad, FLEETS if nodes < 1000 else 40)


def quick(runs: int) -> Row:
    """The whole command, start of Python included."""
    times = []
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "unidle", "check", "--json", "--dir", place]
        for _ in range(runs):
            begin = time.perf_counter()
            subprocess.run(command, capture_output=True, check=False)
            times.append(time.perf_counter() - begin)
    middle, worst = statistics.median(times), max(times)
    how = f"measured here, median of {runs}, worst {worst:.2f} s; no GPU: NVML's own start is not in it"
    return Row("quick tier, whole command", "s", middle, goal="< 2 s", holds=middle < 2, how=how)


def pairs(nodes: int, bad: int, fleets: int) -> Iterator[Row]:
    """Random bad nodes, and as many bad links among the good ones that the first round measures."""
    named = wrong = there = measurements = 0
    links_named = links_there = 0
    for seed in range(fleets):
        chance = random.Random(seed)
        names = [f"n{k}" for k in range(nodes)]
        sick = set(chance.sample(names, bad))
        sound = [pair for wave in first_round(names) for pair in wave if sick.isdisjoint(pair)]
        links = {frozenset(pair) for pair in chance.sample(sound, min(bad, len(sound) // 2))}
        found, count = tried(names, sick, links)
        measurements += count
        there += len(sick)
        named += len(sick & set(found.bad_nodes))
        wrong += len(set(found.bad_nodes) - sick) + sum(
            frozenset(link) not in links for link in found.bad_links
        )
        links_there += len(links)
        links_named += sum(frozenset(link) in links for link in found.bad_links)
    what = f"{bad} bad of {nodes} nodes, as many bad links"
    how = f"modelled, {fleets} random fleets, {measurements / fleets / nodes:.2f} measurements a node in two rounds"
    yield Row(
        f"{what}: bad nodes named", "%", 100 * named / there, goal="100 %", holds=named == there, how=how
    )
    yield Row(f"{what}: bad links named", "%", 100 * links_named / links_there, goal="100 %", holds=links_named == links_there, how=how)  # fmt: skip
    yield Row(f"{what}: named wrongly", "nodes or links", wrong, goal="0", holds=wrong == 0, how=how)


def tried(names: list[str], sick: set[str], links: set[frozenset[str]]) -> tuple[BadPairs, int]:
    known: dict[Pair, bool] = {}

    def measure(waves: tuple[Wave, ...]) -> None:
        for pair in (pair for wave in waves for pair in wave):
            known[pair] = sick.isdisjoint(pair) and frozenset(pair) not in links

    measure(first_round(names))
    measure(second_round(names, known))
    return verdict(names, known), len(known)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=RUNS, help="how often the command is run")


if __name__ == "__main__":
    main("check", rows, arguments)
