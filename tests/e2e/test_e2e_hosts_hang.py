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
from e2e.host_fleets import opened
from waiting import wait_until

pytestmark = pytest.mark.slow
ALLREDUCE = Path(__file__).with_name("allreduce.py")
S = 1_000_000_000


def test_a_rank_that_is_stopped_on_a_host_is_named_and_the_gang_starts_again(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        job = submit(
            fleet.store, tmp_path / "job.json", f"echo rank $RANK begins; exec {sys.executable} {ALLREDUCE} 150 0.02", ranks=2, device="cpu",
            restart={"max": 2, "backoff_s": 0}, progress={"pattern": "at step ([0-9]+)"},
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
        incidents = ask("guard", "incidents", "--store", fleet.store)
        [incident] = [one for one in incidents if one["job"] == job]  # the machine may have others
        assert (incident["kind"], incident["rank"], incident["attempt"]) == ("hang", 1, 1)
        assert incident["node"] == found.attempts[0].places[1].node
        assert abs(incident["onset_ns"] - stopped_ns) < S
        assert incident["onset_ns"] <= incident["signal_ns"] < incident["verdict_ns"] < incident["resumed_ns"]
        hung = sum(row["end_ns"] - row["start_ns"] for row in rows(fleet.store) if row["leaf"] == "hang")
        assert hung >= 2 * (incident["verdict_ns"] - incident["onset_ns"])
        story = ask("explain", job, "--store", fleet.store)
        assert story["odd_ranks"] == [1]
        assert [row["rank"] for row in story["stacks"]] == [0, 1]
        assert story["stacks"][1]["state"] == "stopped"
        assert "allreduce.py" in story["stacks"][0]["at"], story["stacks"]
        decided = [decision["what"] for decision in story["decisions"]]
        assert decided.index("stacks") + 1 == decided.index("stop")
        page = tmp_path / "page.html"
        done = unidle("report", job, "--store", fleet.store, "--out", page)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rank 1 begins" in page.read_text()  # what the rank at fault printed on its host
        assert fleet.up is not None
        fleet.up.terminate()
        fleet.up.wait(60)
        done = unidle("report", job, "--store", fleet.store, "--out", page)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rank 1 begins" not in page.read_text()
        assert "their controller cannot be reached" in page.read_text()
