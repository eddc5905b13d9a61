"""``unidle span plan`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "span" / "plan-wan.yaml")
CONTRACT = {"sites", "layers", "cell", "microbatch", "schedule", "iteration_ns", "lower_bound_ns", "left_out"}


def unidle(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unidle", *words], capture_output=True, text=True, timeout=120
    )


def test_json_has_the_figures_of_the_contract_and_what_is_written_is_simulated(tmp_path: Path) -> None:
    file = str(tmp_path / "chosen.yaml")
    done = unidle("span", "plan", EXAMPLE, "--objective", "time", "--json", "--write", file)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() >= CONTRACT
    assert all(each.keys() == {"site", "because"} for each in told["left_out"])
    assert sum(told["layers"]) == 48 and len(told["layers"]) == sum(site["stages"] for site in told["sites"])
    assert told["lower_bound_ns"] <= told["iteration_ns"]
    again = json.loads(unidle("span", "simulate", file, "--schedule", told["schedule"], "--json").stdout)
    assert again["unidle"]["iteration_ns"] == told["iteration_ns"]


def test_the_table_says_what_is_left_out_and_what_renting_changes() -> None:
    done = unidle(
        "span", "plan", EXAMPLE, "--objective", "cost", "--rent", "oregon:192:2.0", "--schedule", "zb-h1"
    )
    assert done.returncode == 0, done.stderr
    assert "Left out: singapore" in done.stdout and "Without what is rented" in done.stdout


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    for words in (
        (EXAMPLE, "--objective", "both"),
        (EXAMPLE, "--planner", "best"),
        (EXAMPLE, "--rent", "x"),
        (str(tmp_path / "none.yaml"),),
    ):
        done = unidle("span", "plan", *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
