"""Real processes on two declared nodes: a gang that comes back to its places, and a job that is moved for a gang."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import gangs
from e2e.commands import ask, unidle
from waiting import wait_until

FLEET = """
nodes:
  - {id: "n[1-2]", devices: {count: 2, kind: cpu}}
"""
UNTIL_STOPPED = "trap 'exit 1' TERM; while :; do sleep 0.1; done"


def test_a_gang_that_failed_comes_back_to_its_devices_though_others_came_free(tmp_path: Path) -> None:
    store, fleet, go = tmp_path / "s.db", tmp_path / "fleet.yaml", tmp_path / "go"
    fleet.write_text(FLEET)
    gangs.submit(store, tmp_path / "short.yaml", f"until [ -e {go} ]; do sleep 0.05; done")
    fails_once = f"trap 'exit 1' TERM; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then until [ -e {go}2 ]; do sleep 0.05; done; exit 3; fi"
    gangs.submit(store, tmp_path / "gang.yaml", fails_once, ranks=3, restart={"max": 1, "backoff_s": 0.1})
    with gangs.running("up", "--fleet", fleet, "--store", store) as service:
        gangs.wait_for_state(store, "gang", "running")
        go.touch()
        gangs.wait_for_state(store, "short", "succeeded")
        Path(f"{go}2").touch()
        gang = gangs.wait_for_state(store, "gang", "succeeded")
        service.terminate()
        assert service.wait(60) == 0
    first, second = gang.attempts
    assert sorted(s for place in first.places for s in place.slices) == ["n1/1", "n2/0", "n2/1"]
    assert second.places == first.places
    story = ask("explain", gang.id, "--store", store)
    assert any("all 3 ranks stay where they were" in d["text"] for d in story["decisions"])
    assert unidle("ledger", "--store", store, "--check").returncode == 0


@pytest.mark.slow
def test_a_job_that_saves_is_moved_for_a_gang_and_both_run(tmp_path: Path) -> None:
    store, fleet, go = tmp_path / "s.db", tmp_path / "fleet.yaml", tmp_path / "go"
    fleet.write_text(FLEET + "migration: {moves_most: 1}\n")
    hour = {"estimate_s": 3600}
    gangs.submit(store, tmp_path / "stays.yaml", UNTIL_STOPPED, **hour)
    gangs.submit(store, tmp_path / "gap.yaml", f"until [ -e {go} ]; do sleep 0.05; done", **hour)
    gangs.submit(
        store, tmp_path / "mover.yaml", UNTIL_STOPPED, checkpoint={"path": str(tmp_path / "c")}, **hour
    )
    with gangs.running("up", "--fleet", fleet, "--store", store) as service:
        gangs.wait_for_state(store, "mover", "running")
        go.touch()
        gangs.wait_for_state(store, "gap", "succeeded")
        gangs.submit(
            store, tmp_path / "wide.yaml", UNTIL_STOPPED, ranks=2, topology={"require": "node"}, **hour
        )
        wide = gangs.wait_for_state(store, "wide", "running")

        def moved() -> bool:
            job = gangs.jobs_of(store)["mover"]
            return len(job.attempts) == 2 and job.state == "running"

        wait_until(moved, 60, "the mover to run again")
        mover = gangs.jobs_of(store)["mover"]
        story = ask("explain", mover.id, "--store", store)
        for job in gangs.jobs_of(store).values():
            if not job.terminal:
                ask("cancel", job.id, "--store", store)
        for name in ("stays", "mover", "wide"):
            gangs.wait_for_state(store, name, "cancelled")
        service.terminate()
        assert service.wait(60) == 0
    assert [[place.node for place in attempt.places] for attempt in mover.attempts] == [["n2"], ["n1"]]
    assert [place.node for place in wide.attempts[0].places] == ["n2", "n2"]
    assert gangs.jobs_of(store)["stays"].attempts[0].places[0].node == "n1"
    assert any(f"moved to make room for job {wide.id} of user " in d["text"] for d in story["decisions"])
    assert unidle("ledger", "--store", store, "--check").returncode == 0
