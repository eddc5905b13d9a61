"""What watching a rank costs: the scanner per byte of output, unidle.rank per call.

The scanner's peer is the plain way to do it: one regular expression, tried on each line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _table import Row, main
from unidle.engine.local.ranks.supervisor.progress import Scanner

CHUNK_BYTES = 256 * 1024  # what the supervisor reads at once
RUNS = 5
LOG_LINE = b"2026-01-01 12:00:00,123 INFO some.module worker 17 fetched 1234 items from queue in 0.123 s\n"


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    size = arguments.mb * 1_000_000
    source = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))
    texts = {
        "log lines": LOG_LINE,
        "Python source": source,
        "random bytes": os.urandom(1_000_000),
    }
    for name, text in texts.items():
        data = (text * (size // len(text) + 1))[:size]
        yield throughput(f"output without a step: {name}", data, None, goal_mb_s=100)
    steps = b"".join(b"iter %d: loss 2.1234, time 50.12ms, mfu 1.20%%\n" % n for n in range(size // 48))
    yield throughput("flood of step lines", steps, None, goal_mb_s=None)
    data = (LOG_LINE * (size // len(LOG_LINE) + 1))[:size]
    yield throughput("log lines, a pattern of the job's own", data, r"^step (\d+)", goal_mb_s=None)
    yield from helper()


def throughput(what: str, data: bytes, pattern: str | None, goal_mb_s: int | None) -> Row:
    """Processor time of the scanner over ``data``, the best of some runs."""

    def scan() -> None:
        scanner = Scanner(pattern)
        for start in range(0, len(data), CHUNK_BYTES):
            scanner.feed("stdout", data[start : start + CHUNK_BYTES], start)

    ours = len(data) / best_s(scan) / 1e6
    peer = len(data) / plain_s(data) / 1e6
    return Row(
        what=what,
        unit="MB/s of one core",
        ours=ours,
        peer=peer,
        peer_name="re.search per line, nanoGPT only",
        ratio=ours / peer,
        goal=f"at least {goal_mb_s}" if goal_mb_s else None,
        holds=ours >= goal_mb_s if goal_mb_s else None,
        how=f"measured here, best of {RUNS}, {len(data) // 1_000_000} MB",
    )


def best_s(work: Callable[[], object]) -> float:
    """Processor time of this process, the least of some runs."""
    taken = []
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def plain_s(data: bytes) -> float:
    """Processor time of one search per line, for nanoGPT's lines alone."""

    def scan() -> None:
        search = re.compile(rb"iter (\d+): loss").search
        for start in range(0, len(data), CHUNK_BYTES):
            for line in data[start : start + CHUNK_BYTES].split(b"\n"):
                search(line)

    return best_s(scan)


HELPER = """
import os, sys, time
read, write = os.pipe()
os.set_blocking(read, False)
if sys.argv[1] == "present":
    os.environ["UNIDLE_RANK_FD"] = f"{write}:{os.fstat(write).st_ino}"
begun = time.perf_counter()
import unidle.rank as rank
imported = time.perf_counter() - begun
def drain():
    try:
        while os.read(read, 1 << 20): pass
    except BlockingIOError:
        pass
def step(): rank.step()
def wait():
    with rank.data_wait(): pass
def cost(call, drained):
    best = 1.0
    for _ in range(200):
        begun = time.perf_counter()
        for _ in range(300): call()
        best = min(best, (time.perf_counter() - begun) / 300)
        if drained: drain()
    return best * 1e6
print(imported * 1e3, cost(step, True), cost(wait, True), cost(step, False))
"""


def helper() -> Iterator[Row]:
    """unidle.rank in a process of its own; the peer is a flushed print to the null device."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    costs = {}
    for state in ("present", "absent"):
        runs = [
            subprocess.run(
                [sys.executable, "-c", HELPER, state],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(RUNS)
        ]
        costs[state] = [
            min(column) for column in zip(*(map(float, r.stdout.split()) for r in runs), strict=True)
        ]
    printed = print_us()
    how = f"measured here, best of {RUNS} processes"
    goals = {"import unidle.rank": 2.0, "rank.step()": 5.0}
    names = ("import unidle.rank", "rank.step()", "with rank.data_wait()", "rank.step(), pipe full")
    for name, ours in zip(names, costs["present"], strict=True):
        goal = goals.get(name)
        unit = "ms" if name.startswith("import") else "us"
        called = name == "rank.step()"
        yield Row(
            what=name,
            unit=unit,
            ours=ours,
            peer=printed if called else None,
            peer_name="print, flushed" if called else None,
            ratio=printed / ours if called else None,
            goal=f"less than {goal:g}" if goal else None,
            holds=ours < goal if goal else None,
            how=how,
        )
    yield Row(what="rank.step() without unidle", unit="us", ours=costs["absent"][1], how=how)


def print_us() -> float:
    """A flushed print, which is what a script does today to say how far it is."""
    with open(os.devnull, "w") as sink:
        calls = 2000
        return best_s(lambda: [print(f"step {n}", file=sink, flush=True) for n in range(calls)]) / calls * 1e6


if __name__ == "__main__":
    main(
        "progress",
        rows,
        lambda parser: parser.add_argument("--mb", type=int, default=20, help="megabytes per kind of output"),
    )
