"""Predictions of real runs: what ``unidle predict`` and ``unidle explain`` print of them, and bad questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.commands import ask, unidle

FLEET = """
nodes:
  - {id: n1, devices: {count: 2, kind: cpu, model: core}}
prices: {core: 3.6}
"""
TRAIN = """
import time
for k in range(1, 16):
    time.sleep(0.03)
    print(f"iter {k}: loss 1.0000, time 30.00ms, mfu 1.00%", flush=True)
"""


def test_the_second_run_is_foretold_from_the_first_and_checked(tmp_path: Path) -> None:
    store, fleet, script = tmp_path / "s.db", tmp_path / "fleet.yaml", tmp_path / "train.py"
    fleet.write_text(FLEET)
    script.write_text(TRAIN)
    for _ in range(2):
        done = unidle(
            "run", "--fleet", fleet, "--store", store, "--name", "train", "--ranks", 2, "--", "python", script
        )
        assert done.returncode == 0, done.stderr
    told = ask("predict", "--name", "train", "--store", store)
    (row,) = told["models"]
    assert (told["devices"], told["steps_left"], row["model"], row["attempts"]) == (2, 15, "core", 2)
    assert row["steps"] == 28 and row["low_ns"] <= row["step_ns"] <= row["high_ns"]
    assert 0.03e9 <= row["step_ns"] < 0.3e9
    assert row["cost_per_1000_steps"] == pytest.approx(row["step_ns"] / 1e9 * 2 * 0.001 * 1000, rel=1e-3)
    said = ask("explain", "train", "--store", store)["predictions"]
    assert {p["what"] for p in said} == {"run_time", "step_time", "cost"}
    assert all(p["error_ns"] is not None or p["cost"]["error"] is not None for p in said)
    scores = {row["what"]: row for row in ask("predict", "--store", store)}
    assert scores["step_time"]["known"] >= 1 and scores["cost"]["unit"] == "USD"
    shown = unidle("predict", "train", "--store", store).stdout
    assert "28 steps of 2 attempts" in " ".join(shown.split()) and "core" in shown
    told = unidle("explain", "train", "--store", store).stdout
    assert "step time" in told and re.search(
        r"  cost 0\.\d+ USD( \(0\.\d+ to 0\.\d+.*\))?, from .*it was 0\.\d+ (more|less)\n", told
    )


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["nope"], "JOB"),
        (["--name", "nope"], "--name"),
        (["--devices", "4"], "--devices"),
        (["--user", "a"], "--user"),
    ],
)
def test_a_question_that_has_no_answer_is_one_clear_error(
    tmp_path: Path, words: list[str], field: str
) -> None:
    store = tmp_path / "s.db"
    assert unidle("run", "--cpu-devices", 1, "--store", store, "--", "true").returncode == 0
    done = unidle("predict", *words, "--store", store)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"unidle: {field}: " in done.stderr and done.stderr.count("\n") == 1
