"""Drills of a gang without PyTorch, carried out in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from unidle.drill.conduct import DrillReport, conduct
from unidle.drill.end_state import Cache
from unidle.files.drill import Drill, Fault
from unidle.files.job import job_from_mapping

GANG = Path(__file__).with_name("gang.py")


def drill_of(
    tmp_path: Path,
    *faults: Fault,
    steps: int = 100,
    nodes: int = 3,
    sleep_s: float = 0.02,
    work_s: float = 0.0,
    retries: int = 5,
) -> Drill:
    workdir = tmp_path / "work"
    workdir.mkdir(exist_ok=True)
    fields = {
        "name": "gang",
        "command": [sys.executable, str(GANG), str(steps), str(sleep_s), str(work_s)],
        "workdir": str(workdir),
        "ranks": 3,
        "checkpoint": {"path": "checkpoints"},
        "progress": {"pattern": "^step ([0-9]+)"},
        "restart": {"max": retries, "backoff_s": 0.1},
        "grace_s": 1,
    }
    names = tuple(f"n{k + 1}" for k in range(nodes))
    return Drill(
        job_from_mapping(fields, "test", tmp_path), names, (3,) if nodes == 1 else (1,) * nodes, faults,
        result="result.json", timeout_s=120, disk_bytes=16 << 20,
    )  # fmt: skip


def carried_out(tmp_path: Path, *faults: Fault, **more: float) -> DrillReport:
    return conduct(drill_of(tmp_path, *faults, **more), Cache(tmp_path / "cache"), lambda _: None)  # type: ignore[arg-type]
