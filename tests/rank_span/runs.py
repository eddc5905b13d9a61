"""Runs of real ranks on loopback addresses, and what they leave: records and parameters."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOY = Path(__file__).with_name("toy.py")
PARTS = ("F", "B", "W")


def ports(count: int) -> list[int]:
    """Free ports of the loopback, found all at once so that they differ."""
    with contextlib.ExitStack() as stack:
        found = []
        for k in range(count):
            link = stack.enter_context(socket.socket())
            link.bind((f"127.0.0.{k + 1}", 0))
            found.append(link.getsockname()[1])
        return found


def one_f_one_b(stages: int, stage: int, microbatches: int) -> list[list[Any]]:
    """F, B and W of a stage, 1F1B."""
    warm = min(stages - stage, microbatches)
    order: list[list[Any]] = [["F", m, 0] for m in range(warm)]
    for m in range(microbatches):
        order += [["B", m, 0], ["W", m, 0]]
        if m + warm < microbatches:
            order.append(["F", m + warm, 0])
    return order


def plan(stages: int = 2, microbatches: Sequence[int] = (4,), orders: Any = None, **changes: Any) -> dict[str, Any]:
    """A run plan; ``orders[pipeline][stage]``, 1F1B unless given. Names with dots reach inside."""
    found: dict[str, Any] = {
        "version": 1, "run": "test", "attempt": 0,
        "model": {"build": f"{TOY}:build", "arguments": {}, "dtype": "float64", "cut": None, "digest": None},
        "loss": f"{TOY}:loss", "data": f"{TOY}:batch", "optimizer": {"name": "adamw", "arguments": {"lr": 0.01}},
        "steps": 3, "seed": 7, "microbatch": 2, "microbatches": list(microbatches), "chunks": 1, "cell": 1,
        "links": [{"from": s, "to": s + 1, "wan": True, "flows": 2} for s in range(stages - 1)],
        "checkpoint": None, "pace": None, "tls": None, "changes_semantics": {}, "trace": True,
    }  # fmt: skip
    free = iter(ports(stages * len(microbatches)))
    found["devices"] = [
        {
            "device": f"site{s}/{p}/{s}", "site": f"site{s}", "pipeline": p, "stage": s,
            "address": [f"127.0.0.{p * stages + s + 1}", next(free)],
            "order": orders[p][s] if orders else one_f_one_b(stages, s, count), "joined": False, "torch_device": "cpu",
        }
        for p, count in enumerate(microbatches)
        for s in range(stages)
    ]  # fmt: skip
    for name, value in changes.items():
        *path, last = name.split("__")
        inside = found
        for each in path:
            inside = inside[each]
        inside[last] = value
    return found


def start(file: Path, out: Path, *arguments: str, secret: str = "of this test") -> subprocess.Popen[str]:
    """One process of the runner."""
    environment = os.environ | {
        "UNIDLE_SPAN_SECRET": secret, "UNIDLE_SPAN_GIVE_UP_S": "4", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "unidle.rank.span", str(file), "--out", str(out), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def ranks(file: Path, out: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All ranks of a plan by device; none outlives the block."""
    found = {}
    try:
        for device in json.loads(file.read_text())["devices"]:
            found[device["device"]] = start(file, out, "--device", device["device"])
        yield found
    finally:
        for process in found.values():
            process.kill()
            process.communicate()


def run(given: dict[str, Any], directory: Path) -> Path:
    """All ranks to their end, which has to be good; the directory of their records."""
    directory.mkdir(parents=True, exist_ok=True)
    file, out = directory / "plan.json", directory / "out"
    file.write_text(json.dumps(given))
    with ranks(file, out) as processes:
        for name, process in processes.items():
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, f"{name}: {said}"
    return out


def single(given: dict[str, Any], directory: Path) -> Path:
    """The same in one process."""
    directory.mkdir(parents=True, exist_ok=True)
    file, out = directory / "plan.json", directory / "single"
    file.write_text(json.dumps(given))
    process = start(file, out, "--single")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return out / "single"


def records(out: Path, device: str) -> list[dict[str, Any]]:
    lines = (out / f"{device.replace('/', '-')}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tensors(path: Path) -> dict[str, bytes]:
    """The bytes of all tensors of a checkpoint, each checked, with shape and type."""
    from unidle.rank.checkpoint.reader import ShardSet, Stored
    from unidle.checkpoint.layout import read_manifest

    shards = ShardSet([Stored(str(path), shard) for shard in read_manifest(str(path)).shards])
    found = {}
    for name, places in shards.pieces.items():
        value = shards.tensor(name, next(iter(places)))
        found[f"{name} {tuple(value.shape)} {value.dtype}"] = value.reshape(-1).view(-1).numpy().tobytes()
    return found


def newest(directory: Path) -> Path:
    return max(directory.glob("step_*"))
