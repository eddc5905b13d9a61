"""How long a job waits for unidle before its first instruction, and what `unidle --help` costs.

The peer is torchrun with the same command. Ranks are shells that note the time, and what the
processes above them have used of the processor by then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from _process import TORCHRUN, UNIDLE, environment
from _table import Row, main

# $0: where to write. Field 4 of a process's stat, the second after its name, is its parent.
RANK = """
date +%s%N >"$0/${RANK:-0}.ns"
cat /proc/$PPID/task/*/schedstat >"$0/${RANK:-0}.parent"
read -r stat </proc/$PPID/stat
set -- ${stat##*) }
cat /proc/$2/task/*/schedstat >"$0/${RANK:-0}.grandparent"
"""
START_GOAL_S = 0.5
HELP_GOAL_S = 0.06  # measured: 0.026 s


@dataclass(frozen=True, slots=True)
class Start:
    """One start, until the last rank's first instruction."""

    wall_s: float
    cpu_s: float


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    ranks, tries = arguments.ranks, arguments.tries
    command = ("--", "/bin/sh", "-c", RANK)
    torchrun = (*TORCHRUN, f"--nproc-per-node={ranks}", "--no-python", *command[1:])
    with tempfile.TemporaryDirectory() as place:
        unidle = (*UNIDLE, "run", "--ranks", str(ranks), "--store", f"{place}/store.db", "--json", *command)
        start(unidle, ranks, supervised=True)  # byte code and file caches
        ours = [start(unidle, ranks, supervised=True) for _ in range(tries)]
        start(torchrun, ranks, supervised=False)
        peers = [start(torchrun, ranks, supervised=False) for _ in range(max(1, tries // 2))]
    what = f"`unidle run` to the first instruction of the last of {ranks} ranks"
    yield _row(f"{what}: elapsed", [s.wall_s for s in ours], [s.wall_s for s in peers], START_GOAL_S)
    yield _row(f"{what}: processor", [s.cpu_s for s in ours], [s.cpu_s for s in peers], None)
    ours_help = [used_s((*UNIDLE, "--help")) for _ in range(tries)]
    peers_help = [used_s((*TORCHRUN, "--help")) for _ in range(max(1, tries // 2))]
    yield _row("`unidle --help`: processor", ours_help, peers_help, HELP_GOAL_S)


def start(command: Sequence[str], ranks: int, *, supervised: bool) -> Start:
    """Run a command whose ranks are ``RANK``.

    ``supervised``: each rank has a process of its own above it and below the launcher.
    """
    with tempfile.TemporaryDirectory() as place:
        begun_ns = time.time_ns()
        subprocess.run([*command, place], env=environment(), capture_output=True, check=True)
        seen = Path(place)
        last = max(range(ranks), key=lambda rank: int((seen / f"{rank}.ns").read_text()))
        wall_s = (int((seen / f"{last}.ns").read_text()) - begun_ns) / 1e9
        used = seconds(seen / f"{last}.parent")
        if supervised:
            used = sum(seconds(seen / f"{rank}.parent") for rank in range(ranks))
            used += seconds(seen / f"{last}.grandparent")
        return Start(wall_s, used)


def seconds(path: Path) -> float:
    """Processor time in a listing of the threads' schedstat, one line each."""
    return sum(int(line.split()[0]) for line in path.read_text().splitlines()) / 1e9


def used_s(command: Sequence[str]) -> float:
    """Processor time of a command, in user and kernel."""
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def _row(what: str, ours: list[float], peers: list[float], goal_s: float | None) -> Row:
    mine, peer = statistics.median(ours), statistics.median(peers)
    return Row(
        what=what,
        unit="s",
        ours=mine,
        peer=peer,
        peer_name="torchrun",
        ratio=peer / mine,
        goal=f"at most {goal_s:g}" if goal_s else None,
        holds=mine <= goal_s if goal_s else None,
        how=f"measured here, median of {len(ours)} ({min(ours):.2f} to {max(ours):.2f}); peer of {len(peers)}",
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tries", type=int, default=6)


if __name__ == "__main__":
    main("start", rows, _arguments)
