"""What the profiler's benchmarks share: a training process with its steps, and the tools that look at it.

Peers are found in the directory ``$UNIDLE_PEERS``, else on the PATH; one that is absent or does not start is skipped
with a line on standard error.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from _process import UNIDLE, cpu_s, descendants, environment, memory_bytes, started, until

JOBS = Path(__file__).resolve().parent / "jobs"
START_LIMIT_S = 120
WARM_STEPS = 20
HZ = 99
RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Step:
    """When it ended, how long it took, and the process's processor time in it."""

    end_ns: int
    took_ns: int
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class Training:
    """A running bench/jobs/training.py."""

    pid: int
    output: Path

    def steps(self) -> list[Step]:
        """Every step so far."""
        text = self.output.read_bytes()
        rows = text[: text.rfind(b"\n") + 1].splitlines()
        return [Step(*map(int, row.split())) for row in rows]

    def between(self, start_ns: int, end_ns: int) -> list[Step]:
        return [s for s in self.steps() if start_ns < s.end_ns - s.took_ns and s.end_ns <= end_ns]


@dataclass(frozen=True, slots=True)
class Tool:
    """A profiler: its command for a process and a number of seconds, or none for what is switched on by a signal."""

    name: str
    command: Callable[[int, float, Path], Sequence[str]] | None


@dataclass(slots=True)
class Looked:
    """What a tool cost itself while it looked."""

    cpu_pct: float = 0.0
    rss_mb: float = 0.0
    steps: list[Step] = field(default_factory=list)


@contextmanager
def training(*options: str) -> Iterator[Training]:
    """A warm training process with one intra-op thread."""
    with tempfile.TemporaryDirectory(prefix="unidle-profile-") as place:
        command = (sys.executable, str(JOBS / "training.py"), *options)
        with started(command, Path(place), environment(OMP_NUM_THREADS="1")) as process:
            found = Training(process.pid, Path(place) / "out")
            if not until(lambda: len(found.steps()) >= WARM_STEPS, START_LIMIT_S):
                sys.exit(f"the training process did not start: {(Path(place) / 'err').read_text()}")
            yield found


def ours(pid: int, seconds: float, out: Path) -> Sequence[str]:
    return (*UNIDLE, "profile", str(pid), "--seconds", str(seconds), "--hz", str(HZ), "--json", "--format", "json", "--out", str(out))  # fmt: skip


def peers() -> list[Tool]:
    """The peers that start here."""
    found = [Tool("torch.profiler", None)]
    if spy := program("py-spy"):
        args = ("record", "--rate", str(HZ), "--format", "raw", "--idle")

        def plain(pid: int, seconds: float, out: Path) -> Sequence[str]:
            return (spy, *args, "--pid", str(pid), "--duration", f"{seconds:.0f}", "--output", str(out))

        def native(pid: int, seconds: float, out: Path) -> Sequence[str]:
            return (*plain(pid, seconds, out), "--native")

        found += [Tool("py-spy", plain), Tool("py-spy --native", native)]
    if austin := program("austin"):

        def sampled(pid: int, seconds: float, out: Path) -> Sequence[str]:
            return (austin, "--interval", f"{1_000_000 // HZ}us", "--exposure", f"{seconds:.0f}", "--output", str(out), "--pid", str(pid))  # fmt: skip

        found.append(Tool("austin", sampled))
    return found


@cache
def program(name: str) -> str | None:
    """A peer's program that answers to ``--version``."""
    place = os.environ.get("UNIDLE_PEERS")
    path = shutil.which(name, path=place) if place else shutil.which(name)
    if path is None:
        print(f"{name} is not here: skipped", file=sys.stderr)
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name} does not start: skipped: {done.stderr.strip()[:200]}", file=sys.stderr)
        return None
    return path


def looked(tool: Tool, target: Training, settle_s: float, seconds: float) -> Looked:
    """Steps and the tool's own cost over ``seconds`` after ``settle_s`` for its start."""
    if tool.command is None:
        os.kill(target.pid, signal.SIGUSR1)
        time.sleep(settle_s)
        steps = _steps_for(target, seconds)
        os.kill(target.pid, signal.SIGUSR1)
        seen = len(target.steps())
        until(lambda: len(target.steps()) > seen + 3, START_LIMIT_S)  # while it works its records out
        return Looked(steps=steps)
    with tempfile.TemporaryDirectory(prefix="unidle-look-") as place:
        out = Path(place) / "found"
        command = tool.command(target.pid, settle_s + seconds + 1, out)
        with started(command, Path(place), environment()) as process:
            time.sleep(settle_s)
            if process.poll() is not None:
                sys.exit(f"{tool.name} ended at once: {(Path(place) / 'err').read_text()[-300:]}")
            pids = [process.pid, *(pid for pid, _ in descendants(process.pid))]
            before, began = _cpu(pids), time.monotonic()
            steps = _steps_for(target, seconds)
            spent = time.monotonic() - began
            cost = 100 * (_cpu(pids) - before) / spent
            memory = memory_bytes(process.pid)[0] / 1e6 if process.poll() is None else math.nan
            until(lambda: process.poll() is not None, 60)
    return Looked(cost, memory, steps)


def bare(target: Training, seconds: float) -> list[Step]:
    """Steps while nobody looks."""
    return _steps_for(target, seconds)


def answer(pid: int, seconds: float, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our command's JSON, and the profile that it wrote."""
    with tempfile.TemporaryDirectory(prefix="unidle-look-") as place:
        out = Path(place) / "profile.json"
        done = subprocess.run(
            [*ours(pid, seconds, out), *more], capture_output=True, text=True, env=environment()
        )
        if done.returncode != 0:
            sys.exit(f"unidle profile ended with exit code {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout), json.loads(out.read_text())


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The mean of pairs with its 95 % interval, by bootstrap."""
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.fmean(values), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def _steps_for(target: Training, seconds: float) -> list[Step]:
    start = time.monotonic_ns()
    time.sleep(seconds)
    return target.between(start, time.monotonic_ns())


def _cpu(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            total += cpu_s(pid)
        except OSError:  # it ended meanwhile
            continue
    return total
