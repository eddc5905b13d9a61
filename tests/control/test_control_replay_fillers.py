"""Fillers in replays of recorded jobs: no other job starts or ends at another time."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from unidle.control.replay.fillers import FillerWish, filler_outcome, with_fillers
from unidle.control.replay.workload import Assumptions, Scenario, replay, scenario_of
from unidle.files.fleet import fleet_from_mapping
from unidle.files.trace import load_trace
from unidle.store.memory import MemoryStore
from unidle.view.source import ledger_source

HEADER = "job,submit_s,duration_s,gpus,cpu_milli,memory_mib,model,queue,priority,preemptible,ranks"


def scenario(path: Path, lines: list[str], **more: object) -> Scenario:
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    fleet = {"nodes": [{"id": "n[1-2]", "devices": {"count": 8, "kind": "gpu", "model": "P100"}}], **more}
    return scenario_of(load_trace(path), fleet_from_mapping(fleet, "fleet"), skip_misfits=True)


def compared(found: Scenario, assumed: Assumptions, wish: FillerWish) -> tuple[int, int]:
    """How many other jobs moved, and how often fillers made room."""
    alone = replay(found, "unidle", MemoryStore(), assumed)
    store = MemoryStore()
    filled = replay(with_fillers(found, wish, alone.time_ns), "unidle", store, assumed)
    outcome = filler_outcome(alone, 0, filled, ledger_source(store, filled))
    assert outcome.filled_ns > 0 and outcome.fillers == wish.count
    return outcome.moved, outcome.yields


@pytest.mark.parametrize("estimates", ["none", "exact", "learned"])
def test_no_job_of_a_busy_trace_moves_whatever_is_known_of_run_times(tmp_path: Path, estimates: str) -> None:
    """Two queues that lend and borrow, jobs that are preempted, and nodes that fail."""
    lines = [
        f"j{k},{k * 250},{300 + k * 97 % 2000},{(1, 2, 8, 16)[k % 4]},0,0,,{'ab'[k % 2]},{k % 3},{str(k % 3 == 0).lower()},"
        for k in range(60)
    ]
    queues = [{"name": "a", "deserved": {"gpu": 8}}, {"name": "b", "limit": {"gpu": 16}}]
    found = scenario(tmp_path / "trace.csv", lines, queues=queues)
    assumed = Assumptions(checkpoint_every_s=60, mtbf_s=7200, mttr_s=600, estimates=estimates)  # type: ignore[arg-type]
    moved, yields = compared(found, assumed, FillerWish(6, 2))
    assert moved == 0 and yields > 10


def recorded() -> list[tuple[int, int, int]]:
    """Submission and run time in seconds, and GPUs: of real jobs where ``UNIDLE_DATA`` has them, else made up."""
    if "UNIDLE_DATA" not in os.environ:
        return [(k * 900, 60 + k * k * 131 % 20_000, (1, 1, 2, 1, 8)[k % 5]) for k in range(150)]
    with (Path(os.environ["UNIDLE_DATA"]) / "philly" / "e13805.csv").open() as told:
        jobs = list(csv.DictReader(told))[:150]
    return [(int(job["submit_s"]), max(int(job["duration_s"]), 1), int(job["gpus"])) for job in jobs]


def test_no_job_of_a_recorded_trace_moves(tmp_path: Path) -> None:
    lines = [
        f"j{k},{at_s},{for_s},{gpus},0,0,,default,0,false,"
        for k, (at_s, for_s, gpus) in enumerate(recorded())
    ]
    moved, yields = compared(scenario(tmp_path / "trace.csv", lines), Assumptions(), FillerWish(16))
    assert moved == 0 and yields > 30
