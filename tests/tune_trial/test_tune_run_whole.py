"""`unidle tune run` on a training script of PyTorch, from the command to the patch and the report. The planted cause is so large that no load hides it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import unidle
from tune.endpoints import edits, served
from unidle.tune.trial.tree_copy import tree_hash

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
PROGRAM = Path(__file__).with_name("whole_training.txt").read_text(encoding="utf-8")
CHEAT = {"file": "train.py", "old": "range(STEPS)", "new": "range(STEPS // 2)", "why": "half of the steps are enough"}  # fmt: skip
WRONG = {"file": "train.py", "old": "nn.ReLU()", "new": "nn.GELU()", "why": "another activation"}
DATA = """
import sys, numpy as np
chance = np.random.RandomState(0)
np.save(sys.argv[1] + "/signals.npy", chance.randn(128, 8000).astype("float32"))
np.save(sys.argv[1] + "/labels.npy", chance.randint(2, size=128))
"""


@dataclass(frozen=True)
class Outcome:
    """What one run of the command left."""

    document: dict[str, Any]
    tree: Path
    report: str
    is_same_tree: bool
    left: list[str]
    sent: list[str]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    tree, place = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("place")
    scratch, report = place / "scratch", place / "report.html"
    scratch.mkdir()
    (tree / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "-P", "-c", DATA, tree], check=True)
    before = tree_hash(tree)
    with served(edits(CHEAT), edits(WRONG), edits()) as model:
        found = {**os.environ, "TMPDIR": str(scratch), "UNIDLE_TUNE_URL": model.url, "UNIDLE_TUNE_MODEL": "small"}  # fmt: skip
        done = unidle(
            "tune", "run", "--minutes", 60, "--rounds", 2, "--report", report, "--json", "--", sys.executable, "train.py",
            cwd=tree, env=found, timeout_s=3600,
        )  # fmt: skip
        sent = [model.seen(at) for at in range(len(model.requests))]
    assert done.returncode == 0, done.stderr
    left = [*(one.name for one in scratch.iterdir()), *with_variable(f"TMPDIR={scratch}")]
    return Outcome(json.loads(done.stdout), tree, report.read_text(), tree_hash(tree) == before, left, sent)


def with_variable(text: str) -> list[str]:
    """Processes with this in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in file.read_bytes().split(b"\0"):
                found.append((file.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def tried(outcome: Outcome, name: str) -> list[dict[str, Any]]:
    return [one for one in outcome.document["tried"] if name in (one.get("code"), one.get("agent"))]


def test_a_planted_cause_is_kept_and_its_patch_applies(outcome: Outcome, tmp_path: Path) -> None:
    (one,) = tried(outcome, "UDL103")
    assert one["verdict"] == "kept", outcome.document
    assert one["class"] == "same"
    assert outcome.document["stack"]["low"] > 1.03
    assert outcome.document["baseline"]["steps"] == 9
    (tmp_path / "train.py").write_text(PROGRAM)
    patch = outcome.document["stack"]["patch"]
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    changed = (tmp_path / "train.py").read_text()
    assert "torch.tensor([signals[n]" not in changed
    assert changed.splitlines()[-1] == PROGRAM.splitlines()[-1]


def test_a_cheat_is_refused_before_it_runs_and_a_wrong_edit_by_what_it_computes(outcome: Outcome) -> None:
    cheat, wrong = tried(outcome, "small")
    assert (cheat["verdict"], cheat["speedup"]) == ("rejected", None)
    assert cheat["why"].startswith("refused: train.py:")
    assert (wrong["verdict"], wrong["speedup"]) == ("rejected", None)
    assert wrong["why"].startswith("in float64, output of step 1 differs by ")
    assert "numbers of steps, epochs and samples are as they were" in outcome.sent[1]


def test_the_tree_is_as_before_and_nothing_is_left(outcome: Outcome) -> None:
    assert outcome.is_same_tree
    assert outcome.left == []


def test_the_noise_of_the_machine_is_part_of_the_result(outcome: Outcome) -> None:
    base = outcome.document["baseline"]
    assert 0 <= base["waited_pct"] <= 100
    assert base["control"]["low"] <= base["control"]["speedup"] <= base["control"]["high"]
    assert "of the measured time for a CPU" in outcome.report
