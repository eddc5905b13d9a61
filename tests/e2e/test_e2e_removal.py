"""Jobs that have ended are removed with their files, whatever else goes on; what runs stays, and the ledger sums as before."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import gangs
from e2e.commands import ask, rows, unidle
from e2e.stores import job_events, write_log
from unidle.control.queries.find import listed as jobs_of
from unidle.control.retention.removal import delete, files_of, size_of
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from waiting import wait_until

KILLED_BEFORE_IT_DELETES = """
import os, signal, sys
from unidle.control.retention import removal
removal.delete = lambda files: os.kill(os.getpid(), signal.SIGKILL)
from unidle.cli.main import main
main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def ended(store: Path, *jobs: str) -> None:
    """Jobs that ended, with the files that a run leaves, without running them."""
    for job in jobs:
        rank = Path(f"{store}.d/runs/{job}/1/rank0")
        rank.mkdir(parents=True)
        (rank / "log").write_text("done\n" * 1000)
        (rank / "lock").touch()
        reports = Path(f"{store}.d/reports")
        reports.mkdir(exist_ok=True)
        (reports / f"{job}.html").write_text("<!doctype html>")
    write_log(store, (event for job in jobs for event in job_events(job)))


def files(store: Path) -> list[str]:
    state = Path(f"{store}.d")
    return sorted(path.name for place in ("runs", "reports") for path in (state / place).iterdir())


def listed(store: Path) -> list[str]:
    opened = open_store(str(store), create=False, read_only=True)
    try:
        return [job.id for job in jobs_of(load_view(opened))]
    finally:
        opened.close()


def test_a_removed_job_leaves_lists_and_disk_and_its_time_stays_in_the_ledger(store: Path) -> None:
    words = (
        "run",
        "--name",
        "a",
        "--store",
        store,
        "--cpu-devices",
        1,
        "--json",
        "--",
        "bash",
        "-c",
        "exit 3",
    )
    job = str(gangs.last_line(unidle(*words).stdout)["job"])
    before = rows(store)
    assert ask("rm", "a", "--dry-run", "--store", store)["bytes"] > 0
    assert listed(store) == [job] and files(store) == [job, f"{job}.html"]
    told = ask("rm", "a", "--store", store)
    assert told == {
        "removed": [{"job": job, "bytes": told["bytes"]}],
        "bytes": told["bytes"],
        "profile_bytes": 0,
        "archive_bytes": 0,
        "dry_run": False,
    }
    assert listed(store) == [] and files(store) == []
    assert "was removed" in unidle("show", job, "--store", store).stderr
    assert unidle("store", "compact", "--store", store).returncode == 0
    assert [row for row in rows(store) if row["job"]] == [row for row in before if row["job"]] != []
    assert unidle("ledger", "--check", "--job", job, "--store", store).returncode == 0


def test_what_runs_or_waits_is_never_removed_while_a_controller_removes_the_rest(
    store: Path, tmp_path: Path
) -> None:
    gone = "gone-111111"
    ended(store, gone)
    with gangs.running("up", "--store", store, "--cpu-devices", 1):
        runs = gangs.submit(store, tmp_path / "runs.json", "echo up; exec sleep 600")
        waits = gangs.submit(store, tmp_path / "waits.json", "true")
        gangs.wait_for_state(store, "runs", "running")
        wait_until(lambda: waits in listed(store), what="the controller takes the second job from the inbox")
        for job in (runs, waits):
            refused = unidle("rm", gone, job, "--store", store)
            assert refused.returncode == 2 and f"unidle cancel {job}" in refused.stderr
        assert listed(store) == [gone, runs, waits], "all of them, or none"
        assert [one["job"] for one in ask("prune", "--older", "0s", "--store", store)["removed"]] == [gone]
        assert listed(store) == [runs, waits] and files(store) == [runs]
        shown = unidle("cancel", "--store", store)
        assert (shown.stdout, shown.stderr) == (
            f"{waits} cancelled\n",
            f"unidle: newest job: {waits} (queued)\n",
        )
        assert unidle("cancel", "--store", store).stdout == f"{runs} cancelled\n"
        none = unidle("cancel", "--store", store)
        assert none.returncode == 2 and "no job of this store runs or waits" in none.stderr


def test_a_removal_that_is_killed_is_finished_by_the_next_one(store: Path) -> None:
    ended(store, "job-1", "other-1")
    words = [sys.executable, "-c", KILLED_BEFORE_IT_DELETES, "rm", "job", "--store", str(store)]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -9
    assert listed(store) == ["other-1"]
    assert files(store) == ["job-1", "job-1.html", "other-1", "other-1.html"]
    told = ask("prune", "--older", "1d", "--store", store)
    assert told["removed"] == [] and told["bytes"] > 0, "other-1 ended just now"
    assert files(store) == ["other-1", "other-1.html"] and listed(store) == ["other-1"]


def test_a_time_that_is_none_prunes_nothing(store: Path) -> None:
    ended(store, "job-1")
    refused = unidle("prune", "--older", "soon", "--store", store)
    assert refused.returncode == 2 and "--older: is not a time" in refused.stderr
    assert listed(store) == ["job-1"]


def test_a_job_whose_process_is_left_stays(store: Path) -> None:
    ended(store, "job-1", "other-1")
    with Path(f"{store}.d/runs/job-1/1/rank0/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stays = unidle("rm", "job", "other", "--store", store)
    assert stays.returncode == 1 and "job-1 stays: a process of it is left" in stays.stderr
    assert listed(store) == ["job-1"] and files(store) == ["job-1", "job-1.html"]


def test_a_name_of_several_jobs_removes_none(store: Path) -> None:
    ended(store, "job-1", "job-2")
    refused = unidle("rm", "job", "--store", store)
    assert refused.returncode == 2 and "name one of job-2 (succeeded), job-1 (succeeded)" in refused.stderr
    assert listed(store) == ["job-1", "job-2"]


def test_an_id_that_leads_out_of_the_directory_takes_no_file_with_it(tmp_path: Path) -> None:
    (tmp_path / "state" / "runs").mkdir(parents=True)
    (tmp_path / "state" / "reports").mkdir()
    (tmp_path / "precious").write_text("x")
    for job in ("..", "../../precious", ".", "", ".holders", "/etc"):
        assert files_of(tmp_path / "state", job) == []


def test_a_link_in_place_of_a_run_directory_is_deleted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_text("x" * 100_000)
    (tmp_path / "runs" / "job").symlink_to(tmp_path / "elsewhere")
    found = files_of(tmp_path, "job")
    assert size_of(found) < 50_000
    delete(found)
    assert not (tmp_path / "runs" / "job").is_symlink() and (tmp_path / "elsewhere" / "data").exists()


def test_list_shows_the_last_ten_that_ended_and_how_many_more_there_are(store: Path) -> None:
    jobs = [f"many-{k:02}" for k in range(12)]
    ended(store, *jobs)
    shown = unidle("list", "--store", store)
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == jobs[2:]
    assert "2 more jobs ended before" in shown.stderr
    everything = unidle("list", "--all", "--store", store)
    assert [line.split()[0] for line in everything.stdout.splitlines()[1:]] == jobs
    assert everything.stderr == ""
