"""Ranks on hosts are profiled by their agents, for a command on the controller's machine."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

import needs
from e2e.commands import unidle
from e2e.gangs import submit
from e2e.host_fleets import Fleet, opened
from unidle.store.open import open_store
from unidle.store.profiles import ProfileShelf
from waiting import wait_until

pytestmark = pytest.mark.slow
# Busy for a part of the time only: two ranks that took both cores would be what everything else here waits for.
WORKS = "exec python3 -c 'import time\ndef train_it():\n  while True: sum(range(400_000)); time.sleep(0.04)\ntrain_it()'"


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


def looks(fleet: Fleet, job: str) -> int:
    """How many windows the ledger has of the ranks."""
    found = fleet.job(job)
    return 0 if found is None or found.live is None else sum(len(rank.looks) for rank in found.live.ranks)


def kept(fleet: Fleet, job: str) -> set[int]:
    """Ranks with a profile in the store."""
    with closing(open_store(str(fleet.store), create=False, read_only=True)) as store:
        return {row.rank for row in ProfileShelf(store).rows(job, 0, 2**62)}


def measured(fleet: Fleet, job: str) -> set[int]:
    """Ranks whose time the ledger splits by profiles."""
    found = fleet.job(job)
    assert found is not None and found.live is not None
    return {number for number, rank in enumerate(found.live.ranks) if rank.looks}


@needs.ebpf
def test_ranks_on_hosts_are_profiled_all_the_time_and_their_past_is_in_the_store(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        json.dumps({"profile": {"on": True, "seconds": 1, "every_s": 4}, "guard": {"preflight": "off"}})
    )
    with opened(tmp_path, file=file) as fleet:
        job = submit(fleet.store, tmp_path / "works.json", WORKS, ranks=2, device="cpu")
        wait_until(lambda: kept(fleet, job) == {0, 1}, 120)
        assert fleet.up is not None
        fleet.up.kill()  # the next controller has agents profile again
        fleet.up.wait()
        fleet.serve()
        before = looks(fleet, job)
        wait_until(lambda: looks(fleet, job) > before, 120)
        done = unidle("profile", job, "--since", "1h", "--store", fleet.store, "--format", "folded")
        assert done.returncode == 0, done.stderr
        assert "train_it" in done.stdout
        told = json.loads(unidle("profile", job, "--since", "1h", "--store", fleet.store, "--json").stdout)
        assert sorted(row["rank"] for row in told["ranks"]) == [0, 1]
        assert measured(fleet, job) == {0, 1}
        assert (fleet.view().profiler or "") == ""
