"""What unidle costs a job that trains: processor, memory, and steps that take longer than under torchrun.

examples/gpt/train.py runs twice at the same time, once under unidle and once under torchrun, and all
of one run, launcher included, stands still (SIGSTOP) while the other one works. Taking turns every
few seconds makes many pairs under the same conditions, free of either run's start; starting both
again (--runs) averages over what differs from one start to the next. The pair's figure is the mean of
the step times that rank 0 prints. Where other work loads the machine, step times also
show how the kernel shares out processors; processor time per step does not.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from _process import TORCHRUN, UNIDLE, cpu_s, descendants, environment, memory_bytes, started, until
from _table import Row, main

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "gpt" / "train.py"
STEP = re.compile(rb"^iter (\d+): .* time ([\d.]+)ms$", re.MULTILINE)
START_LIMIT_S = 300
WARM_STEPS = 30
THAWED_STEPS = 2  # the first spans the freeze, the second finds cold caches
CPU_GOAL_PERCENT = 1.0
MEMORY_GOAL_MB = 120
SLOWDOWN_GOAL_PERCENT = 1.0
RESAMPLES = 5000


@dataclass(slots=True)
class Contestant:
    """One run of the script, and what its turns showed."""

    launcher: int
    output: Path
    ranks: int
    seen: int = 0
    step_s: list[float] = field(default_factory=list)
    launch_cpu_s: list[float] = field(default_factory=list)
    rank_cpu_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    controller_cpu_s: float = 0.0

    @property
    def rank_pids(self) -> list[int]:
        """The ranks, which are what runs the script."""
        return [p for p in self.pids if p != self.launcher and _runs_script(p)]

    @property
    def pids(self) -> list[int]:
        return [self.launcher, *(pid for pid, _ in descendants(self.launcher))]

    def signal(self, number: int) -> None:
        for pid in self.pids:
            os.kill(pid, number)

    def new_steps(self) -> list[float]:
        """Durations, in seconds, of the steps that rank 0 has printed since the last call."""
        text = self.output.read_bytes()
        text = text[: text.rfind(b"\n") + 1]
        found = [float(ms) / 1e3 for _, ms in STEP.findall(text)]
        new, self.seen = found[self.seen :], len(found)
        return new

    def turn(self, turn_s: float) -> None:
        """Work alone for a while."""
        self.signal(signal.SIGCONT)
        until(lambda: len(self.new_steps()) > 0, START_LIMIT_S)
        ranks = self.rank_pids
        others = [pid for pid in self.pids if pid not in ranks]
        before = [sum(map(cpu_s, pids)) for pids in (ranks, others, [self.launcher])]
        begun = time.monotonic()
        time.sleep(turn_s)
        self.wall_s.append(time.monotonic() - begun)
        after = [sum(map(cpu_s, pids)) for pids in (ranks, others, [self.launcher])]
        steps = self.new_steps()[THAWED_STEPS - 1 :]
        self.signal(signal.SIGSTOP)
        if not steps:
            sys.exit(f"no step was done in {turn_s} s: give a longer --turn-s")
        self.step_s.append(statistics.fmean(steps))
        self.steps.append(len(steps) + THAWED_STEPS - 1)
        self.rank_cpu_s.append(after[0] - before[0])
        self.launch_cpu_s.append(after[1] - before[1])
        self.controller_cpu_s += after[2] - before[2]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place, _running(Path(place), arguments.ranks) as (ours, peer):
        for pair in range(arguments.pairs):
            for one in (ours, peer) if pair % 2 else (peer, ours):
                one.turn(arguments.turn_s)
            if sys.stderr.isatty():
                print(f"pair {pair + 1} of {arguments.pairs}", file=sys.stderr)
        memory = _memory(ours), _memory(peer)
    how = (
        f"measured here, {arguments.pairs} turns of {arguments.turn_s:g} s each, "
        f"{sum(ours.steps) / sum(ours.wall_s):.0f} steps/s, load before {load:.1f}"
    )
    yield from _cpu_rows(ours, peer, arguments.ranks, how)
    yield from _memory_rows(*memory, arguments.ranks)
    yield from _slowdown_rows(ours, peer, how)


@contextmanager
def _running(place: Path, ranks: int) -> Iterator[tuple[Contestant, Contestant]]:
    """Both runs, warm and standing still."""
    train = (str(SCRIPT), "--steps", "10000000", "--checkpoint-every", "10000000", "--eval-every", "10000000")
    env = environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    (place / "ours").mkdir()
    (place / "peer").mkdir()
    unidle = (*UNIDLE, "run", "--ranks", str(ranks), "--checkpoint", "checkpoints", "--store", "store.db")
    torchrun = (*TORCHRUN, f"--nproc-per-node={ranks}", *train)
    with started((*unidle, "--json", "--", sys.executable, *train), place / "ours", env) as first:
        log = place / "ours" / "store.db.d" / "runs"
        until(lambda: any(log.glob("*/1/rank0/log")), START_LIMIT_S)
        ours = Contestant(first.pid, next(log.glob("*/1/rank0/log")), ranks)
        _warm(ours)
        with started(torchrun, place / "peer", env) as second:
            peer = Contestant(second.pid, place / "peer" / "out", ranks)
            _warm(peer)
            yield ours, peer


def _warm(one: Contestant) -> None:
    if not until(lambda: one.output.read_bytes().count(b"\niter ") >= WARM_STEPS, START_LIMIT_S):
        sys.exit(f"the job did not begin to train within {START_LIMIT_S} s: see its output")
    assert len(one.rank_pids) == one.ranks, f"{len(one.rank_pids)} processes run the script"
    one.new_steps()
    one.signal(signal.SIGSTOP)


def _runs_script(pid: int) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return str(SCRIPT).encode() in arguments[1:3]


def _memory(one: Contestant) -> tuple[int, int, int]:
    """RSS of the launcher, PSS of the launcher, PSS of it and of all that is neither it nor a rank."""
    ranks = set(one.rank_pids)
    pss = {pid: memory_bytes(pid) for pid in one.pids if pid not in ranks}
    return (*pss[one.launcher], sum(value for _, value in pss.values()))


def _cpu_rows(ours: Contestant, peer: Contestant, ranks: int, how: str) -> Iterator[Row]:
    mine, other = (100 * one.controller_cpu_s / sum(one.wall_s) for one in (ours, peer))
    yield Row(
        what=f"controller while {ranks} ranks train: processor",
        unit="% of one core",
        ours=mine,
        peer=other,
        peer_name="torchrun",
        ratio=other / mine,
        goal=f"at most {CPU_GOAL_PERCENT:g}",
        holds=mine <= CPU_GOAL_PERCENT,
        how=how,
    )
    mine, other = (100 * sum(one.launch_cpu_s) / sum(one.wall_s) for one in (ours, peer))
    yield Row(
        what=f"controller and {ranks} supervisors: processor",
        unit="% of one core",
        ours=mine,
        peer=other,
        peer_name="torchrun",
        ratio=other / mine,
        how=how,
    )


def _memory_rows(ours: tuple[int, int, int], peer: tuple[int, int, int], ranks: int) -> Iterator[Row]:
    for k, what in ((0, "controller: resident memory"), (2, f"controller and {ranks} supervisors: memory")):
        mine, other = ours[k] / 1e6, peer[k] / 1e6
        yield Row(
            what=what,
            unit="MB",
            ours=mine,
            peer=other,
            peer_name="torchrun",
            ratio=other / mine,
            goal=None if k else f"at most {MEMORY_GOAL_MB}",
            holds=None if k else mine <= MEMORY_GOAL_MB,
            how="measured here, once, at the end: " + ("sum of proportional shares (PSS)" if k else "RSS"),
        )


def _slowdown_rows(ours: Contestant, peer: Contestant, how: str) -> Iterator[Row]:
    per_step = [
        [(launch + ranks) / n for launch, ranks, n in zip(c.launch_cpu_s, c.rank_cpu_s, c.steps, strict=True)]
        for c in (ours, peer)
    ]
    figures = {
        "step time": (ours.step_s, peer.step_s),
        "processor time per step, launcher included": (per_step[0], per_step[1]),
    }
    for k, (what, (mine, others)) in enumerate(figures.items()):
        low, middle, high = interval([math.log(a / b) for a, b in zip(mine, others, strict=True)])
        goal = None if k else f"upper bound at most {SLOWDOWN_GOAL_PERCENT:g} %"
        yield Row(
            what=f"{what}, against torchrun: upper end of the 95 % interval",
            unit="% more",
            ours=high,
            peer=0.0,
            peer_name="torchrun",
            ratio=100 / (100 + middle),
            goal=goal,
            holds=None if k else high <= SLOWDOWN_GOAL_PERCENT,
            how=f"{how}; {middle:+.2f} % ({low:+.2f} to {high:+.2f}), bootstrap of the pairs",
        )


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Percent more: 2.5th percentile, estimate and 97.5th percentile of the pairs' mean, by bootstrap."""
    chance = random.Random(1)
    means = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)]
    return tuple(100 * math.expm1(x) for x in (low, statistics.fmean(logs), high))  # type: ignore[return-value]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=12, help="turns of each run")
    parser.add_argument("--turn-s", type=float, default=5.0)


if __name__ == "__main__":
    main("overhead", rows, _arguments)
