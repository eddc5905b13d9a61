"""What a checkpoint costs: stall of saving compared with a blocking torch.save, time to restore, steps lost with a node.

Two gloo ranks on two declared nodes of this machine. A step is an AdamW update and a sleep that stands for a GPU's
work, so the stall is what saving adds; it contains the copies' share of the same two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _process import environment
from _table import Row, main
from unidle.checkpoint.holder import wire

JOB = Path(__file__).resolve().parent / "jobs" / "saving.py"
EVERY = 10
SKIP = 3  # steps until memory is mapped and warm


class Gang:
    """Two ranks, each on a node of its own."""

    def __init__(self, place: Path, how: str, steps: int, given: argparse.Namespace) -> None:
        self.storage, self.hold = place / "ckpt", place / "hold"
        self.hold.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        options = (
            f"--megabytes {given.megabytes} --steps {steps} --step-s {given.step_s} --every {EVERY}".split()
        )
        self.logs = [(place / f"rank{rank}").open("w+") for rank in range(2)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(JOB), how, *options, "--directory", str(self.storage)],
                env=environment(
                    RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                    UNIDLE_NODE=f"n{rank}", UNIDLE_HOLD_DIR=f"/dev/shm/{place.name}", OMP_NUM_THREADS="1",
                ),
                stdout=log, stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(self.logs)
        ]  # fmt: skip

    def text(self, rank: int) -> str:
        return Path(self.logs[rank].name).read_text()

    def result(self) -> dict[str, Any]:
        """What rank 0 told at its end."""
        for rank in self.ranks:
            if rank.wait(400):
                raise SystemExit(f"a rank failed:\n{self.text(0)[-2000:]}\n{self.text(1)[-2000:]}")
        line = next(line for line in self.text(0).splitlines() if line.startswith("{"))
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def hold_of(place: Path, node: str) -> Path:
    os.environ["UNIDLE_HOLD_DIR"] = f"/dev/shm/{place.name}"
    storage = str(place / "ckpt")
    return Path(wire.hold_directory(storage, node, wire.directory_id(storage)))


def end_holder(place: Path, node: str) -> None:
    """The end of a node's holder and of its memory."""
    hold = hold_of(place, node)
    with contextlib.suppress(OSError, ProcessLookupError):
        os.kill(json.loads((hold / wire.ADDRESS).read_text())["pid"], signal.SIGKILL)
    shutil.rmtree(hold, ignore_errors=True)


def rows(given: argparse.Namespace) -> Iterator[Row]:
    with workplace() as place:
        ours = Gang(place, "unidle", given.steps, given).result()
    with workplace() as place:
        peer = Gang(place, "torch.save", given.steps, given).result()
    yield from _stalls(ours, peer, given)
    yield from _lost(given)


def _stalls(ours: dict[str, Any], peer: dict[str, Any], given: argparse.Namespace) -> Iterator[Row]:
    size = f"{ours['bytes'] / 2**20:.0f} MB of state, steps of {given.step_s:g} s, 2 gloo ranks"
    each, blocking = ours["stalls_s"][SKIP:], peer["stalls_s"][SKIP:]
    part, theirs = (100 * sum(x) / (sum(x) + len(x) * given.step_s) for x in (each, blocking))
    how = f"measured here, {len(each)} steps, {size}; the median step stalls {1e3 * statistics.median(each):.1f} ms"
    yield Row(
        f"stall: a copy in memory and on a peer at every step, storage every {EVERY}", "% of step time", part, theirs,
        f"blocking torch.save every {EVERY}", theirs / part, "at most 2 %", part <= 2, how,
    )  # fmt: skip
    saves = [s for k, s in enumerate(peer["stalls_s"]) if (k + 1) % EVERY == 0]
    mine = [s for k, s in enumerate(ours["stalls_s"]) if (k + 1) % EVERY == 0]
    a, b = statistics.median(mine), statistics.median(saves)
    yield Row(
        "stall of one save to storage",
        "s",
        a,
        b,
        "blocking torch.save",
        b / a,
        how=f"measured here, median of {len(saves)}, {size}",
    )


def _lost(given: argparse.Namespace) -> Iterator[Row]:
    """Kill a node (rank, holder, memory) and start again; then once more without any memory."""
    lost, memory, disk = [], [], []
    for number in range(given.tries):
        with workplace() as place:
            gang = Gang(place, "unidle", 10_000, given)
            wait_for_step(gang, EVERY + 5 + number)
            gang.ranks[1].kill()
            end_holder(place, "n1")
            gang.ranks[0].wait(120)
            done = max(int(line.split()[1]) for line in gang.text(0).splitlines() if line.startswith("step "))
            gang.kill()
            told = Gang(place, "unidle", 3, given).result()
            lost.append(done - told["start"])
            memory.append(told["restore_s"])
            for node in ("n0", "n1"):
                end_holder(place, node)
            told = Gang(place, "unidle", 3, given).result()
            disk.append(told["restore_s"])
    how = f"measured here, {given.tries} tries, a rank, its holder and its memory killed at a step"
    yield Row("steps lost with a node", "steps", max(lost), goal="at most 1", holds=max(lost) <= 1, how=how)
    a, b = statistics.median(memory), statistics.median(disk)
    yield Row(
        "restore from a peer's memory, checks included", "s", a, b, "from storage", b / a,
        how=f"measured here, median of {given.tries}; storage is in the page cache",
    )  # fmt: skip


def wait_for_step(gang: Gang, step: int) -> None:
    end_s = time.monotonic() + 200
    while f"step {step}\n" not in gang.text(0):
        if time.monotonic() > end_s or any(rank.poll() for rank in gang.ranks):
            raise SystemExit(f"no step {step}:\n{gang.text(0)[-2000:]}")
        time.sleep(0.02)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="unidle-bench-"))
    try:
        yield place
    finally:
        for node in ("n0", "n1"):
            end_holder(place, node)
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(f"/dev/shm/{place.name}", ignore_errors=True)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=3)


if __name__ == "__main__":
    main("checkpoint", rows, options)
