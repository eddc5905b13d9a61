"""Controllers that come, go, meet and die, and what becomes of the ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from e2e import gangs
from e2e.commands import ask, rows, unidle
from waiting import wait_until

FOREVER = "sleep 60"
UNTIL_GO = 'while [ ! -e "$UNIDLE_TEST_GO" ]; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; sleep 60 & while :; do sleep 0.1; done'


@pytest.fixture(autouse=True)
def _go_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIDLE_TEST_GO", str(tmp_path / "go"))


def test_second_controller_is_turned_away_and_the_first_unharmed(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    file = gangs.write_job(tmp_path / "long.yaml", UNTIL_GO, ranks=2)
    with gangs.running("run", file, "--store", store, "--json") as first:
        gangs.wait_for_state(store, "long", "running")
        for words in (("up",), ("run", file), ("store", "compact")):
            second = unidle(*words, "--store", store)
            assert second.returncode == 4
            (line,) = second.stderr.splitlines()
            assert f"is held by unidle run (pid {first.pid} on " in line
            assert second.stdout == ""
        (tmp_path / "go").touch()
        out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert gangs.last_line(out.decode())["exit_codes"] == [0, 0]
    assert list(gangs.jobs_of(store)) == ["long"]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing_behind(times: int, tmp_path: Path) -> None:
    """Once: SIGTERM and the grace that the job has. Twice: at once."""
    store = tmp_path / "s.db"
    file = gangs.write_job(tmp_path / "job.yaml", STUBBORN, ranks=2, grace_s=0.5 if times == 1 else 600)
    with gangs.running("run", file, "--store", store, "--json") as controller:
        job = gangs.wait_for_state(store, "job", "running")
        controller.send_signal(signal.SIGINT)
        if times == 2:
            wait_until(lambda: (a := gangs.jobs_of(store)["job"].attempts) and a[-1].stop, 60, "the stop")
            controller.send_signal(signal.SIGINT)
        out, err = controller.communicate(timeout=60)
    assert controller.returncode == 130, err
    answer = gangs.last_line(out.decode())
    assert (answer["state"], answer["exit_codes"]) == ("cancelled", [-signal.SIGKILL] * 2)
    gangs.assert_nothing_runs(job.id)


def test_terminated_service_leaves_its_ranks_to_the_next(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    starts = tmp_path / "starts"
    gangs.submit(store, tmp_path / "job.yaml", f'echo "$RANK" >> {starts}; {UNTIL_GO}', ranks=2)
    with gangs.running("up", "--store", store) as first:
        gangs.wait_for_state(store, "job", "running")
        pids = wait_until(lambda: len(p := gangs.rank_pids(store, "job")) == 2 and p)
        first.terminate()
        out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (0, b"")
    assert b"1 job of this store left running" in err
    assert gangs.jobs_of(store)["job"].state == "running"
    with gangs.running("up", "--store", store, "--until-idle") as second:
        (tmp_path / "go").touch()
        _, err = second.communicate(timeout=60)
        assert second.returncode == 0
    assert b"adopted job-" in err and b": 2 ranks, running since " in err
    job = gangs.jobs_of(store)["job"]
    assert (job.state, len(job.attempts), gangs.rank_pids(store, "job")) == ("succeeded", 1, pids)
    assert sorted(starts.read_text().split()) == ["0", "1"]
    assert unidle("ledger", "--check", "--store", store).returncode == 0


def test_interrupted_service_puts_its_jobs_back_into_the_queue(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job_id = gangs.submit(store, tmp_path / "job.yaml", f'[ -e "$UNIDLE_TEST_GO" ] || {FOREVER}', ranks=2)
    with gangs.running("up", "--store", store) as first:
        gangs.wait_for_state(store, "job", "running")
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130
    gangs.assert_nothing_runs(job_id)
    assert [(line["state"], line["attempts"]) for line in ask("list", "--store", store)] == [("queued", 1)]
    (tmp_path / "go").touch()
    assert unidle("up", "--store", store, "--until-idle").returncode == 0
    job = gangs.jobs_of(store)["job"]
    assert (job.state, len(job.attempts), job.retries) == ("succeeded", 2, 0)


def test_cancel_works_after_the_controller_was_killed(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    file = gangs.write_job(tmp_path / "job.yaml", FOREVER, ranks=2)
    with gangs.running("run", file, "--store", store) as controller:
        job = gangs.wait_for_state(store, "job", "running")
        controller.kill()
    assert gangs.processes_of(job.id)
    assert ask("cancel", "job", "--store", store) == {"job": job.id, "state": "cancelled"}
    gangs.assert_nothing_runs(job.id)
    again = unidle("cancel", "job", "--store", store)
    assert (again.returncode, again.stdout) == (0, f"{job.id} had already been cancelled\n")


@pytest.mark.slow
def test_clients_work_with_and_without_a_controller(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    first = gangs.submit(store, tmp_path / "first.yaml", FOREVER)
    second = gangs.submit(store, tmp_path / "second.yaml", FOREVER)
    assert [line["state"] for line in ask("list", "--store", store)] == ["queued", "queued"]
    assert ask("explain", "second", "--store", store)["waiting"]["now"]["code"] == "not_taken_up"
    assert ask("show", "first", "--store", store)["runs"] == []
    assert ask("cancel", "first", "--store", store) == {"job": first, "state": "cancelled"}
    with gangs.running("up", "--store", store) as service:
        gangs.wait_for_state(store, "second", "running")
        story = ask("explain", "second", "--store", store)
        assert (story["state"], story["code"]) == ("running", "first_fit")
        third = gangs.submit(store, tmp_path / "third.yaml", FOREVER)
        gangs.wait_for_state(store, "third", "running")
        for job in (second, third):
            assert ask("cancel", job, "--store", store) == {"job": job, "state": "cancelled"}
        assert service.poll() is None
        service.terminate()
        assert service.wait(60) == 0
    assert {
        line["job"]: line["state"] for line in ask("list", "--state", "cancelled", "--store", store)
    } == dict.fromkeys((first, second, third), "cancelled")


def test_queue_goes_by_priority_and_says_why_a_job_waits(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    order = tmp_path / "order"
    gangs.submit(store, tmp_path / "holder.yaml", UNTIL_GO, ranks=8, priority=9)
    for name, priority in (("low", -1), ("high", 5), ("middle", 0)):
        gangs.submit(
            store, tmp_path / f"{name}.yaml", f"[ $RANK != 0 ] || echo {name} >> {order}", ranks=8,
            priority=priority,
        )  # fmt: skip
    with gangs.running("up", "--cpu-devices", 8, "--store", store, "--until-idle") as service:
        gangs.wait_for_state(store, "holder", "running")
        wait_until(lambda: gangs.jobs_of(store)["low"].verdict, 60, "a verdict")
        story = ask("explain", "low", "--store", store)
        (tmp_path / "go").touch()
        assert service.wait(60) == 0
    assert story["state"] == "queued"
    assert story["waiting"]["now"]["text"] == "needs 8 devices, 0 of 8 are free"
    assert story["waiting"]["ahead"] == 2
    assert order.read_text().split() == ["high", "middle", "low"]
    assert unidle("ledger", "--check", "--store", store).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "unidle-test", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@needs.root
def test_full_disk_of_the_store_harms_no_rank(small_disk: Path, tmp_path: Path) -> None:
    store = small_disk / "s.db"
    pattern = {"pattern": r"step (\d+)"}
    script = 'k=0; while [ ! -e "$UNIDLE_TEST_GO" ]; do k=$((k+1)); echo "step $k"; sleep 0.05; done'
    job_id = gangs.submit(store, tmp_path / "job.yaml", script, ranks=2, progress=pattern)
    with gangs.running("up", "--store", store) as service:
        gangs.wait_for_state(store, "job", "running")
        wait_until(lambda: gangs.jobs_of(store)["job"].steps() > 3, 60, "steps in the log")
        pids = gangs.rank_pids(store, "job")
        fill(small_disk / "filling")
        out, err = service.communicate(timeout=60)
    assert (service.returncode, out) == (4, b"")
    assert sum(b"no space is left on the disk" in line for line in err.splitlines()) == 1
    assert b"1 job of this store left running" in err
    known = gangs.jobs_of(store)["job"]
    assert known.state == "running"
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    (small_disk / "filling").unlink()
    (tmp_path / "go").touch()
    done = unidle("up", "--store", store, "--until-idle")
    assert done.returncode == 0, done.stderr
    job = gangs.jobs_of(store)["job"]
    assert (job.state, len(job.attempts), gangs.rank_pids(store, "job")) == ("succeeded", 1, pids)
    assert job.steps() > known.steps()
    assert unidle("store", "check", "--store", store).returncode == 0
    assert {row["job"] for row in rows(store)} == {job_id, None}


def fill(path: Path) -> None:
    """Take all space of the disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGHUP], ids=["killed", "its terminal is gone"])
def test_end_that_no_controller_saw_is_known_to_the_next(tmp_path: Path, end: signal.Signals) -> None:
    store = tmp_path / "s.db"
    job_id = gangs.submit(store, tmp_path / "job.yaml", f"{UNTIL_GO}; exit $((RANK + 4))", ranks=2, grace_s=5)
    with gangs.running("up", "--store", store) as first:
        gangs.wait_for_state(store, "job", "running")
        assert unidle("list", "--store", store).stderr == ""
        os.kill(first.pid, end)
        assert first.wait(60) == -end
    (tmp_path / "go").touch()
    wait_until(lambda: not gangs.processes_of(job_id), 60, "the ranks to end alone")
    shown = ask("list", "--store", store)
    assert shown[0]["state"] == "running"  # nobody looked yet
    for words, what in ((["list"], "1 running job"), (["explain", "job"], "this job")):
        said = unidle(*words, "--store", store).stderr
        assert (
            said == f"unidle: no controller watches {what} now: start one with `unidle up --store {store}`\n"
        )
    assert unidle("up", "--store", store, "--until-idle").returncode == 0
    detail = ask("show", "job", "--store", store)
    assert (detail["state"], [rank["code"] for rank in detail["runs"][0]["ranks"]]) == ("failed", [4, 5])
    assert all(rank["info"]["peak_bytes"] > 0 for rank in detail["runs"][0]["ranks"])
