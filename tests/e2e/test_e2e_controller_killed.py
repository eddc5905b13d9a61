"""The controller is killed with -9 at any moment; what the store says at the end is the same."""

from __future__ import annotations

import concurrent.futures
import json
import random
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import nightly
from e2e.commands import start, unidle
from unidle.control.queries.describe import job_detail
from unidle.ledger.columns import rows as part_rows
from unidle.ledger.current import check_batches
from unidle.ledger.export import standing_rows
from unidle.store import tools
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source

POINTS = nightly.rounds(32, 8)
# Causes whose share of a life depends on speed alone; they may be empty.
TIMING = ("no_demand", "scheduler_latency", "start")
SCRIPT = Path(__file__).parent / "lockstep.py"


def job_file(place: Path) -> Path:
    place.mkdir()
    path = place / "job.json"
    path.write_text(
        json.dumps(
            {
                "name": "gang",
                "command": [sys.executable, "-S", "-E", str(SCRIPT), str(place)],
                "ranks": 2,
                "checkpoint": {"path": str(place / "checkpoints")},
                "restart": {"max": 2, "backoff_s": 0.1, "on": ["signal"]},
                "progress": {"pattern": r"step (\d+)"},
            }
        )
    )
    return path


def outcome(place: Path) -> dict[str, Any]:
    """What does not depend on how long things took: results, attempts, ranks, causes in order."""
    store = open_store(str(place / "s.db"), create=False, read_only=True)
    assert tools.check(store).ok
    view = load_view(store)
    source = ledger_source(store, view)
    assert not check_batches(source.batches(source.extent()))
    (job,) = view.jobs.values()
    ledger: dict[str, list[Any]] = {}
    for part in standing_rows(source):
        for row in part_rows(part):
            key = (row.leaf, row.attempt, row.step)
            mine = ledger.setdefault(row.device, [])
            if row.leaf not in TIMING and mine[-1:] != [key]:
                mine.append(key)
    detail = job_detail(view, job)
    store.close()
    return {
        "state": job.state,
        "steps": job.steps(),
        "runs": [
            (run["outcome"], run["first_step"], run["last_step"], run["durable_step"],
             [(rank["code"], rank["slices"]) for rank in run["ranks"]])
            for run in detail["runs"]
        ],
        "ledger": ledger,
        "starts": sorted(line.split()[:2] for line in (place / "starts").read_text().splitlines()),
    }  # fmt: skip


def causes(ledger: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without the numbers of useful steps: two whose lines were read together share one moment, and the second has no time."""
    return {
        device: [
            key
            for key, _ in groupby(
                (leaf, attempt, None if leaf == "useful" else step) for leaf, attempt, step in rows
            )
        ]
        for device, rows in ledger.items()
    }


def submitted(store: Path) -> bool:
    if not store.exists():
        return False
    opened = open_store(str(store), create=True)  # a store that was being made is made whole
    try:
        return opened.last() != (0, 0) and bool(load_view(opened).jobs)
    finally:
        opened.close()


def run_killed(place: Path, after_s: float) -> tuple[dict[str, Any], bool]:
    """Run the job under a controller that is killed after a while, then drive the store to its end."""
    job = job_file(place)
    store = place / "s.db"
    controller = start("run", job, "--store", store)
    time.sleep(after_s)  # the moment of the kill is what is tried; nothing is waited for
    finished = controller.poll() is not None
    controller.kill()
    controller.wait()
    if not submitted(store):
        # nothing was acknowledged yet: the user submits again
        done = unidle("run", job, "--store", store)
        assert done.returncode == 0, done.stderr
        return outcome(place), finished
    done = unidle("up", "--store", store, "--until-idle")
    assert done.returncode == 0, done.stderr
    return outcome(place), finished


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    place = tmp_path_factory.mktemp("undisturbed") / "job"
    job = job_file(place)
    began = time.monotonic()
    done = unidle("run", job, "--store", place / "s.db")
    assert done.returncode == 0, done.stderr
    return outcome(place), time.monotonic() - began


def test_undisturbed_run_resumes_from_its_checkpoint(undisturbed: tuple[dict[str, Any], float]) -> None:
    seen, _ = undisturbed
    assert seen["state"] == "succeeded"
    assert seen["steps"] == 10
    first, second = seen["runs"]
    assert first[:4] == ("failed", 1, 5, 4)
    assert second[:3] == ("succeeded", 5, 10)
    assert ("replayed", 1, 5) in seen["ledger"]["local/0"]
    assert ("useful", 1, 4) in seen["ledger"]["local/1"]


@pytest.mark.slow
def test_controller_killed_at_any_point_changes_nothing(
    undisturbed: tuple[dict[str, Any], float], tmp_path: Path
) -> None:
    expected, took_s = undisturbed
    chance = random.Random(20)
    moments = [chance.uniform(0.05, took_s * 1.1) for _ in range(POINTS)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run_killed, tmp_path / f"{k:02}", moment) for k, moment in enumerate(moments)]
        seen = [run.result() for run in runs]
    for moment, (other, _) in zip(moments, seen, strict=True):
        for what, value in expected.items():
            if what == "ledger":
                assert causes(other[what]) == causes(value), (
                    f"killed after {moment:.3f} s: {other[what]}, not {value}"
                )
                continue
            assert other[what] == value, f"killed after {moment:.3f} s: {what} is {other[what]}, not {value}"
    assert (
        sum(not finished for _, finished in seen) >= POINTS // 4
    )  # the run without faults may have been a slow one
