"""`unidle tune run` on programs of PyTorch, from the command to the patch: what is right is kept, what is wrong is not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import unidle
from tune.endpoints import edits, served

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]
SLOW = Path(__file__).with_name("slow_training.txt").read_text(encoding="utf-8")
PLANTED = {"UDL303", "UDL404", "UDL405", "UDL206"}
DECOY = "UDL201"
SMALL = """
import gc
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
objects = [[n] for n in range(300_000)]
for step in range(80):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 8)).square().mean()
    loss.backward()
    optimizer.step()
    gc.collect()  # noqa: UDL206
"""
SLOWER = {"file": "train.py", "old": "    loss.backward()\n", "new": "    loss.backward(gradient=torch.ones(()) * 1.5)\n", "why": "larger gradients"}  # fmt: skip
HONEST = {"file": "train.py", "old": "    gc.collect()  # noqa: UDL206\n", "new": "", "why": "Python collects by itself"}  # fmt: skip


def run(tree: Path, text: str, minutes: int, **more: str) -> dict[str, Any]:
    (tree / "train.py").write_text(text)
    done = unidle(
        "tune", "run", "--minutes", minutes, "--json", "--", sys.executable, "train.py",
        cwd=tree, env={**os.environ, **more}, timeout_s=minutes * 60 + 600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [one.name for one in tree.iterdir()] == ["train.py"]
    assert (tree / "train.py").read_text() == text
    return json.loads(done.stdout)


def applied(tree: Path, patch: str) -> str:
    subprocess.run(["git", "apply", "-"], cwd=tree, input=patch, text=True, check=True)
    return (tree / "train.py").read_text()


def test_planted_causes_are_kept_and_a_decoy_is_left_alone(tmp_path: Path) -> None:
    found = run(tmp_path, SLOW, 20)
    verdicts = {one["code"]: one["verdict"] for one in found["tried"]}
    assert verdicts.keys() >= PLANTED
    assert DECOY not in verdicts
    assert sum(verdicts[code] == "kept" for code in PLANTED) >= 2, found["tried"]
    assert found["baseline"]["steps"] > 0
    assert found["stack"]["low"] > 1.03
    assert all({"patch", "verdict", "why", "speedup", "low", "high"} <= one.keys() for one in found["tried"])
    assert applied(tmp_path, found["stack"]["patch"]) != SLOW


def test_a_model_has_its_wrong_edit_rejected_and_its_right_one_kept(tmp_path: Path) -> None:
    with served(edits(SLOWER), edits(HONEST), edits()) as model:
        found = run(tmp_path, SMALL, 30, UNIDLE_TUNE_URL=model.url, UNIDLE_TUNE_MODEL="small")
    wrong, right = found["tried"]
    assert (wrong["verdict"], wrong["why"]) == ("rejected", wrong["why"])
    assert wrong["why"].startswith(("in float64, ", "refused: "))
    assert right["verdict"] == "kept", right
    assert right["agent"] == "small"
    assert "gc.collect" not in applied(tmp_path, found["stack"]["patch"])
