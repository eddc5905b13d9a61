"""Ranks that misbehave. All of them run side by side under one controller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e import gangs
from e2e.commands import UNIDLE, ask, unidle
from waiting import wait_until

PEERS_NOTICE = "while [ ! -e {0} ]; do sleep 0.05; done; "
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "killed": (
        'if [ "$RANK" = 1 ]; then kill -KILL $$; fi; trap "" TERM; sleep 60 & wait',
        {"ranks": 2, "grace_s": 0.3},
    ),
    "early": (
        'if [ "$RANK" = 0 ]; then touch left; exit 0; fi; ' + PEERS_NOTICE.format("left") + "sleep 0.3; exit 1",
        {"ranks": 2},
    ),
    "three": ("exit 3", {"restart": {"max": 2, "backoff_s": 0.1, "on": [3]}}),
    "not-three": ("exit 3", {"restart": {"max": 2, "backoff_s": 0.1, "on": ["signal", 4]}}),
    "any-exit": (
        'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 3; fi',
        {"restart": {"max": 1, "backoff_s": 0.1, "on": ["exit"]}},
    ),
    "by-name": (
        'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then kill -USR2 $$; sleep 60; fi',
        {"restart": {"max": 1, "backoff_s": 0.1, "on": ["SIGUSR2"]}},
    ),
    "slow": ("sleep 60", {"timeout_s": 0.5, "grace_s": 5}),
    "binary": ("head -c 3000000 /dev/urandom", {}),
    "chatty": ("yes 'one line of a log that never ends, as such logs are' | head -c 100000000; echo last", {}),
    "orphans": ('sleep 60 & setsid sleep 60 & echo "$RANK gone"', {}),
    "huge": ("true", {"ranks": 9}),
}  # fmt: skip
NO_COMMAND = {"name": "no-command", "command": ["/no/such/program"], "restart": {"max": 5}}
NO_LEAVE = {"name": "no-leave", "command": ["/etc/passwd"], "restart": {"max": 5}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store on which one ``unidle up`` drove every job above to its end."""
    place = tmp_path_factory.mktemp("faults")
    for name, (script, fields) in JOBS.items():
        gangs.write_job(place / f"{name}.yaml", script, **fields)
    for job in (NO_COMMAND, NO_LEAVE):
        (place / f"{job['name']}.yaml").write_text(json.dumps(job))
    path = place / "s.db"
    for file in sorted(place.glob("*.yaml")):
        done = unidle("submit", file, "--store", path)
        assert done.returncode == 0, done.stderr
    done = unidle("up", "--store", path, "--until-idle", "--cpu-devices", 8, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return path


@pytest.fixture(scope="module")
def listed(store: Path) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in ask("list", "--store", store)}


@pytest.mark.parametrize(
    ("name", "state", "attempts", "reason"),
    [
        ("killed", "failed", 1, "rank 1 was killed by SIGKILL"),
        ("three", "failed", 3, "rank 0 exited 3; 2 of 2 restarts used"),
        ("not-three", "failed", 1, "rank 0 exited 3; not retried: restart.on is [signal, 4]"),
        ("any-exit", "succeeded", 2, "exited 0"),
        ("by-name", "succeeded", 2, "exited 0"),
        ("slow", "failed", 1, "ran longer than timeout_s = 0.5"),
        ("binary", "succeeded", 1, "exited 0"),
        ("chatty", "succeeded", 1, "exited 0"),
        ("orphans", "succeeded", 1, "exited 0"),
        ("huge", "queued", 0, "needs 9 devices, and the fleet has 8: it can never start here"),
    ],
)
def test_end_of_a_job_has_its_reason(
    listed: dict[str, dict[str, Any]], name: str, state: str, attempts: int, reason: str
) -> None:
    job = listed[name]
    assert (job["state"], job["attempts"], job["reason"]) == (state, attempts, reason)


def test_rank_that_left_early_is_named_when_its_peers_fail(listed: dict[str, dict[str, Any]]) -> None:
    assert listed["early"]["state"] == "failed"
    reason = listed["early"]["reason"]
    assert reason.startswith("rank 1 exited 1, ")
    assert reason.endswith(" s after rank 0 had exited 0")


@pytest.mark.parametrize(
    ("name", "says"),
    [("no-command", "No such file or directory: '/no/such/program'"), ("no-leave", "Permission")],
)
def test_command_that_cannot_start_is_not_retried(
    store: Path, listed: dict[str, dict[str, Any]], name: str, says: str
) -> None:
    assert (listed[name]["state"], listed[name]["attempts"]) == ("failed", 1)
    story = ask("explain", name, "--store", store)
    assert story["code"] == "cannot_start"
    assert says in story["reason"]


def test_bytes_that_are_no_text_are_kept_as_they_are(store: Path) -> None:
    done = subprocess.run([*UNIDLE, "logs", "binary", "--store", str(store)], capture_output=True, check=True)
    assert len(done.stdout) == 3_000_000


def test_log_of_100_mb_is_bounded_and_ends_with_its_end(store: Path) -> None:
    done = subprocess.run([*UNIDLE, "logs", "chatty", "--store", str(store)], capture_output=True, check=True)
    assert done.stdout.endswith(b"last\n")
    assert len(done.stdout) < 70_000_000
    (rank,) = ask("show", "chatty", "--store", store)["runs"][0]["ranks"]
    assert rank["info"]["log_bytes"] == 100_000_005
    assert any("bytes of the log were dropped" in note for note in rank["notes"])


def test_nothing_of_any_job_is_left(store: Path, listed: dict[str, dict[str, Any]]) -> None:
    for job in listed.values():
        gangs.assert_nothing_runs(job["job"])


def test_ledger_of_all_these_faults_adds_up(store: Path) -> None:
    assert unidle("ledger", "--check", "--store", store).returncode == 0
    answer = ask("ledger", "--store", store)
    assert sum(leaf["ns"] for leaf in answer["leaves"]) == answer["capacity_ns"]


def test_stopped_rank_can_be_cancelled(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    file = gangs.write_job(tmp_path / "frozen.yaml", "sleep 60", ranks=2, grace_s=1)
    with gangs.running("run", file, "--store", store) as controller:
        job = gangs.wait_for_state(store, "frozen", "running")
        for pid in gangs.rank_pids(store, "frozen"):
            os.kill(pid, signal.SIGSTOP)
        assert ask("cancel", "frozen", "--store", store) == {"job": job.id, "state": "cancelled"}
        assert controller.wait(60) == 1
    gangs.assert_nothing_runs(job.id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "unidle-test", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@needs.root
def test_rank_that_fills_its_disk_fails_alone(small_disk: Path, tmp_path: Path) -> None:
    script = f"head -c 3000000 /dev/zero > {small_disk}/weights || exit 28"
    done = unidle("run", "--store", tmp_path / "s.db", "--json", "--", "bash", "-c", script)
    assert done.returncode == 1
    answer = gangs.last_line(done.stdout)
    assert (answer["state"], answer["exit_codes"]) == ("failed", [28])
    logs = unidle("logs", answer["job"], "--store", tmp_path / "s.db")
    assert "No space left on device" in logs.stdout


@needs.root
def test_rank_whose_own_log_fills_the_disk_still_gets_its_end(small_disk: Path) -> None:
    script = "yes 'a line of a log' | head -c 3000000; exit 5"
    store = small_disk / "s.db"
    done = unidle("run", "--store", store, "--json", "--", "bash", "-c", script, timeout_s=90)
    assert done.returncode in (1, 4), done.stderr
    if done.returncode == 4:  # the store stands on the same disk: one error, and the end comes later
        assert "no space is left on the disk" in done.stderr
        done = unidle("up", "--until-idle", "--store", store)
        assert done.returncode == 0, done.stderr
    (job,) = gangs.jobs_of(store).values()
    assert (job.state, job.attempts[0].ranks[0].code) == ("failed", 5)


def test_signal_of_a_killed_rank_is_in_the_answer(tmp_path: Path) -> None:
    file = gangs.write_job(tmp_path / "shot.yaml", "sleep 60", ranks=2, grace_s=0.2)
    store = tmp_path / "s.db"
    with gangs.running("run", file, "--store", store, "--json") as controller:
        gangs.wait_for_state(store, "shot", "running")
        pids = wait_until(lambda: len(p := gangs.rank_pids(store, "shot")) == 2 and p)
        assert pids
        os.kill(pids[1], signal.SIGKILL)
        out, _ = controller.communicate(timeout=60)
        assert controller.returncode == 1
    answer = gangs.last_line(out.decode())
    assert answer["state"] == "failed"
    assert answer["exit_codes"] == [-signal.SIGTERM, -signal.SIGKILL]
