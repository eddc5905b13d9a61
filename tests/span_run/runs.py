"""Span files that are really run, small."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import ports
from e2e import commands

MODEL = """
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
"""
TRAIN: dict[str, Any] = {
    "model": {"build": "model.py:build", "dtype": "float64"},
    "data": "model.py:batch",
    "loss": "model.py:loss",
    "steps": 4,
    "microbatch": 2,
    "optimizer": {"name": "sgd", "arguments": {"lr": 0.1}},
}
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


def unidle(*words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return commands.unidle(*words, timeout_s=timeout_s)
