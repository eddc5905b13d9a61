"""Somebody stops a rank by hand: it is named, the gang starts again, and the ledger knows the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask, rows
from e2e.gangs import jobs_of, running
from waiting import wait_until

pytestmark = pytest.mark.slow
ALLREDUCE = Path(__file__).with_name("allreduce.py")
S = 1_000_000_000


def write_job(path: Path, steps: int, **fields: Any) -> Path:
    command = [sys.executable, str(ALLREDUCE), str(steps), "0.02"]
    job = {
        "name": "ring",
        "command": command,
        "ranks": 3,
        "progress": {"pattern": "at step ([0-9]+)"},
        **fields,
    }
    path.write_text(json.dumps(job))
    return path


def pid_of(store: Path, rank: int, attempt: int = 1, after_step: int = 3) -> int:
    """The process of a rank, once the gang is past a step."""

    def known() -> int | None:
        job = jobs_of(store).get("ring")
        if job is None or len(job.attempts) < attempt:
            return None
        tried = job.attempts[attempt - 1]
        return tried.ranks[rank].pid if (tried.last_step() or 0) >= after_step else None

    return int(wait_until(known, 60, f"step {after_step} of attempt {attempt}"))


def test_a_stopped_rank_is_named_and_the_gang_starts_again(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = write_job(tmp_path / "job.json", 150, restart={"max": 2, "backoff_s": 0})
    with running("run", job, "--store", store, "--cpu-devices", 4, stdout=subprocess.DEVNULL) as run:
        pid = pid_of(store, 1)
        stopped_ns = time.time_ns()
        os.kill(pid, signal.SIGSTOP)
        assert run.wait(90) == 0
    [incident] = ask("guard", "incidents", "--store", store)
    assert (incident["kind"], incident["rank"], incident["attempt"]) == ("hang", 1, 1)
    assert abs(incident["onset_ns"] - stopped_ns) < S
    assert incident["onset_ns"] <= incident["signal_ns"] < incident["verdict_ns"] < incident["resumed_ns"]
    assert incident["lost_steps"] >= 3
    assert "stopped" in incident["because"] and f"node {incident['node']}" in incident["because"]
    hung = sum(row["end_ns"] - row["start_ns"] for row in rows(store) if row["leaf"] == "hang")
    assert hung >= 3 * (incident["verdict_ns"] - incident["onset_ns"])
    story = ask("explain", "ring", "--store", store)
    assert story["odd_ranks"] == [1] and [row["rank"] for row in story["stacks"]] == [0, 1, 2]
    assert story["stacks"][1]["state"] == "stopped" and "allreduce.py" in story["stacks"][0]["at"]
    decided = [decision["what"] for decision in story["decisions"]]
    assert decided.index("stacks") + 1 == decided.index("stop")


def test_a_rank_that_is_stopped_before_the_first_step_is_looked_at_too(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    waits = [sys.executable, "-c", "import sys, time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"]
    job = {"name": "ring", "command": waits, "ranks": 2, "restart": {"max": 1, "backoff_s": 600}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    with running(
        "run", tmp_path / "job.json", "--store", store, "--cpu-devices", 2, stdout=subprocess.DEVNULL
    ):
        os.kill(pid_of(store, 0, after_step=0), signal.SIGSTOP)
        stacks = wait_until(lambda: jobs_of(store)["ring"].attempts[0].stacks, 60, "the stacks")
        wait_until(lambda: jobs_of(store)["ring"].state == "restarting", 60, "the gang's stop")
    assert stacks.odd == (0,)
    assert jobs_of(store)["ring"].attempts[0].why.text.endswith("; " + stacks.because.text.partition("; ")[2])


def test_a_job_without_restarts_is_told_of_and_goes_on_when_the_rank_does(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = write_job(tmp_path / "job.json", 150)
    with running("run", job, "--store", store, "--cpu-devices", 4, stdout=subprocess.DEVNULL) as run:
        pid = pid_of(store, 2)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: jobs_of(store)["ring"].attempts[0].verdicts, 60, "a verdict")
        os.kill(pid, signal.SIGCONT)
        assert run.wait(90) == 0
    # on a busy machine another rank may be slow, too
    [incident] = [one for one in ask("guard", "incidents", "--store", store) if one["kind"] == "hang"]
    assert (incident["kind"], incident["rank"], incident["lost_steps"]) == ("hang", 2, 0)
    assert incident["resumed_ns"] > incident["verdict_ns"]
    assert any(row["leaf"] == "hang" for row in rows(store))
    assert len(jobs_of(store)["ring"].attempts) == 1


def test_a_clean_run_has_no_incident(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = write_job(tmp_path / "job.json", 200, restart={"max": 2})
    with running("run", job, "--store", store, "--cpu-devices", 4, stdout=subprocess.DEVNULL) as run:
        assert run.wait(90) == 0
    assert ask("guard", "incidents", "--store", store) == []


def test_a_rank_that_dies_is_an_incident_of_its_own(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = write_job(
        tmp_path / "job.json", 100, restart={"max": 2, "backoff_s": 0}, price_per_device_hour=3600
    )
    with running("run", job, "--store", store, "--cpu-devices", 4, stdout=subprocess.DEVNULL) as run:
        os.kill(pid_of(store, 2), signal.SIGKILL)
        assert run.wait(90) == 0
    [incident] = ask("guard", "incidents", "--store", store)
    assert (incident["kind"], incident["rank"]) == ("exit", 2)
    assert incident["verdict_ns"] - incident["onset_ns"] < 2 * S
    assert incident["cost"] == pytest.approx(incident["device_s"], abs=1e-5)
