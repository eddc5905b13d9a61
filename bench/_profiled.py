"""What the profiler's benchmarks share: a training process with its steps, and the tools that look at it.

Peers are found by ``_peers.py``; one that is absent or does not start is skipped with a line on standard error, and the rows say so.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _peers import program as program
from _process import UNIDLE, cpu_s, descendants, environment, started, until

JOBS = Path(__file__).resolve().parent / "jobs"
START_LIMIT_S = 120
END_LIMIT_S = 60
WARM_STEPS = 20
HZ = 99
CALM_S, CALM_PART, CALM_LIMIT_S = (
    0.25,
    0.3,
    5.0,
)  # less than a third of a core for so long is no start any more
SETTLE_NATIVE_S = 4.0  # reads PyTorch's symbols first
RESAMPLES = 2000


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
    settle_s: float = 1.5  # for its start


@dataclass(slots=True)
class Looked:
    """What a tool cost itself while it looked, and the steps meanwhile."""

    cpu_pct: float = 0.0
    rss_mb: float = 0.0
    steps: list[Step] = field(default_factory=list)
    wrote: dict[str, Any] = field(default_factory=dict)  # ours only: the profile


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


OURS = Tool("unidle profile", ours, settle_s=2.5)  # Python's start, and the symbols of what runs all the time


def spied(pid: int, seconds: float, out: Path, *, native: bool = False) -> Sequence[str]:
    """py-spy's command; its rows are whole seconds."""
    args = ("--rate", str(HZ), "--format", "raw", "--idle", "--duration", f"{math.ceil(seconds)}", "--output", str(out))  # fmt: skip
    return (program("py-spy") or "", "record", *args, *(["--native"] if native else []), "--pid", str(pid))


def peers() -> tuple[list[Tool], list[str]]:
    """The peers that start here, and the names of those that do not."""
    found, absent = [Tool("torch.profiler", None)], []
    if program("py-spy"):
        found.append(Tool("py-spy", spied))
        found.append(Tool("py-spy --native", lambda *args: spied(*args, native=True), SETTLE_NATIVE_S))
    else:
        absent += ["py-spy", "py-spy --native"]
    if austin := program("austin"):

        def sampled(pid: int, seconds: float, out: Path) -> Sequence[str]:
            return (austin, "--interval", f"{1_000_000 // HZ}us", "--exposure", f"{math.ceil(seconds)}", "--output", str(out), "--pid", str(pid))  # fmt: skip

        found.append(Tool("austin", sampled))
    else:
        absent.append("austin")
    return found, absent


def looked(tool: Tool, target: Training, seconds: float) -> Looked:
    """Steps and the tool's own cost over ``seconds``, after the time for its start."""
    if tool.command is None:
        return _inside(tool, target, seconds)
    with tempfile.TemporaryDirectory(prefix="unidle-look-") as place:
        out = Path(place) / "found"
        command = tool.command(target.pid, tool.settle_s + CALM_LIMIT_S + seconds + 1, out)
        with started(command, Path(place), environment()) as process:
            time.sleep(tool.settle_s)
            _calm(process.pid)
            pids = [process.pid, *(pid for pid, _ in descendants(process.pid))]
            before, began = _cpu(pids), time.monotonic()
            steps = _steps_for(target, seconds)
            spent = time.monotonic() - began
            cost = 100 * (_cpu(pids) - before) / spent
            if process.poll() is not None:
                sys.exit(f"{tool.name} ended before its time: {(Path(place) / 'err').read_text()[-300:]}")
            memory = _peak_mb(process.pid)
            process.send_signal(signal.SIGINT)  # each of them writes what it has so far
            if not until(lambda: process.poll() is not None, END_LIMIT_S):
                print(f"{tool.name} did not end within {END_LIMIT_S} s: stopped", file=sys.stderr)
        wrote = json.loads(out.read_text()) if tool is OURS and out.exists() else {}
    return Looked(cost, memory, steps, wrote)


def _calm(pid: int) -> None:
    """Wait until a tool has read what it needs at its start, which takes longer on a loaded machine."""
    end = time.monotonic() + CALM_LIMIT_S
    while time.monotonic() < end:
        before = _cpu([pid])
        time.sleep(CALM_S)
        if _cpu([pid]) - before < CALM_PART * CALM_S:
            return


def _inside(tool: Tool, target: Training, seconds: float) -> Looked:
    """torch.profiler, in the process itself."""
    os.kill(target.pid, signal.SIGUSR1)
    time.sleep(tool.settle_s)
    steps = _steps_for(target, seconds)
    os.kill(target.pid, signal.SIGUSR1)
    seen = len(target.steps())
    until(lambda: len(target.steps()) > seen + 3, START_LIMIT_S)  # while it works its records out
    return Looked(steps=steps)


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


def middle(values: Sequence[float]) -> float:
    """The median of all pairs' means (Hodges and Lehmann): one disturbed value moves it little, and it wastes few."""
    return statistics.median((a + b) / 2 for k, a in enumerate(values) for b in values[k:])


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """:func:`middle` with its 95 % interval, by bootstrap."""
    chance = random.Random(seed)
    found = sorted(middle(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return middle(values), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]


def _steps_for(target: Training, seconds: float) -> list[Step]:
    start = time.monotonic_ns()
    time.sleep(seconds)
    return target.between(start, time.monotonic_ns())


def _peak_mb(pid: int) -> float:
    """The most memory that was resident at once."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024 / 1e6


def _cpu(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            total += cpu_s(pid)
        except OSError:  # it ended meanwhile
            continue
    return total
