"""`unidle tune run`: bad input, programs that fail, and directories that stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from e2e.commands import unidle
from unidle.tune.trial.evidence import SHADOW, ComputedTrace, compare
from waiting import wait_until


def test_program_without_edits_is_run_once_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("open('made', 'w').write('x')\n")
    done = unidle("tune", "run", "--json", "--", "python3", "a.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tried"] == []
    assert found["stack"] == {"speedup": None, "low": None, "high": None, "patch": ""}
    assert found["baseline"]["wall_s"] > 0
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]


def test_program_that_fails_is_one_error_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise ValueError('no data')\n")
    done = unidle("tune", "run", "--", "python3", "a.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "the program ended with 1: ValueError: no data" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input(tmp_path: Path) -> None:
    assert unidle("tune", "run", cwd=tmp_path).returncode == 2
    assert unidle("tune", "run", "--minutes", "0", "--", "true", cwd=tmp_path).returncode == 2
    assert unidle("tune", "run", "--", "true", cwd=Path("/")).returncode == 2


def test_sigterm_ends_the_program_and_leaves_no_copy(tmp_path: Path) -> None:
    code, scratch = tmp_path / "code", tmp_path / "scratch"
    code.mkdir()
    scratch.mkdir()
    (code / "a.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(600)\n")
    words = [sys.executable, "-P", "-m", "unidle", "tune", "run", "--", sys.executable, "a.py"]
    with subprocess.Popen(
        words, cwd=code, env=os.environ | {"TMPDIR": str(scratch)}, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: any(scratch.rglob("begun")), 60, "the program in its copy")
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(scratch.iterdir()) == []


def trace(*values: float, whole: bool = True) -> ComputedTrace:
    return ComputedTrace(tuple(("parameters", [[4, one, one / 2, one / 3]]) for one in values), whole)


def test_traces_differ_by_value_number_and_kind() -> None:
    assert compare(trace(1.0, 2.0), trace(1.0, 2.0), SHADOW).where == ""
    assert compare(trace(1.0, 2.0), trace(1.0, 2.0 * (1 + 1e-12)), SHADOW).where == ""
    assert compare(trace(1.0, 2.0), trace(1.0, 2.0 * (1 + 1e-8)), SHADOW).where.startswith(
        "parameters of step 2 differs"
    )
    assert compare(trace(1.0, 2.0), trace(1.0), SHADOW).where == "1 record instead of 2"
    assert compare(trace(1.0), trace(float("nan")), SHADOW).where
    assert not trace(1.0, whole=False).shows
    assert not ComputedTrace((("loss", [1.0]),), True).shows
