"""How faults of a real PyTorch job are named, and how fast it goes on: drills of examples/drill, beside torchrun.

Four gloo ranks (DDP, float64) on three nodes with networks of their own, copies of their state in memory at each step.
Every try is one fault in a run; after each, the next comes some steps after the gang is back. Needs root.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from _process import TORCHRUN, descendants, environment, started, until
from _table import Row, main
from unidle.drill import fail
from unidle.drill.conduct import Report, conduct
from unidle.drill.phases import Outcome
from unidle.drill.result import Cache
from unidle.files.drill import Drill, Fault, load_drill
from unidle.jobs import Restart

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "drill"
RANKS = 4
FIRST, APART = 20, 13  # steps: of the first fault, and between two


def rows(given: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:  # runs with equal steps share one undisturbed run
        yield from _all(given, Cache(Path(place)))


def _all(given: argparse.Namespace, cache: Cache) -> Iterator[Row]:
    ranks = list(itertools.islice(itertools.cycle(range(RANKS)), given.tries))
    kills = drilled(
        cache, [fail.rank(rank).at_step(step) for rank, step in zip(ranks, steps(given.tries), strict=True)]
    )
    yield from _kills(kills, given)
    stops = drilled(
        cache, [fail.rank(rank).stop().at_step(s) for rank, s in zip(ranks, steps(given.tries), strict=True)]
    )
    yield from _named("a stopped rank", "torchrun, ft_launcher, nvrx: 0", stops, 5.0)
    nodes = list(itertools.islice(itertools.cycle(["n2", "n3"]), given.tries))
    cuts = drilled(
        cache, [fail.node(node).cut().at_step(s) for node, s in zip(nodes, steps(given.tries), strict=True)]
    )
    yield from _named("a node that is cut off", "torchrun, ft_launcher, nvrx: 0", cuts, 10.0)
    yield from _warm(cache, kills, given)


def steps(tries: int) -> range:
    return range(FIRST, FIRST + APART * tries, APART)


def drilled(cache: Cache, faults: Sequence[Fault], *, warm: bool = True) -> Report:
    """One run of the example with these faults."""
    base = load_drill(EXAMPLE / "drill.yaml")
    total = FIRST + APART * (len(faults) + 1)
    command = tuple(str(total) if word == "320" else word for word in base.job.command)
    job = replace(base.job, command=command, restart=Restart(1000, 0.0, ("any",), warm))
    drill = Drill(job, base.nodes, base.devices, tuple(faults), result=base.result, timeout_s=3000)
    report = conduct(drill, cache, lambda text: print(text, file=sys.stderr))
    print(f"{report.state}, {report.result.text if report.result else 'no result'}", file=sys.stderr)
    return report


def _kills(report: Report, given: argparse.Namespace) -> Iterator[Row]:
    back = [one for one in report.outcomes if one.ns.caught_up is not None]
    how = f"measured here, every rank in turn, {APART} steps apart, in one run; result {report.result.text if report.result else 'missing'}"
    whole = report.survived and len(back) == given.tries
    yield Row(
        "gangs that came back after a rank was killed", f"of {given.tries}", len(back), goal="all, with the result of an undisturbed run",
        holds=whole, how=how,
    )  # fmt: skip
    yield from _named("a killed rank", None, report, 1.0)
    worst = report.lost_steps / given.tries
    yield Row("steps done again per killed rank", "steps", worst, goal="at most 1", holds=worst <= 1, how=how)


def _named(what: str, peer: str | None, report: Report, limit_s: float) -> Iterator[Row]:
    right = [one for one in report.outcomes if one.correct]
    count = len(report.outcomes)
    yield Row(
        f"{what}: named right", f"of {count}", len(right), peer_name=peer, goal="all", holds=len(right) == count,
        how="measured here; peer published in no figure, seen in an earlier run",
    ) if peer else Row(
        f"{what}: named right", f"of {count}", len(right), goal="all", holds=len(right) == count, how="measured here"
    )  # fmt: skip
    taken = seconds(report, lambda one: one.ns.verdict)
    if taken:
        yield Row(
            f"{what}: onset to verdict, worst", "s", max(taken), goal=f"at most {limit_s:g} s", holds=max(taken) <= limit_s,
            how=f"measured here, {len(taken)} tries, median {statistics.median(taken):.2f} s",
        )  # fmt: skip


def _warm(cache: Cache, kills: Report, given: argparse.Namespace) -> Iterator[Row]:
    """From the kill to the first step after it: warm, cold, and with torchrun."""
    warm = seconds(kills, lambda one: one.ns.first_step)
    cold_run = drilled(
        cache, [fail.rank(k % RANKS).at_step(s) for k, s in enumerate(steps(given.cold))], warm=False
    )
    cold = seconds(cold_run, lambda one: one.ns.first_step)
    theirs = [t for _ in range(given.peer) if (t := torchrun_s(given.limit_s)) is not None]
    if not warm or not cold:
        return
    middle = statistics.median(warm)
    how = f"measured here, median of {len(warm)} ({min(warm):.2f} to {max(warm):.2f}), peer of "
    yield Row(
        "warm restart, kill to first step", "s", middle, statistics.median(cold), "cold restart", statistics.median(cold) / middle,
        "at most 2 s and 10 times faster", middle <= 2 and statistics.median(cold) / middle >= 10, how + str(len(cold)),
    )  # fmt: skip
    peer = statistics.median(theirs) if theirs else None
    yield Row(
        "warm restart, kill to first step", "s", middle, peer, "torchrun --max-restarts" if theirs else "torchrun: never",
        peer / middle if peer else None, how=f"{how}{len(theirs)} of {given.peer} that came back",
    )  # fmt: skip
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        yield Row(
            "warm restart, kill to first step", "s", middle, None, "ft_launcher: not installed here",
            how="nvidia-resiliency-ext is not among the packages of this environment; 12.8 s in an earlier measurement elsewhere",
        )  # fmt: skip


def seconds(report: Report, stamp: Callable[[Outcome], int | None]) -> list[float]:
    """From each injection to a stamp, for those that have it."""
    stamps = [(one.ns.inject, stamp(one)) for one in report.outcomes]
    return [(t - begun) / 1e9 for begun, t in stamps if begun is not None and t is not None]


def torchrun_s(limit_s: float) -> float | None:
    """From the kill of a rank to the first step after it under torchrun; None where it does not come back."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        job = [str(EXAMPLE / "train.py"), "--steps", "200", "--checkpoints", str(place / "ckpt")]
        command = [*TORCHRUN, "--nproc-per-node", str(RANKS), "--max-restarts", "3", *job]
        env = environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", UNIDLE_HOLD_DIR=name)
        with started(command, place, env) as process:
            out = place / "out"

            def lines() -> int:
                return out.read_text(errors="replace").count("\nstep ")

            if not until(lambda: lines() >= FIRST, limit_s):
                return None
            ranks = [pid for pid, _ in descendants(process.pid) if b"train.py" in _command(pid)]
            os.kill(ranks[-1], signal.SIGKILL)
            begun, before = time.monotonic(), lines()
            time.sleep(0.3)  # lines on their way
            before = lines()
            came = until(lambda: lines() > before or process.poll() is not None, limit_s)
            return time.monotonic() - begun if came and lines() > before else None


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tries", type=int, default=20, help="faults of each kind")
    parser.add_argument("--cold", type=int, default=3, help="restarts without warm processes")
    parser.add_argument("--peer", type=int, default=3, help="tries with torchrun")
    parser.add_argument("--limit-s", type=float, default=90.0)


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode:
        sys.exit("bench/drill.py needs root and iproute2")
    main("drill", rows, options)
