"""Span files that are really run, small."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import ports
from e2e import commands

MODEL = """
from collections import defaultdict

import torch
from torch import nn


def build(layers=5, width=8):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def batch(step, index, size, seed):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=chance, dtype=torch.float64)
    return x, x.flip(1)


def loss(output, target):
    return nn.functional.mse_loss(output, target)


class Descent(torch.optim.Optimizer):
    \"""SGD, without what the constructors and steps of PyTorch's own ones import: its compiler, 1 s of CPU in each rank.\"""

    def __init__(self, parameters, lr):
        self.defaults, self.state = {"lr": lr}, defaultdict(dict)
        self.param_groups = [{"params": parameters, "lr": lr}]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
"""
TRAIN: dict[str, Any] = {
    "model": {"build": "model.py:build", "dtype": "float64"},
    "data": "model.py:batch",
    "loss": "model.py:loss",
    "steps": 4,
    "microbatch": 2,
    "optimizer": {"name": "model.py:Descent", "arguments": {"lr": 0.1}},
}
SGD: dict[str, Any] = {"name": "sgd", "arguments": {"lr": 0.1}}
MS = 1_000_000


def span(count: int = 2, microbatches: int = 4, **fields: Any) -> dict[str, Any]:
    """A span file of one stage in each site; a field that is None is left out."""
    names = [chr(ord("a") + k) for k in range(count)]
    found = {
        "stage_ns": {"forward": 2 * MS, "backward": 2 * MS, "weight": 2 * MS},
        "activation_bytes": 128,
        "stages": count,
        "microbatches": microbatches,
        "sites": [{"name": name, "stages": 1} for name in names],
        "links": [{"from": a, "to": b, "latency_ms": 1, "capacity_gbps": 1} for a, b in pairwise(names)],
        "train": TRAIN,
        **fields,
    }
    return {name: value for name, value in found.items() if value is not None}


def sites(names: str) -> list[dict[str, Any]]:
    """Sites of one stage, called by one letter each, with ports of their own: of the launcher, and after it of devices."""
    apart = ports.EACH // len(names)
    first = ports.block()
    return [
        {"name": name, "stages": 1, "hosts": [f"127.0.0.1:{first + apart * k}"]}
        for k, name in enumerate(names)
    ]


def written(place: Path, data: dict[str, Any]) -> Path:
    """The file, with its model beside it."""
    (place / "model.py").write_text(MODEL)
    path = place / "span.json"
    path.write_text(json.dumps(data))
    return path


def goes_on_as_one_process(file: Path, store: Path, changed: int, steps: int) -> None:
    """The run continues on loopback to this step from a checkpoint after step ``changed``, and its model is that of one process
    to the bit. A change of the plan pays if enough steps follow that a busy machine can restart: such a run is not waited for.
    """
    words = ("--no-namespaces", "--store", str(store), "--replan", "0", "--compare", "single")
    done = unidle("span", "run", str(file), *words, "--steps", str(steps))
    assert done.returncode == 0, done.stderr + done.stdout
    resumed = re.search(r"continues after step (\d+)", done.stdout)
    assert resumed is not None and int(resumed[1]) > changed, done.stdout
    same = r"largest difference of \d+ losses 0, of [\d,]+ parameters 0$"
    assert re.search(same, done.stdout, re.MULTILINE), done.stdout


def unidle(*words: str, timeout_s: float = 480) -> subprocess.CompletedProcess[str]:
    return commands.unidle(*words, timeout_s=timeout_s)
