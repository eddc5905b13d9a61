"""``unidle fill simulate`` as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from e2e.commands import unidle
from fill.worlds import fill_file

CONTRACT = {
    "utilisation_before", "utilisation_after", "training_slowdown_pct", "ttft_ms", "tpot_ms", "accepted", "spilled", "rejected",
    "discarded_ns",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fill.json"
    path.write_text(json.dumps(fill_file(seconds=1.5)))
    return path


def test_json_has_the_figures_of_the_contract(file: Path) -> None:
    done = unidle("fill", "simulate", str(file), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= CONTRACT
    assert found["training_slowdown_pct"] == 0 == found["discarded_ns"]
    assert found["utilisation_after"] > found["utilisation_before"] > 0
    assert found["ttft_ms"]["p99"] >= found["ttft_ms"]["p50"] > 0 < found["tpot_ms"]["p50"]
    assert (found["how"], found["schedule"], found["policy"]) == ("modelled", "unidle", "unidle")
    assert set(found["ledger"]["ns"]) == {
        "useful",
        "recompute",
        "exposed_local",
        "bubble",
        "filled",
        "discarded",
    }
    whole = sum(ns for causes in found["ledger"]["ns"].values() for ns in causes.values())
    assert whole == 12 * found["end_ns"]


def test_the_page_has_the_ledger_and_says_that_it_is_modelled(file: Path) -> None:
    done = unidle("fill", "simulate", str(file), "--schedule", "atlas", "--policy", "pipefill")
    assert done.returncode == 0, done.stderr
    assert "All figures are modelled. This policy is reconstructed from a paper." in done.stdout
    assert "filled" in done.stdout and "Time to first token" in done.stdout


def test_the_timeline_has_training_and_filler(file: Path, tmp_path: Path) -> None:
    rows, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    for target in (rows, lines):
        done = unidle("fill", "simulate", str(file), "--timeline", str(target), "--json")
        assert done.returncode == 0, done.stderr
    table = list(csv.DictReader(rows.read_text().splitlines()))
    assert [
        {name: str(value) for name, value in json.loads(line).items()}
        for line in lines.read_text().splitlines()
    ] == table
    assert list(table[0])[:7] == [
        "device_or_link",
        "op",
        "pipeline",
        "stage",
        "microbatch",
        "start_ns",
        "end_ns",
    ]
    assert {row["op"] for row in table} == {
        "F", "B", "W", "allreduce", "fill", "handoff", "send", "scatter", "gather",
    }  # fmt: skip
    assert {row["of"] for row in table if row["op"] in ("fill", "handoff")} == {"prefill"}
    assert [int(row["start_ns"]) for row in table] == sorted(int(row["start_ns"]) for row in table)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.yaml",), "there is no such file"),
        (
            ("--policy", "best"),
            "--policy: is not a choice (got 'best'); use one of unidle, no-guard, whole, pipefill, freeride",
        ),
        (("--schedule", "atlas,unidle"), "--schedule: must be one"),
        (("--schedule", "best"), "--schedule: there is no such schedule"),
        (("--timeline", "/nowhere/rows.csv"), "--timeline"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(file: Path, words: tuple[str, ...], told: str) -> None:
    given = words if not words[0].startswith("-") else (str(file), *words)
    done = unidle("fill", "simulate", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr and done.stderr.count("\n") == 1


def test_the_schema_is_printed() -> None:
    done = unidle("schema", "fill")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "unidle fill file"
