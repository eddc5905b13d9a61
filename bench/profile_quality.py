"""How good stacks are: complete to the root, named, spliced without a mismatch, none lost; beside `perf record --call-graph dwarf`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _profiled import HZ, answer, program, training
from _table import Row, main

ROOTED_GOAL, SYMBOLISED_GOAL, MISMATCH_GOAL = 99.0, 95.0, 0.1
FIRST_GOAL_S = 1.0
ROOTS = ("_start", "clone3", "__clone", "clone", "start_thread", "_dl_start")
PERF_LIMIT_S = 400


def rows(given: argparse.Namespace) -> Iterator[Row]:
    with training("--width", str(given.width)) as target:
        told, _ = answer(target.pid, given.seconds)
        peer = _perf(target.pid, given.perf_seconds)
    quality = told["quality"]
    how = f"measured here, {quality['samples']} samples at {HZ} Hz of PyTorch with MKL, tier {told['tier']}"
    rooted, symbolised = (None, None) if peer is None else peer
    name = None if peer is None else "perf dwarf"
    yield _row("stacks that reach the root", quality["rooted_pct"], ROOTED_GOAL, rooted, name, how)
    yield _row("frames with a name", quality["symbolised_pct"], SYMBOLISED_GOAL, symbolised, name, how)
    wrong = quality["merge_mismatch_pct"]
    yield Row("stacks whose Python and native parts do not fit", "%", round(wrong, 3), goal="<= 0.1 %", holds=wrong <= MISMATCH_GOAL, how=how)  # fmt: skip
    yield Row("samples lost", "samples", quality["drops"], goal="0", holds=quality["drops"] == 0, how=how)
    first = quality["first_sample_ns"]
    if first is None:
        sys.exit(f"tier {told['tier']} does not say when its first sample came")
    yield Row("from attach to the first complete sample", "s", round(first / 1e9, 3), goal="<= 1 s", holds=first / 1e9 <= FIRST_GOAL_S, how=how)  # fmt: skip


def _row(what: str, mine: float, goal: float, peer: float | None, name: str | None, how: str) -> Row:
    ratio = mine / peer if peer else None
    return Row(
        what, "%", round(mine, 2), peer and round(peer, 2), name, ratio, f">= {goal:g} %", mine >= goal, how
    )


def _perf(pid: int, seconds: float) -> tuple[float, float] | None:
    """Percent of perf's stacks that reach the root, and of its frames that have a name."""
    perf = program("perf")
    if perf is None:
        return None
    with tempfile.TemporaryDirectory(prefix="unidle-perf-") as place:
        data = str(Path(place) / "perf.data")
        record = [perf, "record", "-q", "-e", "cpu-clock", "-F", str(HZ), "--call-graph", "dwarf,32768"]
        done = subprocess.run([*record, "-p", str(pid), "-o", data, "--", "sleep", str(seconds)], capture_output=True, text=True)  # fmt: skip
        if done.returncode != 0:
            print(f"perf record failed: skipped: {done.stderr.strip()[:200]}", file=sys.stderr)
            return None
        script = [perf, "script", "-i", data, "--no-inline", "-F", "tid,ip,sym,dso"]
        try:
            shown = subprocess.run(
                script, capture_output=True, text=True, errors="replace", timeout=PERF_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            print(f"perf script took more than {PERF_LIMIT_S} s: skipped", file=sys.stderr)
            return None
    return judged(shown.stdout)


def judged(script: str) -> tuple[float, float] | None:
    """The same two figures from the text of ``perf script``: a line with the thread, then one line a frame, leaf first."""
    stacks = [[line.split(maxsplit=1)[1] for line in part.splitlines()[1:] if len(line.split()) > 1] for part in script.split("\n\n")]  # fmt: skip
    stacks = [stack for stack in stacks if stack]
    frames = [frame for stack in stacks for frame in stack]
    if not frames:
        return None
    rooted = sum(stack[-1].split("+")[0].split(" (")[0] in ROOTS for stack in stacks)
    named = sum(not frame.startswith("[unknown]") for frame in frames)
    return 100 * rooted / len(stacks), 100 * named / len(frames)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--perf-seconds", type=float, default=3.0, help="perf needs minutes to work them out")
    parser.add_argument("--width", type=int, default=128)


if __name__ == "__main__":
    main("profile_quality", rows, add_arguments)
