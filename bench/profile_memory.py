"""Memory by call site compared with what the process did allocate; and what following it costs a training process; compared with memray.

memray starts the process itself (`memray run --native`): it cannot attach without a debugger. So its steps are those of a
process of its own, compared with those of a bare one; ours are those of one process with and without the look, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _process import UNIDLE, environment, started, until
from _profiled import (
    JOBS,
    START_LIMIT_S,
    WARM_STEPS,
    Step,
    Tool,
    Training,
    bare,
    interval,
    looked,
    program,
    training,
)
from _table import Row, main

SCRIPT = str(JOBS / "allocating.py")
START_S = 10.0  # after which the look has attached, on a busy machine too


def rows(given: argparse.Namespace) -> Iterator[Row]:
    options = ["--rounds", str(given.rounds)]
    with tempfile.TemporaryDirectory(prefix="unidle-memory-") as place:
        truth, profile = _watched(options, Path(place) / "profile.json", given.rounds)
        own = [held for held in profile["memory"] if _is_torch(profile, held)]
    how = f"measured here, {truth['allocations']} tensors of 3 and 17 MB"
    for what, column in (("allocated_bytes", 3), ("allocations", 4), ("live_bytes", 5)):
        seen = sum(held[column] for held in own)
        error = 100 * (seen / truth[what] - 1)
        yield Row(
            f"{what.replace('_', ' ')}: error",
            "%",
            round(error, 4),
            goal="0",
            holds=seen == truth[what],
            how=how,
        )
    yield from _slowdown(given)


def _slowdown(given: argparse.Namespace) -> Iterator[Row]:
    """Steps of a training process with small and large tensors, while its memory is followed and while it is not."""
    pairs, alone = [], []
    with training() as target:
        for _ in range(given.pairs):
            before = _median(bare(target, given.seconds))
            with_us = _median(looked(Tool("unidle --allocations", _ours), target, given.seconds).steps)
            alone.append(before)
            pairs.append(100 * (with_us / before - 1))
    mean, low, high = interval(pairs)
    peer = _memray_steps(given.seconds)
    slower = None if peer is None else round(100 * (peer / statistics.median(alone) - 1), 2)
    ratio = None if slower is None else round((1 + slower / 100) / (1 + mean / 100), 3)
    yield Row(
        "a step takes longer while memory is followed",
        "%",
        round(mean, 2),
        slower,
        None if peer is None else "memray run --native",
        ratio,
        goal="less than memray",
        holds=None if slower is None else mean < slower,
        how=f"measured here, {given.pairs} pairs of {given.seconds:.0f} s in one process, 95 % interval {low:.1f} to {high:.1f}; memray: one process of its own",
    )


def _ours(pid: int, seconds: float, out: Path) -> Sequence[str]:
    return (*UNIDLE, "profile", str(pid), "--allocations", "--seconds", str(seconds), "--json", "--out", f"{out}.json")  # fmt: skip


def _median(steps: Sequence[Step]) -> float:
    return statistics.median(step.took_ns for step in steps)


def _memray_steps(seconds: float) -> float | None:
    """The median step of a process that memray runs; None where there is no memray with PyTorch next to it."""
    memray = _memray()
    if memray is None:
        return None
    with tempfile.TemporaryDirectory(prefix="unidle-memray-") as place:
        command = (memray, "run", "-q", "--native", "-o", str(Path(place) / "memray.bin"), str(JOBS / "training.py"))  # fmt: skip
        with started(command, Path(place), environment(OMP_NUM_THREADS="1")) as process:
            found = Training(process.pid, Path(place) / "out")
            if not until(lambda: len(found.steps()) >= WARM_STEPS, START_LIMIT_S):
                print(f"memray did not start: {(Path(place) / 'err').read_text()[-200:]}", file=sys.stderr)
                return None
            return _median(bare(found, seconds))


def _is_torch(profile: dict[str, Any], held: list[Any]) -> bool:
    """Of the script's loop: what the interpreter and libraries allocate for themselves does not count."""
    frames = [profile["frames"][n] for n in profile["stacks"][held[1]]]
    return (
        any(f[0] == "python" and f[2].endswith("allocating.py") for f in frames)
        and held[3] // max(held[4], 1) > 1e6
    )


def _watched(options: list[str], out: Path, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    env = environment(OMP_NUM_THREADS="1")
    command = [sys.executable, SCRIPT, *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        seconds = str(rounds * 0.02 + START_S + 4)
        look = [*UNIDLE, "profile", str(process.pid), "--allocations", "--seconds", seconds, "--json", "--format", "json", "--out", str(out)]  # fmt: skip
        with subprocess.Popen(
            look, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        ) as looking:
            try:
                looking.communicate(timeout=START_S)
                sys.exit("unidle profile --allocations ended at once")
            except subprocess.TimeoutExpired:
                process.stdin.write("go\n")
                process.stdin.flush()
            told = json.loads(process.stdout.readline())
            _, error = looking.communicate()
        process.communicate("end\n")
    if looking.returncode != 0:
        sys.exit(f"unidle profile --allocations ended with exit code {looking.returncode}: {error.strip()}")
    return told, json.loads(out.read_text())


def _memray() -> str | None:
    memray = program("memray")
    if memray is None:
        return None
    interpreter = Path(os.path.realpath(memray)).with_name("python")
    has_torch = interpreter.exists() and not subprocess.run([str(interpreter), "-c", "import torch"], capture_output=True).returncode  # fmt: skip
    if not has_torch:
        print("memray's Python has no PyTorch: skipped", file=sys.stderr)
        return None
    return memray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)


if __name__ == "__main__":
    main("profile_memory", rows, add_arguments)
