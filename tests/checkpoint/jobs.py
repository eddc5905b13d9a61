"""Runs the example's training on declared nodes of this machine, and compares how runs ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch

from examples.gang import Gang
from unidle.checkpoint.holder import wire
from waiting import wait_until

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "checkpoint" / "train.py"
SOURCES = Path(__file__).resolve().parents[2] / "src"


class Job:
    """One job: its directory, its nodes (one or more ranks each), its runs."""

    def __init__(self, place: Path, *arguments: str, nodes: int = 2, per_node: int = 1) -> None:
        self.place, self.arguments, self.nodes, self.per_node = place, arguments, nodes, per_node
        self.storage = place / "ckpt"
        self.runs = 0
        (place / "hold").mkdir(parents=True)

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def node(self, rank: int) -> str:
        return f"n{rank // self.per_node}"

    @contextlib.contextmanager
    def run(self, *more: str, ranks: int = 0, place: Path | None = None) -> Iterator[Gang]:
        self.runs += 1
        arguments = [*self.arguments, "--checkpoint-dir", str(self.storage), *more]
        where = place or self.place / f"run{self.runs}"
        with Gang(TRAIN, arguments, ranks or self.ranks, where, self.environment, warm=True) as gang:
            yield gang

    def environment(self, rank: int) -> dict[str, str]:
        return {
            "UNIDLE_NODE": self.node(rank), "UNIDLE_HOLD_DIR": str(self.place / "hold"), "UNIDLE_HOLD_LINGER_S": "60",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH")))),
        }  # fmt: skip

    def hold(self, node: str) -> Path:
        """Where a node's copies are."""
        os.environ["UNIDLE_HOLD_DIR"] = str(self.place / "hold")
        try:
            storage = str(self.storage)
            return Path(wire.hold_directory(storage, node, wire.directory_id(storage)))
        finally:
            del os.environ["UNIDLE_HOLD_DIR"]

    def kill_holder(self, node: str) -> None:
        with contextlib.suppress(OSError):
            self.signal_holder(node, signal.SIGKILL)

    def signal_holder(self, node: str, number: int) -> None:
        os.kill(json.loads((self.hold(node) / wire.ADDRESS).read_text())["pid"], number)

    def lose_node(self, node: str) -> None:
        """What a node's end takes with it, apart from its ranks."""
        self.kill_holder(node)
        with contextlib.suppress(OSError):
            for file in self.hold(node).iterdir():
                file.unlink()

    def end(self) -> None:
        """No holder of this job runs any more."""
        for node in range(self.nodes):
            self.kill_holder(f"n{node}")


def steps_of(text: str) -> list[int]:
    return [int(line.split()[1].rstrip(":")) for line in text.splitlines() if line.startswith("step ")]


def wait_for_step(gang: Gang, step: int) -> None:
    def reached() -> bool:
        ended = [p.poll() for p in gang.processes]
        assert not any(ended), "\n".join(gang.printed(r)[-2000:] for r in range(len(ended)))
        return any(n >= step for n in steps_of(gang.printed(0)))

    wait_until(reached, 180, f"step {step}")


def started_after(gang: Gang) -> int:
    """The step from which a run went on, by what it said; 0 where it began anew."""
    for line in gang.printed(0).splitlines():
        if "continues after step" in line:
            return int(line.split("after step ")[1].split(",")[0])
    return 0


def equal(a: Path, b: Path, most: float) -> bool:
    """Whether two results are the same up to ``most``; the data position exactly."""
    first, second = torch.load(a), torch.load(b)
    assert first["position"] == second["position"]
    assert first["tensors"].keys() == second["tensors"].keys()
    gaps = [(first["tensors"][k] - second["tensors"][k]).abs().max().item() for k in first["tensors"]]
    return max(gaps) <= most
