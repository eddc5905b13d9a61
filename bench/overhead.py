"""What unidle costs a job that trains: processor, memory, and steps that take longer than under torchrun.

examples/gpt/train.py runs twice at the same time, once under unidle and once under torchrun, and all
of one run, launcher included, is stopped (SIGSTOP) while the other one works. Taking turns every
few seconds makes many pairs under the same conditions, free of either run's start; starting both
again (--runs) averages over what differs from one start to the next. The pair's figure is the mean of
the step times that rank 0 prints. What the launcher uses is taken from a longer stretch without turns.
Where other work loads the machine, step times also show how the kernel shares out processors;
processor time per step does not.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from _process import TORCHRUN, UNIDLE, cpu_s, descendants, environment, memory_bytes, started, until
from _table import Row, main
from unidle.engine.local.ranks.supervisor.journal import RankJournal

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "gpt" / "train.py"
STEP = re.compile(rb"^iter (\d+): .* time ([\d.]+)ms$", re.MULTILINE)
START_LIMIT_S = 300
WARM_STEPS = 30
SETTLE_S, STEADY_S = 5.0, 30.0
THAWED_STEPS = 2  # the first spans the freeze, the second finds cold caches
CPU_GOAL_PERCENT = 1.0
MEMORY_GOAL_MB = 120
SLOWDOWN_GOAL_PERCENT = 1.0
RESAMPLES = 5000
SYNC_GOAL_PERCENT = 0.2
SYNC_PAIRS = 300
SAVE_EVERY = 20  # as the script does by itself


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
    steady_s: float = 0.0
    steady_cpu_s: tuple[float, float] = (0.0, 0.0)  # of the controller; of it and its supervisors

    @property
    def rank_pids(self) -> list[int]:
        """The ranks, which are what runs the script."""
        return [p for p in self.pids if p != self.launcher and _runs_script(p)]

    @property
    def pids(self) -> list[int]:
        return [self.launcher, *(pid for pid, _ in descendants(self.launcher))]

    @property
    def cpu_per_step_s(self) -> list[float]:
        """Processor time of ranks and launcher per step, of each turn."""
        return [
            (launch + ranks) / steps
            for launch, ranks, steps in zip(self.launch_cpu_s, self.rank_cpu_s, self.steps, strict=True)
        ]

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
        begun, before = time.monotonic(), self._used()
        time.sleep(turn_s)
        self.wall_s.append(time.monotonic() - begun)
        after = self._used()
        steps = self.new_steps()[THAWED_STEPS - 1 :]
        self.signal(signal.SIGSTOP)
        if not steps:
            sys.exit(f"no step was done in {turn_s} s: give a longer --turn-s")
        self.step_s.append(statistics.fmean(steps))
        self.steps.append(len(steps) + THAWED_STEPS - 1)
        self.rank_cpu_s.append(after[0] - before[0])
        self.launch_cpu_s.append(after[1] - before[1])

    def steady(self, seconds: float) -> None:
        """Work alone for long: what watching costs when nothing was stopped a moment ago."""
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        begun, before = time.monotonic(), self._used()
        time.sleep(seconds)
        after, self.steady_s = self._used(), time.monotonic() - begun
        self.steady_cpu_s = (after[2] - before[2], after[1] - before[1])
        self.signal(signal.SIGSTOP)

    def _used(self) -> tuple[float, float, float]:
        """Processor seconds of the ranks, of all that is none, and of the launcher alone."""
        ranks = self.rank_pids
        others = [pid for pid in self.pids if pid not in ranks]
        return sum(map(cpu_s, ranks)), sum(map(cpu_s, others)), cpu_s(self.launcher)


@dataclass(frozen=True, slots=True)
class Run:
    """Both contestants after their turns, and the memory of each: see :func:`_memory`."""

    ours: Contestant
    peer: Contestant
    memory: tuple[tuple[float, float], tuple[float, float]]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    load_before = f"load before {os.getloadavg()[0]:.1f}"
    runs = [_run(arguments.ranks, arguments.pairs, arguments.turn_s) for _ in range(arguments.runs)]
    pace = sum(sum(r.ours.steps) for r in runs) / sum(sum(r.ours.wall_s) for r in runs)
    how = (
        f"measured here, {arguments.runs} x {arguments.pairs} turns of {arguments.turn_s:g} s each, "
        f"{pace:.0f} steps/s, {load_before}"
    )
    yield from _cpu_rows(
        runs, arguments.ranks, f"measured here, {arguments.runs} x {STEADY_S:g} s each, {load_before}"
    )
    yield from _memory_rows(runs, arguments.ranks)
    yield from _slowdown_rows(runs, how)
    yield _sync_row(1 / pace)


def _sync_row(step_s: float) -> Row:
    """What it costs that the mark of a checkpoint is synced, if there is one every :data:`SAVE_EVERY` steps.

    Pairs of a mark with and without the sync, one after the other on one disk. The supervisor syncs, so a step does
    not wait for it: the cost is its processor time. The time that it takes is given, too.
    """
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        place = Path(name) / "runs" / "job" / "1" / "rank0"
        place.mkdir(parents=True)
        journal = RankJournal(f"{place}/journal.jsonl", f"{place}/reserve")
        cpu_s, wall_s = [], []
        for _ in range(SYNC_PAIRS):
            journal.add({"k": "step", "t": time.time_ns(), "n": 1})
            without = _of_mark(journal, "step")
            with_it = _of_mark(journal, "saved")
            cpu_s.append(with_it[0] - without[0])
            wall_s.append(with_it[1] - without[1])
        journal.close()
    cost_s, took_s = statistics.median(cpu_s), statistics.median(wall_s)
    percent = 100 * cost_s / (SAVE_EVERY * step_s)
    return Row(
        what=f"syncing the mark of a checkpoint every {SAVE_EVERY} steps",
        unit="% of a step",
        ours=percent,
        goal=f"at most {SYNC_GOAL_PERCENT:g}",
        holds=percent <= SYNC_GOAL_PERCENT,
        how=f"measured here, {SYNC_PAIRS} pairs with and without, medians: processor {1e6 * cost_s:.0f} us, "
        f"{1e3 * took_s:.2f} ms long (no rank waits for it), steps of {1e3 * step_s:.1f} ms",
    )


def _of_mark(journal: RankJournal, kind: str) -> tuple[float, float]:
    """Processor time and time of one mark."""
    cpu, wall = time.process_time(), time.perf_counter()
    journal.add({"k": kind, "t": time.time_ns(), "n": 1})
    journal.sync()
    return time.process_time() - cpu, time.perf_counter() - wall


def _run(ranks: int, pairs: int, turn_s: float) -> Run:
    with tempfile.TemporaryDirectory() as place, _running(Path(place), ranks) as (ours, peer):
        for pair in range(pairs):
            for one in (ours, peer) if pair % 2 else (peer, ours):
                one.turn(turn_s)
        for one in (ours, peer):
            one.steady(STEADY_S)
        return Run(ours, peer, (_memory(ours), _memory(peer)))


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
    _pin(one)
    one.new_steps()
    one.signal(signal.SIGSTOP)


def _pin(one: Contestant) -> None:
    """Every thread of rank k to core k modulo the number of cores, in both runs alike."""
    cores = sorted(os.sched_getaffinity(0))
    for pid in one.rank_pids:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next(int(v[5:]) for v in variables if v.startswith(b"RANK="))
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[rank % len(cores)]})


def _runs_script(pid: int) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return str(SCRIPT).encode() in arguments[1:3]


def _memory(one: Contestant) -> tuple[float, float]:
    """Megabytes: RSS of the launcher; PSS of it and of all that is neither it nor a rank."""
    ranks = set(one.rank_pids)
    found = {}
    for pid in one.pids:
        if pid not in ranks:
            with suppress(FileNotFoundError, ProcessLookupError):  # a child that has just ended
                found[pid] = memory_bytes(pid)
    return found[one.launcher][0] / 1e6, sum(pss for _, pss in found.values()) / 1e6


def _cpu_rows(runs: list[Run], ranks: int, how: str) -> Iterator[Row]:
    figures = (
        f"controller while {ranks} ranks train: processor",
        f"controller and {ranks} supervisors: processor",
    )
    for k, what in enumerate(figures):
        mine, other = (
            100 * sum(c.steady_cpu_s[k] for c in side) / sum(c.steady_s for c in side)
            for side in ([r.ours for r in runs], [r.peer for r in runs])
        )
        yield Row(
            what=what,
            unit="% of one core",
            ours=mine,
            peer=other,
            peer_name="torchrun",
            ratio=other / mine,
            goal=None if k else f"at most {CPU_GOAL_PERCENT:g}",
            holds=None if k else mine <= CPU_GOAL_PERCENT,
            how=how,
        )


def _memory_rows(runs: list[Run], ranks: int) -> Iterator[Row]:
    for k, what in enumerate(("controller: resident memory", f"controller and {ranks} supervisors: memory")):
        mine, other = (max(r.memory[side][k] for r in runs) for side in (0, 1))
        yield Row(
            what=what,
            unit="MB",
            ours=mine,
            peer=other,
            peer_name="torchrun",
            ratio=other / mine,
            goal=None if k else f"at most {MEMORY_GOAL_MB}",
            holds=None if k else mine <= MEMORY_GOAL_MB,
            how=f"measured here, at the end, most of {len(runs)}: {'sum of PSS' if k else 'RSS'}",
        )


def _slowdown_rows(runs: list[Run], how: str) -> Iterator[Row]:
    figures: dict[str, Callable[[Contestant], list[float]]] = {
        "step time": lambda c: c.step_s,
        "processor time per step, launcher included": lambda c: c.cpu_per_step_s,
    }
    for k, (what, of) in enumerate(figures.items()):
        low, middle, high = interval(
            [[math.log(a / b) for a, b in zip(of(r.ours), of(r.peer), strict=True)] for r in runs]
        )
        yield Row(
            what=f"{what}, against torchrun: upper end of the 95 % interval",
            unit="% more",
            ours=high,
            peer=0.0,
            peer_name="torchrun",
            ratio=100 / (100 + middle),
            goal=None if k else f"at most {SLOWDOWN_GOAL_PERCENT:g}",
            holds=None if k else high <= SLOWDOWN_GOAL_PERCENT,
            how=f"{how}; {middle:+.2f} % ({low:+.2f} to {high:+.2f}), bootstrap of runs and their pairs",
        )


def interval(runs: list[list[float]]) -> tuple[float, float, float]:
    """Percent more: 2.5th percentile, estimate and 97.5th percentile of the mean of the pairs' logarithms."""
    chance = random.Random(1)
    means = sorted(
        statistics.fmean(
            value for run in chance.choices(runs, k=len(runs)) for value in chance.choices(run, k=len(run))
        )
        for _ in range(RESAMPLES)
    )
    middle = statistics.fmean(value for run in runs for value in run)
    low, high = means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)]
    return 100 * math.expm1(low), 100 * math.expm1(middle), 100 * math.expm1(high)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1, help="starts of both; 5 or more for a sound interval")
    parser.add_argument("--pairs", type=int, default=12, help="turns of each run")
    parser.add_argument("--turn-s", type=float, default=5.0)


if __name__ == "__main__":
    main("overhead", rows, _arguments)
