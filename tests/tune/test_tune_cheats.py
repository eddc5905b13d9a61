"""Cheats are refused with rule and place; honest changes are not. The corpus is that of `bench/tune_cheats.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unidle.tune.cheats import CheatRefusal, cheats
from unidle.tune.edits import FileChange

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """import time
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    began = time.time()
    weight = torch.ones(2)
    loss = (model(torch.randn(8, 4)) * weight).sum()
    loss.backward()
    optimizer.step()
    print(loss.item(), time.time() - began)
"""


def refused(old: str, new: str, file: str = "train.py") -> list[CheatRefusal]:
    assert PROGRAM.count(old) == 1
    return cheats([FileChange(file, PROGRAM, PROGRAM.replace(old, new))])


def test_a_refusal_names_rule_and_place() -> None:
    (one,) = refused("range(100)", "range(10)")
    assert (one.rule, one.file, one.line) == ("steps", "train.py", 5)
    assert one.text().startswith("train.py:5: `range(100)` is gone or changed (steps: ")


@pytest.mark.parametrize(
    ("file", "rule"),
    [
        ("tests/check.py", "tests"), ("test_train.py", "tests"), ("sitecustomize.py", "harness"), ("conftest.py", "harness"),
        ("data.csv", "data"), ("settings.yaml", "data"),
    ],
)  # fmt: skip
def test_some_files_are_never_edited(file: str, rule: str) -> None:
    assert [one.rule for one in cheats([FileChange(file, "a = 1\n", "a = 2\n")])] == [rule]


def test_a_change_without_effect_on_training_is_not_refused() -> None:
    assert not refused("    weight = torch.ones(2)\n", "    # in each step\n    weight = torch.ones(2)\n")
    assert not refused("lr=0.1", "lr=0.1, foreach=True")


ROWS = "import torch\ndef scale(x):\n    y = torch.zeros_like(x)\n    for k in range(x.size(0)):\n        y[k] = x[k] * 2\n    return y\n"


def test_a_loop_that_fills_rows_may_become_one_call_and_a_loop_of_steps_may_not() -> None:
    after = "import torch\ndef scale(x):\n    y = torch.zeros_like(x)\n    y[:] = x * 2\n    return y\n"
    assert not cheats([FileChange("train.py", ROWS, after)])
    steps = ROWS.replace("y[k] = x[k] * 2", "y[k] = x[k] * 2\n        update(y)")
    assert "steps" in {one.rule for one in cheats([FileChange("train.py", steps, after)])}


def test_the_corpus_of_the_benchmark_has_no_miss_and_no_false_refusal_in_development() -> None:
    done = subprocess.run(
        [sys.executable, "bench/tune_cheats.py", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 4, done.stderr
    assert [one["ours"] for one in found if "development" in one["what"]] == [0, 0]


RANKS = """import torch
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    optimizer.step()
    torch.distributed.barrier()
torch.distributed.barrier()
"""


WRAPPERS = (
    ("from torch.nn.parallel import DistributedDataParallel", "DistributedDataParallel"),
    ("from torch.nn.parallel import DistributedDataParallel as DDP", "DDP"),
    ("from torch import nn", "nn.parallel.DistributedDataParallel"),
    ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", "FSDP"),
)


@pytest.mark.parametrize(("imports", "name"), WRAPPERS)
def test_a_barrier_may_leave_a_step_by_whatever_name_its_model_is_wrapped(imports: str, name: str) -> None:
    first, _, rest = RANKS.partition("\nfrom torch.nn.parallel import DistributedDataParallel\n")
    program = f"{first}\n{imports}\n{rest.replace('DistributedDataParallel', name)}"
    assert not cheats([FileChange("train.py", program, program.replace("    torch.distributed.barrier()\n", ""))])  # fmt: skip


def test_a_barrier_may_leave_a_step_only_where_gradients_synchronise_the_ranks() -> None:
    inside, outside = "    torch.distributed.barrier()\n", "\ntorch.distributed.barrier()\n"
    assert not cheats([FileChange("train.py", RANKS, RANKS.replace(inside, ""))])
    (gone,) = cheats([FileChange("train.py", RANKS, RANKS.replace(outside, "\n"))])
    assert (gone.rule, gone.line) == ("work", 10)
    alone = RANKS.replace("DistributedDataParallel(torch.nn.Linear(4, 2))", "torch.nn.Linear(4, 2)")
    assert [one.rule for one in cheats([FileChange("train.py", alone, alone.replace(inside, ""))])] == ["work"]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "is_cheat"),
    [("", False), (", eval_strategy='steps', eval_steps=50", False), (", eval_strategy='steps'", True), (", **more", True)],
)  # fmt: skip
def test_a_trainer_may_log_less_often_if_it_evaluates_as_often(more: str, is_cheat: bool) -> None:
    before = f"from transformers import TrainingArguments\nmore = {{}}\nargs = TrainingArguments('out', logging_steps=1{more})\n"
    after = before.replace("logging_steps=1", "logging_steps=50")
    assert [one.rule for one in cheats([FileChange("train.py", before, after)])] == ["work"] * (2 * is_cheat)
