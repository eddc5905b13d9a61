"""`unidle tune run` with a model: proposals are judged by cheat rules and by measurement, and endpoints that fail stop nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from e2e.commands import unidle
from tune.endpoints import Reply, edits, fails, served

PROGRAM = """import sys

TOTAL = 0
for step in range(3):
    for one in range(200_000):
        TOTAL += one % 7
print(TOTAL, file=sys.stderr)
"""
HONEST = {"file": "train.py", "old": "TOTAL += one % 7", "new": "TOTAL += one - one // 7 * 7", "why": "no modulo"}  # fmt: skip
CHEAT = {"file": "train.py", "old": "range(3)", "new": "range(1)", "why": "fewer steps"}


def run(tree: Path, url: str, *words: str) -> tuple[dict[str, Any], str]:
    (tree / "train.py").write_text(PROGRAM)
    found = {**os.environ, "UNIDLE_TUNE_URL": url, "UNIDLE_TUNE_MODEL": "small", "UNIDLE_TUNE_KEY": "sk-very-secret"}  # fmt: skip
    done = unidle("tune", "run", "--minutes", "1", "--json", *words, "--", "python3", "train.py", cwd=tree, env=found, timeout_s=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tree / "train.py").read_text() == PROGRAM
    assert "sk-very-secret" not in done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def with_model(tree: Path, *replies: Reply, words: tuple[str, ...] = ()) -> tuple[dict[str, Any], str, list[str]]:  # fmt: skip
    with served(*replies, key="sk-very-secret") as model:
        found, errors = run(tree, model.url, *words)
        assert not model.wrong
        return found, errors, [model.seen(at) for at in range(len(model.requests))]


def test_a_cheat_is_refused_with_its_rule_and_the_model_sees_it(tmp_path: Path) -> None:
    found, errors, seen = with_model(tmp_path, edits(CHEAT), edits())
    (one,) = found["tried"]
    assert (one["agent"], one["verdict"], one["speedup"]) == ("small", "rejected", None)
    assert one["why"].startswith("refused: train.py:4: `range(3)` is gone or changed (steps: ")
    assert "+for step in range(1):" in one["patch"]
    assert "train.py:5" in seen[0] or "train.py:6" in seen[0]  # where it spends its time
    assert "numbers of steps, epochs and samples are as they were" in seen[1]
    assert found["stack"] == {"speedup": None, "low": None, "high": None, "patch": ""}
    assert "no model is configured" not in errors


def test_an_edit_that_cannot_be_shown_to_compute_the_same_is_not_kept(tmp_path: Path) -> None:
    found, _, seen = with_model(tmp_path, edits(HONEST), edits(HONEST), words=("--rounds", "1"))
    (one,) = found["tried"]
    assert (one["verdict"], one["why"]) == ("inconclusive", "the unchanged program cannot be observed in float64")  # fmt: skip
    assert len(seen) == 1


def test_an_endpoint_that_fails_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    found, errors, _ = with_model(tmp_path, fails(401, "the key sk-very-secret is wrong"))
    assert found["tried"] == []
    assert "answers 401" in errors
    assert "check UNIDLE_TUNE_KEY" in errors


def test_without_an_endpoint_it_is_reported_once(tmp_path: Path) -> None:
    _, errors = run(tmp_path, "")
    assert errors.count("no model is configured (UNIDLE_TUNE_URL, UNIDLE_TUNE_MODEL)") == 1


def test_an_endpoint_that_is_no_address_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = unidle("tune", "run", "--", "python3", "train.py", cwd=tmp_path, env={**os.environ, "UNIDLE_TUNE_URL": "ftp://a"})  # fmt: skip
    assert isinstance(done, subprocess.CompletedProcess)
    assert done.returncode == 2
    assert "UNIDLE_TUNE_URL: is no URL of HTTP" in " ".join(done.stderr.split())
