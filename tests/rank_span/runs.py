"""Runs of real ranks on loopback addresses, and what they leave: records and parameters."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ports
from unidle.checkpoint.layout import decode_header, read_manifest
from unidle.checkpoint.verify import verify

TOY = Path(__file__).with_name("toy.py")


_BLOCKS = 6


@cache
def _ports() -> Iterator[int]:
    """Of this process, again and again: when one comes again, the ranks that had it have ended."""
    return itertools.cycle(
        [first + k for first in (ports.block() for _ in range(_BLOCKS)) for k in range(ports.EACH)]
    )


def one_f_one_b(stages: int, stage: int, microbatches: int) -> list[list[Any]]:
    """F, B and W of a stage, 1F1B."""
    warm = min(stages - stage, microbatches)
    order: list[list[Any]] = [["F", m, 0] for m in range(warm)]
    for m in range(microbatches):
        order += [["B", m, 0], ["W", m, 0]]
        if m + warm < microbatches:
            order.append(["F", m + warm, 0])
    return order


def plan(
    stages: int = 2,
    microbatches: Sequence[int] = (4,),
    orders: Any = None,
    joined: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """A run plan; ``orders[pipeline][stage]``, 1F1B unless given. Names with dots reach inside."""
    found: dict[str, Any] = {
        "version": 1, "run": "test", "attempt": 0,
        "model": {"build": f"{TOY}:build", "arguments": {}, "dtype": "float64", "cut": None, "digest": None},
        "loss": f"{TOY}:loss", "data": f"{TOY}:batch", "optimizer": {"name": "adamw", "arguments": {"lr": 0.01}},
        "steps": 3, "seed": 7, "microbatch": 2, "microbatches": list(microbatches), "chunks": 1, "cell": 1,
        "links": [{"from": s, "to": s + 1, "wan": True, "flows": 2} for s in range(stages - 1)],
        "checkpoint": None, "pace": None, "tls": None, "changes_semantics": {}, "trace": True,
    }  # fmt: skip
    found["devices"] = [
        {
            "device": f"site{s}/{p}/{s}", "site": f"site{s}", "pipeline": p, "stage": s,
            "address": [f"127.0.0.{p * stages + s + 1}", next(_ports())],
            "order": orders[p][s] if orders else one_f_one_b(stages, s, count), "joined": joined, "torch_device": "cpu",
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


class Rank:
    """One process of the runner."""

    def __init__(self, nursery: Nursery, pid: int, errors: Path) -> None:
        self._nursery, self.pid, self._errors = nursery, pid, errors
        self._code: int | None = None

    def wait(self) -> int:
        """Its exit code."""
        if self._code is None:
            self._code = self._nursery.wait(self.pid)
        return self._code

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self._errors.read_text() if self._errors.exists() else ""


class Nursery:
    """Starts ranks; see :mod:`rank_span.nursery`."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        program = Path(__file__).with_name("nursery.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._count = 0
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery died"
        return line.strip()

    def _ask(self, told: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def start(
        self,
        file: Path,
        *arguments: str,
        secret: str = "of this test",
        give_up_s: float = 30,
        space: str | None = None,
    ) -> Rank:
        """A rank; ``space`` is its network namespace, else that of the tests."""
        self._count += 1
        errors = file.parent / f"errors.{self._count}"
        environment = {"UNIDLE_SPAN_SECRET": secret, "UNIDLE_SPAN_GIVE_UP_S": str(give_up_s)}
        words = [str(file), *arguments]
        told = {"arguments": words, "environment": environment, "errors": str(errors), "space": space}
        if "--describe" in arguments:
            told["output"] = str(file.parent / "described")
        return Rank(self, int(self._ask(told)), errors)

    def script(self, name: str, directory: Path) -> None:
        """Run a file beside this one, which has to end well."""
        errors = directory / "errors"
        told = {"script": str(Path(__file__).with_name(name)), "environment": {}, "errors": str(errors)}
        rank = Rank(self, int(self._ask(told)), errors)
        assert rank.wait() == 0, rank.said

    def wait(self, pid: int) -> int:
        return int(self._ask({"wait": pid}))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    @contextlib.contextmanager
    def ranks(self, file: Path, out: Path, **options: Any) -> Iterator[dict[str, Rank]]:
        """All ranks of a plan by device; none outlives the block."""
        found: dict[str, Rank] = {}
        try:
            for device in json.loads(file.read_text())["devices"]:
                name = device["device"]
                found[name] = self.start(file, "--device", name, "--out", str(out), **options)
            yield found
        finally:
            for rank in found.values():
                rank.kill()
                rank.wait()

    def run(self, given: dict[str, Any], directory: Path) -> Path:
        """All ranks to their end, which has to be good; the directory of their records."""
        file, out = write(given, directory), directory / "out"
        with self.ranks(file, out) as processes:
            for name, rank in processes.items():
                assert rank.wait() == 0, f"{name}: {rank.said}"
        return out

    def single(self, given: dict[str, Any], directory: Path, *more: str) -> Path:
        """The same in one process: where its last checkpoint is."""
        out = directory / "single"
        rank = self.start(write(given, directory), "--single", "--out", str(out), *more)
        assert rank.wait() == 0, rank.said
        return newest(out / "single")


def write(given: dict[str, Any], directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "plan.json"
    file.write_text(json.dumps(given))
    return file


def records(out: Path, device: str, kind: str = "") -> list[dict[str, Any]]:
    """What a device wrote, of one kind or of all."""
    lines = (out / f"{device.replace('/', '-')}.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if record["kind"] == kind or not kind]


def newest(directory: Path) -> Path:
    return max(directory.glob("step_*"))


def tensors(path: Path) -> dict[str, bytes]:
    """The bytes of all tensors of a good checkpoint, by name, type and shape."""
    assert verify(str(path)).state == "good"
    found = {}
    for shard in read_manifest(str(path)).shards:
        data = (path / shard.name).read_bytes()
        for piece in decode_header(lambda at, size, data=data: data[at : at + size], len(data)).pieces:
            found[f"{piece.name} {piece.dtype} {piece.whole}"] = data[piece.start : piece.end]
    return found
