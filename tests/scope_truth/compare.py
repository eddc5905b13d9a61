"""Runs a workload, looks at it with the command, and lays its budget beside the workload's own timers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).resolve().parent / "workloads"
NAMES = tuple(sorted(p.stem for p in WORKLOADS.glob("*.py") if p.stem != "timers"))


@dataclass(frozen=True, slots=True)
class Compared:
    """Percent of the main thread's time by category: by its own timers, and as profiled."""

    name: str
    truth: Mapping[str, float]
    told: Mapping[str, float]
    profile: Mapping[str, Any]

    @property
    def errors(self) -> dict[str, float]:
        """Points by which each category is off."""
        names = {*self.truth, *self.told}
        return {n: self.told.get(n, 0.0) - self.truth.get(n, 0.0) for n in sorted(names)}

    @property
    def misplaced(self) -> float:
        """Percent of the time that is in a wrong category."""
        return sum(map(abs, self.errors.values())) / 2

    def text(self) -> str:
        parts = [
            f"{n} {self.truth.get(n, 0):.1f} told {self.told.get(n, 0):.1f}"
            for n, e in self.errors.items()
            if self.truth.get(n, 0) >= 0.05 or abs(e) >= 0.05
        ]
        return f"{self.name}: misplaced {self.misplaced:.2f} %: {', '.join(parts)}"


@contextmanager
def running(name: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """The workload, warm; its truth is in ``place/truth.json`` when this ends."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRUTH": str(place / "truth.json"),
    }
    command = [sys.executable, str(WORKLOADS / f"{name}.py")]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "warm\n", f"{name} did not start"
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def compared(
    name: str, place: Path, *, seconds: float = 8, hz: int = 499, more: Sequence[str] = ()
) -> Compared:
    """Look at a workload once. Raises :class:`RuntimeError` with the command's own words when it fails."""
    with running(name, place) as process:
        saved = place / "profile.json"
        command = [sys.executable, "-m", "unidle", "profile", str(process.pid), "--no-children"]
        command += [
            "--seconds",
            str(seconds),
            "--hz",
            str(hz),
            "--json",
            "--format",
            "json",
            "--out",
            str(saved),
            *more,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    profile = json.loads(saved.read_text())
    pieces = json.loads((place / "truth.json").read_text())["pieces"]
    truth = shares(pieces, profile["start_ns"], profile["end_ns"])
    return Compared(name, truth, answer["budget"], answer)


def shares(pieces: Sequence[Sequence[Any]], start_ns: int, end_ns: int) -> dict[str, float]:
    """Percent of a window by category; what no timer covers is ``other``."""
    times: dict[str, float] = {}
    covered = 0.0
    for category, start, end, delayed in pieces:
        inside = max(min(end, end_ns) - max(start, start_ns), 0)
        if not inside:
            continue
        part = inside / (end - start)
        times[category] = times.get(category, 0.0) + inside - delayed * part
        times["cpu_contention"] = times.get("cpu_contention", 0.0) + delayed * part
        covered += inside
    window = end_ns - start_ns
    times["other"] = max(window - covered, 0)
    return {name: 100 * ns / window for name, ns in times.items()}
