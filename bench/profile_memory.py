"""Allocated and live bytes by call site beside what the process did allocate, and what looking costs it; beside memray.

memray starts the process itself (`memray run`): it cannot attach without a debugger.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _process import UNIDLE, environment
from _profiled import JOBS, program
from _table import Row, main

SCRIPT = str(JOBS / "allocating.py")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    options = ["--rounds", str(given.rounds)]
    bare, _ = _run([sys.executable, SCRIPT, *options])
    with tempfile.TemporaryDirectory(prefix="unidle-memory-") as place:
        truth, profile = _watched(options, Path(place) / "profile.json", given.rounds)
        own = [held for held in profile["memory"] if _is_torch(profile, held)]
        peer = _memray(options, Path(place))
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
    slower = 100 * (truth["seconds"] / bare["seconds"] - 1)
    with_peer = None if peer is None else round(100 * (peer["seconds"] / bare["seconds"] - 1), 2)
    yield Row("the process takes longer", "%", round(slower, 2), with_peer, None if peer is None else "memray", how=f"{how}; one run each")  # fmt: skip


def _is_torch(profile: dict[str, Any], held: list[Any]) -> bool:
    """Of the script's loop: what the interpreter and libraries allocate for themselves does not count."""
    frames = [profile["frames"][n] for n in profile["stacks"][held[1]]]
    return (
        any(f[0] == "python" and f[2].endswith("allocating.py") for f in frames)
        and held[3] // max(held[4], 1) > 1e6
    )


def _run(command: list[str]) -> tuple[dict[str, Any], str]:
    """The script from start to end; its own figures."""
    env = environment(OMP_NUM_THREADS="1")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        process.communicate("end\n")
    return told, ""


def _watched(options: list[str], out: Path, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    env = environment(OMP_NUM_THREADS="1")
    command = [sys.executable, SCRIPT, *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        seconds = str(rounds * 0.02 + 8)
        look = [*UNIDLE, "profile", str(process.pid), "--memory", "--seconds", seconds, "--json", "--format", "json", "--out", str(out)]  # fmt: skip
        with subprocess.Popen(
            look, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        ) as looking:
            try:
                looking.communicate(timeout=4)  # its start
                sys.exit("unidle profile --memory ended at once")
            except subprocess.TimeoutExpired:
                process.stdin.write("go\n")
                process.stdin.flush()
            told = json.loads(process.stdout.readline())
            _, error = looking.communicate()
        process.communicate("end\n")
    if looking.returncode != 0:
        sys.exit(f"unidle profile --memory ended with exit code {looking.returncode}: {error.strip()}")
    return told, json.loads(out.read_text())


def _memray(options: list[str], place: Path) -> dict[str, Any] | None:
    memray = program("memray")
    if memray is None:
        return None
    peers = os.environ.get("UNIDLE_PEERS")
    interpreter = Path(memray).with_name("python")
    has_torch = subprocess.run([str(interpreter), "-c", "import torch"], capture_output=True).returncode == 0 if interpreter.exists() else False  # fmt: skip
    if not has_torch:
        print(f"memray's Python ({peers or 'on the PATH'}) has no PyTorch: skipped", file=sys.stderr)
        return None
    told, _ = _run([memray, "run", "-q", "--native", "-o", str(place / "memray.bin"), SCRIPT, *options])
    return told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=300)


if __name__ == "__main__":
    main("profile_memory", rows, add_arguments)
