"""Notices from whole processes: a controller killed between decision and delivery, secrets, a receiver that is down."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask, start, unidle
from notices.receiver import Received, receiver

FAILS = ["sh", "-c", "exit 3"]


def fleet_file(place: Path, *parts: dict[str, Any]) -> Path:
    path = place / "fleet.json"
    path.write_text(
        json.dumps({"nodes": [{"id": "n1", "devices": {"count": 2, "kind": "cpu"}}], "notices": parts})
    )
    return path


def test_a_controller_that_is_killed_while_it_tells_is_followed_by_one_that_tells_it_again(
    tmp_path: Path,
) -> None:
    store, free = tmp_path / "s.db", threading.Event()

    def hang(_: Received) -> tuple[int, dict[str, str]]:
        if not free.is_set():
            free.wait(60)
            raise ConnectionError
        return 200, {}

    with receiver(hang) as there:
        fleet = fleet_file(tmp_path, {"webhook": there.url, "on": ["job_failed"]})
        up = start("up", "--store", store, "--fleet", fleet)
        try:
            for _ in range(3):
                assert unidle("submit", "--store", store, "--", *FAILS).returncode == 0
            there.until(lambda: len(there.all) == 3)
        finally:
            up.send_signal(signal.SIGKILL)
            up.wait()
        told = {one.headers["webhook-id"]: one.body for one in there.all}
        assert len(told) == 3
        free.set()
        done = unidle("up", "--store", store, "--fleet", fleet, "--until-idle")
        assert done.returncode == 0, done.stderr
        there.until(lambda: len(there.taken) == 3)
        assert {one.headers["webhook-id"]: one.body for one in there.all[3:]} == told
        unidle("up", "--store", store, "--fleet", fleet, "--until-idle")
        assert len(there.all) == 6
    (channel,) = ask("guard", "notices", "--store", store)
    assert (channel["sent"], channel["pending"], channel["refused"]) == (3, 0, 0)
    assert {one["id"] for one in channel["recent"]} == told.keys()


@pytest.mark.slow
@pytest.mark.parametrize("points", [6])
def test_a_controller_killed_at_any_moment_loses_no_notice_and_no_id_is_counted_twice(
    tmp_path: Path, points: int
) -> None:
    store = tmp_path / "s.db"
    with receiver() as there:
        fleet = fleet_file(tmp_path, {"webhook": there.url, "on": ["job_failed"]}, {"log": "notices.jsonl"})
        jobs = set()
        for k in range(points):
            up = start("up", "--store", store, "--fleet", fleet)
            while not store.exists() or unidle("list", "--store", store).returncode:
                pass
            done = unidle("submit", "--store", store, "--json", "--", *FAILS)
            assert done.returncode == 0, done.stderr
            jobs.add(json.loads(done.stdout)["job"])
            threading.Event().wait(0.06 * k)
            up.send_signal(signal.SIGKILL)
            up.wait()
        done = unidle("up", "--store", store, "--fleet", fleet, "--until-idle")
        assert done.returncode == 0, done.stderr
        there.until(lambda: {one["job"] for one in there.taken} == jobs)
        assert len(there.distinct()) == points
    lines = [json.loads(line) for line in (tmp_path / "notices.jsonl").read_text().splitlines()]
    assert {one["id"] for one in lines if one["kind"] == "job_failed"} == there.distinct().keys()


def test_secrets_reach_neither_jobs_nor_hooks_nor_files(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with receiver() as there:
        hook = ["sh", "-c", f"env > {tmp_path}/hook.env"]
        fleet = fleet_file(
            tmp_path,
            {"webhook": "env:NOTICE_URL", "secret_env": "NOTICE_SECRET", "headers": {"Authorization": "env:NOTICE_TOKEN"}},
            {"command": hook},
        )  # fmt: skip
        env = {
            **os.environ,
            "NOTICE_URL": there.url + "&P4TH",
            "NOTICE_SECRET": "S3CRET",
            "NOTICE_TOKEN": "T0KEN",
        }
        job = ["sh", "-c", f"env > {tmp_path}/job.env; exit 3"]
        done = unidle("run", "--store", store, "--fleet", fleet, "--progress", "plain", "--", *job, env=env)
        assert done.returncode == 1, done.stderr
        there.until(lambda: len(there.taken) == 1)
        assert there.all[0].headers["authorization"] == "T0KEN"
        shown = unidle("guard", "notices", "--store", store, "--json")
        tried = unidle("guard", "notices", "--test", "--fleet", fleet, env=env)
    assert tried.returncode == 0, tried.stderr
    assert (tmp_path / "job.env").exists()
    assert (tmp_path / "hook.env").exists()
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    text += (done.stdout + done.stderr + shown.stdout + tried.stdout + tried.stderr).encode()
    for word in (b"S3CRET", b"T0KEN", b"P4TH"):
        assert word not in text


def test_a_run_does_not_wait_for_a_receiver_that_is_down(tmp_path: Path) -> None:
    with receiver() as gone:
        url = gone.url
    fleet = fleet_file(tmp_path, {"webhook": url})
    done = unidle("run", "--store", tmp_path / "s.db", "--fleet", fleet, "--", *FAILS, timeout_s=30)
    assert done.returncode == 1, done.stderr
    (channel,) = ask("guard", "notices", "--store", tmp_path / "s.db")
    assert (channel["pending"], channel["error"]) == (1, "connection refused")


def test_the_test_notice_says_who_did_not_take_it(tmp_path: Path) -> None:
    with receiver(lambda _: (401, {})) as there:
        fleet = fleet_file(
            tmp_path, {"webhook": there.url, "name": "chat"}, {"log": "n.jsonl", "name": "file"}
        )
        done = unidle("guard", "notices", "--test", "--fleet", fleet, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == [
        {"channel": "chat", "ok": False, "because": "answered 401"},
        {"channel": "file", "ok": True, "because": None},
    ]
    assert there.all[0].notice["kind"] == "test"


def test_bad_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text("nodes: [{id: n, devices: {kind: cpu}}]\n")
    for words, problem in [
        (("--test",), "--fleet: is needed with --test"),
        (("--fleet", plain), "--fleet: goes with --test"),
        (("--test", "--fleet", plain), "notices: the fleet file has no channel"),
    ]:
        done = unidle("guard", "notices", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert problem in done.stderr
