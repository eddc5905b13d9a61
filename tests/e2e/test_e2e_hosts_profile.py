"""Ranks on hosts are profiled by their agents, for a command on the controller's machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.commands import unidle
from e2e.gangs import submit
from e2e.test_e2e_hosts import Fleet, opened
from waiting import wait_until

pytestmark = pytest.mark.slow
WORKS = "exec python3 -c 'def train_it():\n  while True: sum(range(1000))\ntrain_it()'"


def runs(fleet: Fleet, job: str) -> bool:
    found = fleet.job(job)
    return found is not None and found.live is not None and found.live.all_spawned


def test_a_gang_on_two_hosts_is_profiled_as_one_and_each_rank_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        job = submit(fleet.store, tmp_path / "works.json", WORKS, ranks=2, device="cpu")
        wait_until(lambda: runs(fleet, job), 60)
        page = tmp_path / "p.json"
        done = unidle("profile", job, "--seconds", "1", "--tier", "T2", "--out", page, "--store", fleet.store)
        assert done.returncode == 0, done.stderr
        told = json.loads(page.read_text())
        functions = {row[1] for row in told["frames"]}
        assert any("train_it" in str(name) for row in told["frames"] for name in row), functions
        assert sorted(row["rank"] for row in told["ranks"]) == [0, 1]
        only = unidle(
            "profile", job, "--rank", "1", "--seconds", "1", "--tier", "T2", "--json", "--store", fleet.store
        )
        assert [row["rank"] for row in json.loads(only.stdout)["ranks"]] == [1]
        top = unidle("profile", job, "--top", "--store", fleet.store)
        assert top.returncode == 2
        wrong = unidle("profile", job, "--rank", "7", "--seconds", "1", "--store", fleet.store)
        assert (wrong.returncode, "no such rank" in wrong.stderr) == (2, True)
