"""`make demo-fill`: the same losses before and after filling, answers of the service, both ledgers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fill_run.conftest import groups

ROOT = Path(__file__).resolve().parents[2]
NOT_IDLE = ROOT / "tests" / "fill_run" / "not_idle"
__all__ = ["groups"]


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
def test_demo_fills_a_pipeline_and_its_losses_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the demo asks by the client of OpenAI")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo_fill.py"), "--directory", str(tmp_path / "demo")],
        env={**os.environ, "PYTHONPATH": str(NOT_IDLE)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"All \d+ losses are equal to the bit\.", done.stdout)
    assert re.search(r"\d+ answers; [1-9]\d* prompts prefilled in waits", done.stdout)
    assert re.search(r"filled +0\.0 % ·+ +\d", done.stdout)
    assert "Losses of 60 steps: equal to the bit." in done.stdout
