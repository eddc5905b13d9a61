"""What is kept, rejected and inconclusive: real programs in real children, compared by what they compute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nightly
from tune_trial.forked import with_plan
from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.tree_copy import tree_hash
from unidle.tune.trial.verify import verify
from unidle.tune.trial.workshop import Workshop

PROGRAM = """
import gc
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(24, 4), torch.randint(2, (24,)))
loader = DataLoader(data, batch_size=6, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    gc.collect()
model.eval()
with torch.no_grad():
    print(model(data.tensors[0]).mean().item())
torch.save(model.state_dict(), "model.pt")
"""
MUTANTS = {
    "order": ("shuffle=True", "shuffle=False"),
    "dropout": ("nn.Dropout(0.1)", "nn.Dropout(0.11)"),
    "clip": ("    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
    "rate": ("lr=1e-3", "lr=1.0001e-3"),
    "evaluation": ("model.eval()\n", ""),
    "checkpoint": ("torch.save(model.state_dict(), \"model.pt\")\n", ""),
    "decay": ("torch.optim.AdamW", "torch.optim.Adam"),
    "stale": ("    optimizer.zero_grad()\n", "    optimizer.zero_grad() if len(x) == 6 else None\n    model[3].bias.grad = None\n    model[0].weight.data += 1e-7\n"),
}  # fmt: skip


def change(old: str, new: str) -> TuneChange:
    return TuneChange("UDL206", "train.py", 1, "same", "a test", (Edit("train.py", old, new),))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    tree, scratch = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("scratch")
    (tree / "train.py").write_text(PROGRAM)
    before = tree_hash(tree)
    shop = with_plan(Workshop(tree, (sys.executable, "train.py"), scratch, time.monotonic() + 3600))
    yield shop
    shop.close()
    assert tree_hash(tree) == before


def test_change_that_computes_the_same_is_kept(shop: Workshop) -> None:
    assert verify(shop, [change("    gc.collect()\n", "")]) == ("kept", "")


@pytest.mark.parametrize("name", nightly.sweep(MUTANTS, always=["dropout", "order"]))
def test_change_of_what_is_computed_is_rejected(shop: Workshop, name: str) -> None:
    verdict, why = verify(shop, [change(*MUTANTS[name])])
    assert verdict == "rejected", why


def test_program_that_stops_before_its_end_is_rejected(shop: Workshop) -> None:
    verdict, why = verify(shop, [change("model.eval()", "raise SystemExit(3)")])
    assert (verdict, why) == ("rejected", "the changed program ended with 3")


def test_end_without_a_trace_is_inconclusive(shop: Workshop) -> None:
    verdict, why = verify(shop, [change("model.eval()", "import os\nos._exit(0)")])
    assert (verdict, why) == ("inconclusive", "the changed program cannot be observed in float64")


@pytest.mark.nightly
def test_random_losses_are_inconclusive(tmp_path: Path, shop: Workshop) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text(PROGRAM.replace("torch.manual_seed(0)", "torch.seed()"))
    other = Workshop(tree, shop.command, tmp_path, shop.end)
    verdict, why = verify(other, [change("    gc.collect()\n", "")])
    assert (verdict, why) == ("inconclusive", "the unchanged program differs from itself in float64")
