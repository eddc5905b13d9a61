"""A sick node with real processes: hooks that fail, hang and succeed, the controller killed at every stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import rows, unidle
from e2e.gangs import jobs_of, running, submit, wait_for_state
from unidle.events import types as ev
from unidle.store.open import open_store
from waiting import wait_until

COUNTING = "for i in $(seq 1 400); do echo step $i; sleep 0.05; done"
SHORT = {
    "probation": "0.6s",
    "probation_every": "0.2s",
    "drain": "1s",
    "drain_hard": "0.3s",
    "preflight": "off",
}


def fleet(place: Path, **guard: Any) -> Path:
    path = place / "fleet.json"
    nodes = [{"id": "n[1-2]", "devices": {"count": 1, "kind": "cpu"}}]
    path.write_text(json.dumps({"nodes": nodes, "guard": {**SHORT, **guard}}))
    return path


def hook(place: Path, name: str, script: str = "", **more: Any) -> dict[str, Any]:
    """A command of the site that notes that it was begun, then does what the script says."""
    path = place / f"{name}.sh"
    path.write_text(f'#!/bin/sh\necho "{name} $@" >> {place}/begun\n{script}\n')
    path.chmod(0o755)
    return {"command": [str(path), "{node}", "{device}"], "pause": "0.1s", "timeout": "10s", **more}


def begun(place: Path) -> list[str]:
    path = place / "begun"
    return [line.strip() for line in path.read_text().splitlines()] if path.exists() else []


def states(store: Path, target: str) -> list[str]:
    """Every state that the target has been in, as the log tells."""
    opened = open_store(str(store), create=False, read_only=True)
    events = [ev.decode(e.kind, e.body) for e in opened.read() if e.kind == "remedy_set"]
    opened.close()
    return [e.state for e in events if isinstance(e, ev.RemedySet) and e.target == target]


def state(store: Path, target: str) -> str:
    return next(iter(reversed(states(store, target))), "healthy")


def report(store: Path, target: str, action: str) -> None:
    done = unidle("guard", "report", target, "--action", action, "--because", "it broke", "--store", store)
    assert done.returncode == 0, done.stderr


def cancel(store: Path) -> None:
    assert unidle("cancel", "job", "--wait", "--store", store).returncode == 0


def test_rungs_that_fail_and_hang_are_climbed_and_the_job_goes_on_elsewhere(tmp_path: Path) -> None:
    store, path = tmp_path / "s.db", tmp_path
    checks = {"prove": hook(path, "prove"), "quick": hook(path, "quick")}
    file = fleet(path, **checks, remedy={
        "reset_gpu": hook(path, "reset", "exit 3", tries=2),
        "reboot": hook(path, "reboot", "sleep 1000", timeout="0.4s", tries=1),
        "replace": hook(path, "replace"),
    })  # fmt: skip
    with running("up", "--fleet", file, "--store", store):
        submit(store, path / "job.json", COUNTING)
        wait_for_state(store, "job", "running")
        report(store, "n1/0", "reset_gpu")
        wait_until(lambda: "replace n1" in begun(path), 60, "the last rung")
        wait_until(
            lambda: state(store, "n1") == "healthy" and state(store, "n1/0") == "healthy", 60, "its return"
        )
        job = wait_for_state(store, "job", "running", "succeeded")
        cancel(store)
    assert [line for line in begun(path) if not line.startswith("quick")] == [
        "reset n1 n1/0", "reset n1 n1/0", "reboot n1", "replace n1", "prove n1",
    ]  # fmt: skip
    assert len(job.attempts) == 2
    assert job.attempts[0].stop is not None and job.attempts[0].stop.why == "node_sick"
    assert job.attempts[1].places[0].node == "n2" and job.retries == 0
    leaves = {row["leaf"] for row in rows(store) if row["device"] == "n1/0"}
    assert {"quarantine", "repair", "boot"} <= leaves


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["draining", "remedy", "proving", "probation"])
def test_a_controller_killed_at_any_stage_neither_forgets_the_node_nor_begins_a_remedy_twice(
    tmp_path: Path, stage: str
) -> None:
    store, path = tmp_path / "s.db", tmp_path
    file = fleet(
        path, prove=hook(path, "prove", "sleep 0.7"), quick=hook(path, "quick", "sleep 0.1"),
        remedy={"reboot": hook(path, "reboot", "sleep 0.7")}, drain_hard="1.5s", probation="1.5s",
    )  # fmt: skip
    with running("up", "--fleet", file, "--store", store) as controller:
        submit(store, path / "job.json", COUNTING, checkpoint={"path": str(path / "ckpt")})
        wait_for_state(store, "job", "running")
        report(store, "n1", "reboot_node")
        wait_until(lambda: stage in states(store, "n1"), 60, stage)
        controller.kill()
    with running("up", "--fleet", file, "--store", store):
        wait_until(lambda: state(store, "n1") == "healthy", 60, "its return")
        cancel(store)
    told = begun(path)
    assert told.count("reboot n1") == 1 and told.count("prove n1") == 1
    job = jobs_of(store)["job"]
    assert len(job.attempts) == 2 and job.retries == 0 and job.attempts[-1].places[0].node == "n2"


def test_an_unfit_node_is_found_before_the_gang_starts_and_a_person_brings_it_back(tmp_path: Path) -> None:
    store, path = tmp_path / "s.db", tmp_path
    spec = json.loads(
        fleet(
            path,
            quick=hook(path, "quick", f'test "$1" != n1 || test -e {path}/mended'),
            prove=hook(path, "prove", f'test "$1" != n1 || test -e {path}/mended'),
            preflight="quick",
        ).read_text()
    )
    spec["nodes"] = [
        {"id": f"n{k}", "address": f"127.0.0.{k}", "devices": {"count": 1, "kind": "cpu"}} for k in (1, 2)
    ]
    (path / "fleet.json").write_text(json.dumps(spec))
    with running("up", "--fleet", path / "fleet.json", "--store", store):
        submit(store, path / "job.json", "sleep 0.1")
        job = wait_for_state(store, "job", "succeeded")
        assert [attempt.places[0].node for attempt in job.attempts] == ["n1", "n2"] and job.retries == 0
        assert all(rank.spawn_ns is None for rank in job.attempts[0].ranks)
        wait_until(lambda: state(store, "n1") == "out", 60, "no remedy to be left")
        refused = unidle("guard", "drain", "n1", "--store", store)
        assert refused.returncode == 2 and "already out of use" in refused.stderr
        (path / "mended").touch()
        assert unidle("guard", "return", "n1", "--store", store).returncode == 0
        wait_until(lambda: state(store, "n1") == "healthy", 60, "its return")
    assert sum(row["end_ns"] - row["start_ns"] for row in rows(store) if row["leaf"] == "preflight") > 0


def test_a_gang_whose_controller_died_during_the_check_starts_only_when_it_is_checked(tmp_path: Path) -> None:
    store, path = tmp_path / "s.db", tmp_path
    check = hook(path, "quick", "sleep 2")
    file = fleet(path, quick=check, preflight="quick")
    with running("up", "--fleet", file, "--store", store) as controller:
        submit(store, path / "job.json", "sleep 0.1")
        wait_until(lambda: begun(path), 60, "the check")
        controller.kill()
        controller.wait()
    done = unidle("up", "--store", store, "--fleet", file, "--until-idle")
    assert done.returncode == 0, done.stderr
    (attempt,) = jobs_of(store)["job"].attempts
    assert attempt.checked_ns is not None
    assert all(rank.spawn_ns > attempt.checked_ns for rank in attempt.ranks)
    assert len(begun(path)) > 1  # nobody looks for what the dead one began


@pytest.mark.slow
def test_maintenance_drains_the_node_and_gives_it_back_by_itself(tmp_path: Path) -> None:
    store, path = tmp_path / "s.db", tmp_path
    file = fleet(path, prove=hook(path, "prove"), quick=hook(path, "quick"), drain="0.5s")
    with running("up", "--fleet", file, "--store", store):
        submit(store, path / "job.json", COUNTING)
        wait_for_state(store, "job", "running")
        done = unidle("guard", "maintain", "n1", "--from", "1s", "--until", "2s", "--store", store)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "maintenance" in states(store, "n1"), 60, "the maintenance")
        wait_until(lambda: state(store, "n1") == "healthy", 60, "its return")
        cancel(store)
    job = jobs_of(store)["job"]
    assert job.attempts[-1].places[0].node == "n2" and job.retries == 0
    assert "maintenance" in {row["leaf"] for row in rows(store) if row["device"] == "n1/0"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["drain", "n9"], "n9"),
        (["maintain", "n1", "--from", "2h", "--until", "nonsense"], "--until"),
        (["maintain", "n1", "--from", "2h", "--until", "1h", "--drain-by", "3h"], "--drain-by"),
        (["drain", "n1", "--within", "soon"], "--within"),
        (["report", "n1", "--action", "explode"], "--action"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, words: list[str], names: str) -> None:
    store = tmp_path / "s.db"
    done = unidle("up", "--fleet", fleet(tmp_path), "--store", store, "--until-idle")
    assert done.returncode == 0, done.stderr
    done = unidle("guard", *words, "--store", store)
    assert done.returncode == 2 and names in done.stderr and done.stderr.count("\n") == 1
