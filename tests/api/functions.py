"""Functions that tests ship to ranks, and a way to run a script as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def train(lr: float, steps: int = 3) -> dict[str, object]:
    for step in range(1, steps + 1):
        print(f"step {step} loss {lr / step:.2f} rank {os.environ['UNIDLE_RANK']}")
    return {"rank": os.environ["UNIDLE_RANK"], "lr": lr}


def fail_in_rank_1() -> None:
    print("so far so good")
    if os.environ["UNIDLE_RANK"] == "1":
        raise ValueError("not aligned")


def run_script(text: str, place: Path, **more: object) -> subprocess.CompletedProcess[str]:
    """Run Python text as a script in ``place``, with a store of its own."""
    script = place / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "error", script], cwd=place, capture_output=True, text=True, timeout=60,
        env=environment(place), **more,
    )  # fmt: skip


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "UNIDLE_STORE": str(place / "store.db")}
