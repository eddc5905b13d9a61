"""What reading a job file, reading a fleet file and the doctor cost, in fresh processes."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main

JOB = """
name: gpt-small
command: [python, train.py, --lr, "3e-4"]
ranks: 4
layout: {tp: 2, dp: 2}
checkpoint: {path: checkpoints}
restart: {max: 3, backoff_s: 1, on: [signal, 75]}
limits: {memory: 2GB, cpus: 1}
"""
FLEET = 'nodes: [{id: "n[1-12500]", devices: {count: 8, kind: gpu, model: H100}}]\n'
BAD = "command: [a]\nrestart: {backof_s: 1}\n"

NOTHING = "pass"
LOAD_JOB = "from unidle.files.job import load_job; load_job(sys.argv[1])"
REFUSE_JOB = """
from unidle.errors import BadInput
from unidle.files.job import load_job
try: load_job(sys.argv[1])
except BadInput: pass
"""
LOAD_FLEET = "from unidle.files.fleet import load_fleet; load_fleet(sys.argv[1])"
DOCTOR = "from unidle.doctor import checks; checks()"


def cpu_ms(code: str, argument: str, runs: int) -> float:
    """Median CPU time of a fresh interpreter that runs ``code``, its children included."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    # Byte code is cached, as it is in an installation.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    spent = []
    for _ in range(runs + 1):
        before = children_s()
        subprocess.run([sys.executable, "-c", f"import sys\n{code}", argument], check=True, env=environ)
        spent.append(children_s() - before)
    return 1000 * statistics.median(spent[1:])


def children_s() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    runs: int = arguments.runs
    with tempfile.TemporaryDirectory() as directory:
        job, bad, fleet = (Path(directory) / name for name in ("job.yaml", "bad.yaml", "fleet.yaml"))
        job.write_text(JOB)
        bad.write_text(BAD)
        fleet.write_text(FLEET)
        idle_ms = cpu_ms(NOTHING, "", runs)
        how = f"measured here, median of {runs} processes, less {idle_ms:.0f} ms of Python itself"
        cases = [
            ("load a job file", LOAD_JOB, job, 120.0),
            ("refuse a job file", REFUSE_JOB, bad, 150.0),
            ("load a fleet of 100,000 devices", LOAD_FLEET, fleet, 2000.0),
            ("doctor, all checks", DOCTOR, job, 500.0),
        ]
        for what, code, path, goal_ms in cases:
            ours = cpu_ms(code, str(path), runs) - idle_ms
            goal = f"at most {goal_ms:g} ms of CPU"
            yield Row(what, "ms", round(ours, 1), goal=goal, holds=ours <= goal_ms, how=how)


if __name__ == "__main__":
    main(
        "files",
        rows,
        lambda parser: parser.add_argument("--runs", type=int, default=15, help="processes per figure"),
    )
