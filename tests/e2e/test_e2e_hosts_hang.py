"""A rank on another host is stopped by hand: it is named, the gang starts again, and the log and the ledger know it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from e2e.commands import ask, rows, unidle
from e2e.gangs import submit
from e2e.host_fleets import Fleet, opened
from unidle.view.jobs import JobView
from waiting import wait_until

pytestmark = pytest.mark.slow
ALLREDUCE = Path(__file__).with_name("allreduce.py")
S = 1_000_000_000


def hung_once(fleet: Fleet) -> tuple[JobView, int]:
    """A job that ended well although its rank 1 was stopped once, and when that was."""
    job = submit(
        fleet.store, fleet.place / "job.json", f"echo rank $RANK begins; exec {sys.executable} {ALLREDUCE} 150 0.02",
        ranks=2, device="cpu", restart={"max": 2, "backoff_s": 0}, progress={"pattern": "at step ([0-9]+)"},
    )  # fmt: skip

    def pid() -> int | None:
        found = fleet.job(job)
        under_way = found is not None and found.attempts and (found.attempts[0].last_step() or 0) > 3
        return found.attempts[0].ranks[1].pid if found is not None and under_way else None

    stopped = wait_until(pid, 90, "steps")
    stopped_ns = time.time_ns()
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120)
    found = fleet.job(job)
    assert found is not None
    assert (found.state, len(found.attempts)) == ("succeeded", 2)
    return found, stopped_ns


def check_incident(fleet: Fleet, job: JobView, stopped_ns: int) -> None:
    incidents = ask("guard", "incidents", "--store", fleet.store)
    [incident] = [one for one in incidents if one["job"] == job.id]  # the machine may have others
    assert (incident["kind"], incident["rank"], incident["attempt"]) == ("hang", 1, 1)
    assert incident["node"] == job.attempts[0].places[1].node
    assert abs(incident["onset_ns"] - stopped_ns) < S
    # moved from the clock of the host at two moments, between which its offset is measured better
    assert incident["onset_ns"] <= incident["signal_ns"] + S // 1000
    assert incident["signal_ns"] < incident["verdict_ns"] < incident["resumed_ns"]
    hung = sum(row["end_ns"] - row["start_ns"] for row in rows(fleet.store) if row["leaf"] == "hang")
    assert hung >= 2 * (incident["verdict_ns"] - incident["onset_ns"])


def check_stacks(fleet: Fleet, job: JobView) -> None:
    story = ask("explain", job.id, "--store", fleet.store)
    assert story["odd_ranks"] == [1]
    assert [row["rank"] for row in story["stacks"]] == [0, 1]
    assert story["stacks"][1]["state"] == "stopped"
    assert "allreduce.py" in story["stacks"][0]["at"], story["stacks"]
    decided = [decision["what"] for decision in story["decisions"]]
    assert decided.index("stacks") + 1 == decided.index("stop")


def report(fleet: Fleet, job: JobView) -> str:
    page = fleet.place / "page.html"
    done = unidle("report", job.id, "--store", fleet.store, "--out", page)
    assert (done.returncode, done.stderr) == (0, "")
    return page.read_text()


def test_a_rank_that_is_stopped_on_a_host_is_named_and_the_gang_starts_again(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        job, stopped_ns = hung_once(fleet)
        check_incident(fleet, job, stopped_ns)
        check_stacks(fleet, job)
        assert "rank 1 begins" in report(fleet, job)  # what the rank at fault printed on its host
        assert fleet.up is not None
        fleet.up.terminate()
        fleet.up.wait(60)
        away = report(fleet, job)
        assert "rank 1 begins" not in away
        assert "the controller of the hosts cannot be reached" in away
