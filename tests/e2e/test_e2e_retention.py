"""A real `unidle up` with retention: what ended is compressed, then removed, also after kill -9 at any point."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import gangs
from e2e.commands import ask, rows, unidle
from e2e.stores import job_events, write_log
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.state import View
from waiting import wait_until

NODES = [{"id": "n0", "devices": {"count": 2, "kind": "cpu"}}]
LINES = "".join(f"line {k}\n" for k in range(500))
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from unidle.control.retention import archive, removal
from unidle.control.retention.worker import RetentionWorker
from unidle.store.archives import ArchiveShelf

def die(*_args, **_more):
    os.kill(os.getpid(), signal.SIGKILL)

add = ArchiveShelf._add
def second(self, job, number, *, last, body):
    die() if number == 1 else add(self, job, number, last=last, body=body)

def half(path):
    next(Path(path).rglob("log")).unlink()
    die()

point = sys.argv.pop(1)
if point == "a part of the archive is there":
    archive.PART_BYTES = 1
    ArchiveShelf._add = second
elif point == "the archive is there":
    removal.delete = die
elif point == "the removal is in the log":
    RetentionWorker.remove = die
elif point == "some files are deleted":
    shutil.rmtree = half
from unidle.cli.main import main
main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@contextmanager
def serving(store: Path, **retention: object) -> Iterator[subprocess.Popen[bytes]]:
    with gangs.running("up", "--store", store, "--fleet", fleet(store, **retention)) as process:
        yield process


def fleet(store: Path, **retention: object) -> Path:
    path = store.with_name("fleet.yaml")
    path.write_text(json.dumps({"nodes": NODES, "retention": retention}))
    return path


def ended(store: Path, *jobs: str) -> None:
    """Jobs that ended, with the files that a run leaves, without running them."""
    for job in jobs:
        rank = Path(f"{store}.d/runs/{job}/1/rank0")
        rank.mkdir(parents=True)
        Path(f"{store}.d/runs").chmod(0o700)
        Path(f"{store}.d").chmod(0o700)
        (rank / "log").write_text(LINES)
        (rank / "noise").write_bytes(bytes(range(256)) * 4000)
        (rank / "lock").touch()
    write_log(store, (event for job in jobs for event in job_events(job)))


def state(store: Path) -> tuple[View, set[str], set[str], list[str]]:
    """The view, jobs with a complete archive, jobs with any part of one, jobs with a run directory."""
    opened = open_store(str(store), create=False, read_only=True)
    try:
        shelf = ArchiveShelf(opened)
        runs = sorted(path.name for path in Path(f"{store}.d/runs").iterdir() if path.name[0] != ".")
        return load_view(opened), set(shelf.sizes()), shelf.jobs(), runs
    finally:
        opened.close()


def test_an_ended_job_is_compressed_and_read_as_before_and_a_live_one_stays(
    store: Path, tmp_path: Path
) -> None:
    script = "for i in $(seq 300); do echo line $i of $UNIDLE_RANK; done; test $UNIDLE_RANK = 0"
    with serving(store, compress="30s", jobs=2):
        job = gangs.submit(store, tmp_path / "fails.json", script, ranks=2, device="cpu")
        gangs.wait_for_state(store, "fails", "failed", timeout_s=120)
        shown = {rank: unidle("logs", job, "--rank", rank, "--store", store).stdout for rank in (0, 1)}
        assert shown[0].count("\n") == 300
    with serving(store, compress="1s", jobs=2):
        wait_until(lambda: state(store)[1] == {job} and state(store)[3] == [], 120)
        runs = gangs.submit(store, tmp_path / "runs.json", "exec sleep 600", device="cpu")
        gangs.wait_for_state(store, "runs", "running", timeout_s=120)
        for rank, text in shown.items():
            assert unidle("logs", job, "--rank", rank, "--store", store).stdout == text
        last = unidle("logs", job, "--tail", 2, "--rank", 0, "--store", store).stdout
        assert last == "line 299 of 0\nline 300 of 0\n"
        page = tmp_path / "page.html"
        assert unidle("report", job, "-o", page, "--store", store).returncode == 0
        assert "line 300 of 1" in page.read_text(), "the last lines of the rank that failed"
        assert ask("show", job, "--store", store)["state"] == "failed"
        assert state(store)[3] == [runs], "what runs is left alone"
        unidle("cancel", runs, "--store", store)


def test_jobs_beyond_the_limit_leave_but_for_kept_ones_and_the_ledger_stays(store: Path) -> None:
    jobs = [f"many-{k}" for k in range(6)]
    ended(store, *jobs)
    before = [row for row in rows(store) if row["job"]]
    assert "no retention" in unidle("prune", "--dry-run", "--store", store).stderr
    assert unidle("keep", "many-1", "many-2", "--store", store).returncode == 0
    assert unidle("keep", "many-2", "--undo", "--store", store).returncode == 0
    with serving(store, jobs=10, compress=False):
        wait_until(lambda: state(store)[0].fleet.retention.jobs == 10, 120)
    would = ask("prune", "--dry-run", "--store", store)
    assert would["removed"] == [] and len(state(store)[0].stored) == 6
    with serving(store, jobs=2, compress=False):
        wait_until(lambda: state(store)[3] == ["many-1", "many-5"], 120)
    assert list(state(store)[0].stored) == ["many-1", "many-5"]
    assert [row for row in rows(store) if row["job"]] == before != []
    assert unidle("ledger", "--check", "--store", store).returncode == 0
    for command in ("explain", "show", "logs"):
        refused = unidle(command, "many-0", "--store", store)
        assert refused.returncode == 2
        assert "the job was removed by retention on " in refused.stderr and "(jobs 2)" in refused.stderr


@pytest.mark.parametrize("point", ["a part of the archive is there", "the archive is there"])
def test_a_compression_that_is_killed_is_finished_by_the_next_controller(store: Path, point: str) -> None:
    ended(store, "job-1")
    given = ["up", "--store", str(store), "--fleet", str(fleet(store, compress="1s")), "--progress", "off"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, point, *given], check=False, capture_output=True, timeout=120
    )
    assert killed.returncode == -9, killed.stderr
    _, complete, any_part, runs = state(store)
    assert any_part == {"job-1"} and runs == ["job-1"]
    assert complete == (set() if point == "a part of the archive is there" else {"job-1"})
    assert unidle("logs", "job-1", "--store", store).stdout == LINES
    with serving(store, compress="1s"):
        wait_until(lambda: state(store)[1:] == ({"job-1"}, {"job-1"}, []), 120)
    assert unidle("logs", "job-1", "--store", store).stdout == LINES
    assert unidle("store", "check", "--store", store).returncode == 0


@pytest.mark.parametrize("point", ["the removal is in the log", "some files are deleted"])
def test_a_removal_that_is_killed_is_finished_by_the_next_controller(store: Path, point: str) -> None:
    ended(store, "job-1", "job-2")
    policy = fleet(store, jobs=1, compress=False)
    given = ["up", "--store", str(store), "--fleet", str(policy), "--progress", "off"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, point, *given], check=False, capture_output=True, timeout=120
    )
    assert killed.returncode == -9, killed.stderr
    view, _, _, runs = state(store)
    assert list(view.removed) == ["job-1"] and runs == ["job-1", "job-2"]
    with serving(store, jobs=1, compress=False):
        wait_until(lambda: state(store)[3] == ["job-2"], 120)
    view = state(store)[0]
    assert list(view.removed) == ["job-1"] and list(view.stored) == ["job-2"]
    assert unidle("logs", "job-2", "--store", store).stdout == LINES


@pytest.mark.slow
def test_files_and_bytes_stay_bounded_while_jobs_come_and_go(store: Path) -> None:
    """The short form of `bench/soak.py`: counts, no timings."""
    import msgspec

    from unidle.control.inbox import SubmitRequest
    from unidle.control.retention.removal import size_of
    from unidle.jobs import JobSpec

    def submit(first: int, last: int) -> None:
        opened = open_store(str(store), create=False)
        for k in range(first, last):
            spec = JobSpec(
                ("sh", "-c", "yes a line | head -n 200"),
                name="soak",
                ranks=1 + k % 2,
                device="cpu",
                user="root",
            )
            opened.request("submit", msgspec.json.encode(SubmitRequest(f"soak-{k:04d}", spec)))
        opened.close()

    def measured(ended: int) -> tuple[int, int]:
        def settled() -> bool:
            view, complete, _, runs = state(store)
            return len(view.removed) == ended - 5 and complete == set(view.stored) and not runs

        wait_until(settled, 300)
        place = Path(f"{store}.d")
        return sum(1 for _ in place.rglob("*")), size_of([place])

    with serving(store, jobs=5, compress="1s"):
        wait_until(store.exists, 60)
        wait_until(lambda: gangs.jobs_of(store) == {} and Path(f"{store}.d/runs").is_dir(), 60)
        submit(0, 30)
        first = measured(30)
        submit(30, 120)
        assert measured(120) == first
