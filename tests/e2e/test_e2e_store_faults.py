"""Stores that are deleted, replaced, damaged or out of reach under the commands that use them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import needs
from e2e import gangs
from e2e.commands import ask, unidle
from unidle.engine.local.ranks import rundir
from waiting import wait_until

UNTIL_GO = 'while [ ! -e "$UNIDLE_TEST_GO" ]; do sleep 0.05; done'


@pytest.fixture(autouse=True)
def _go_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UNIDLE_TEST_GO", str(tmp_path / "go"))
    yield
    (tmp_path / "go").touch()  # no rank outlives a test


def change(store: Path, statement: str, *params: object) -> None:
    """Change rows behind the store's back."""
    with closing(sqlite3.connect(store)) as connection, connection:
        assert connection.execute(statement, params).rowcount >= 1


def test_a_store_that_is_moved_away_ends_up_and_is_adopted_again_when_it_is_back(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = gangs.submit(store, tmp_path / "job.yaml", UNTIL_GO, ranks=2)
    with gangs.running("up", "--store", store, "--cpu-devices", 2) as first:
        gangs.wait_for_state(store, "job", "running")
        store.rename(tmp_path / "elsewhere.db")
        _, err = first.communicate(timeout=60)
    assert first.returncode == 4, err
    assert b"its file was deleted or moved while the store was in use; put the file back" in err
    assert f"1 job of the lost store left running: {job}".encode() in err
    assert not store.exists()
    (tmp_path / "elsewhere.db").rename(store)
    with gangs.running("up", "--store", store, "--cpu-devices", 2, "--until-idle") as second:
        (tmp_path / "go").touch()
        assert second.wait(60) == 0
    found = gangs.jobs_of(store)["job"]
    assert (found.state, len(found.attempts)) == ("succeeded", 1)


def test_a_lock_of_an_unknown_rank_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    lock = tmp_path / "s.db.d/runs/other/1/rank0" / rundir.LOCK
    lock.mkdir(parents=True)
    done = unidle("up", "--store", tmp_path / "s.db", "--cpu-devices", 1, "--until-idle")
    assert done.returncode == 4, done.stderr
    [line] = done.stderr.splitlines()
    assert f"{lock}: whether ranks of other stores run cannot be found out: Is a directory" in line


def test_a_new_store_in_the_place_of_a_deleted_one_does_not_use_its_devices_twice(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = gangs.submit(store, tmp_path / "job.yaml", UNTIL_GO)
    with gangs.running("up", "--store", store, "--cpu-devices", 1) as first:
        gangs.wait_for_state(store, "job", "running")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{store}{suffix}").unlink()
        second = unidle("up", "--store", store, "--cpu-devices", 1)
        _, err = first.communicate(timeout=60)
    assert first.returncode == 4, err
    assert second.returncode == 4, second.stderr
    assert f"ranks of jobs that this store does not know still run: {job}/1/rank0; put back" in second.stderr
    (tmp_path / "go").touch()
    gangs.assert_nothing_runs(job)
    third = unidle("up", "--store", store, "--cpu-devices", 1, "--until-idle")
    assert third.returncode == 0, third.stderr


def test_a_damaged_request_ends_no_command(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    gangs.submit(store, tmp_path / "bad.yaml", "true")
    good = gangs.submit(store, tmp_path / "good.yaml", "true")
    other = gangs.submit(store, tmp_path / "other.yaml", "true")
    change(store, "UPDATE unidle_requests SET body = body || x'20' WHERE id = 1")
    listed = unidle("list", "--store", store, "--json")
    assert listed.returncode == 0, listed.stderr
    assert {line["job"] for line in json.loads(listed.stdout)} == {good, other}
    assert "request 1 (submit) is damaged in the store; it is passed over" in listed.stderr
    exported = unidle("store", "export", "--store", store)
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.count('"line":"request"') == 2
    assert "request 1: its checksum is wrong; it is left out" in exported.stderr
    cancelled = unidle("cancel", other, "--store", store)  # it takes the store if no controller holds it
    assert cancelled.returncode == 0, cancelled.stderr
    up = unidle("up", "--store", store, "--until-idle")
    assert up.returncode == 0, up.stderr
    assert gangs.jobs_of(store)["good"].state == "succeeded"
    assert "bad" not in gangs.jobs_of(store)
    log = unidle("store", "export", "--store", store).stdout
    assert "request 1 is damaged in the store: its checksum is wrong" in log
    assert unidle("store", "check", "--store", store).returncode == 0  # it was put away


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The store of two jobs that have run, with one event of the first damaged."""
    store = tmp_path / "s.db"
    for name in ("one", "two"):
        done = unidle("run", gangs.write_job(tmp_path / f"{name}.yaml", "sleep 0.3"), "--store", store)
        assert done.returncode == 0, done.stderr
    change(store, "DELETE FROM unidle_snapshots")
    with closing(sqlite3.connect(store)) as connection:
        (seq,) = connection.execute(
            "SELECT min(seq) FROM unidle_events WHERE kind = 'attempt_ended'"
        ).fetchone()
    change(store, "UPDATE unidle_events SET source = 'x' WHERE seq = ?", seq)
    return store


def assert_hole(store: Path | str, unseen_from_ns: int, unseen_until_ns: int) -> None:
    ledger = ask("ledger", "--store", store)
    assert sum(leaf["ns"] for leaf in ledger["leaves"]) == ledger["capacity_ns"]
    rows = [
        json.loads(line)
        for line in unidle("ledger", "--store", store, "--format", "jsonl").stdout.splitlines()
    ]
    within = [r for r in rows if r["start_ns"] < unseen_until_ns and r["end_ns"] > unseen_from_ns]
    assert within
    assert {row["leaf"] for row in within} == {"unseen"}


def test_a_damaged_event_costs_itself_only(damaged: Path, tmp_path: Path) -> None:
    for words in (("list",), ("store", "export"), ("ledger",)):
        assert unidle(*words, "--store", damaged).returncode == 4
    checked = unidle("store", "check", "--store", damaged)
    assert checked.returncode == 1
    assert "`unidle store repair` saves what is whole" in checked.stdout

    file, before = tmp_path / "log.jsonl", damaged.read_bytes()
    salvaged = unidle("store", "export", file, "--salvage", "--store", damaged)
    assert salvaged.returncode == 0, salvaged.stderr
    assert "lost (attempt_ended of one-" in salvaged.stderr
    assert unidle("store", "import", file, "--store", tmp_path / "new.db").returncode == 0
    assert damaged.read_bytes() == before

    trial = ask("store", "repair", "--dry-run", "--store", damaged)
    assert damaged.read_bytes() == before
    (hole,) = trial["holes"]
    assert (trial["store"], trial["damaged"]) == (None, None)

    done = unidle("store", "repair", "--store", damaged)
    assert done.returncode == 0, done.stderr
    assert "lost (attempt_ended of one-" in done.stdout
    assert f"saved in {damaged}; the damaged file is {damaged}.damaged" in done.stdout
    assert Path(f"{damaged}.damaged").read_bytes() == before
    for store in (damaged, tmp_path / "new.db"):
        assert unidle("store", "check", "--store", store).returncode == 0
        assert {j.state for j in gangs.jobs_of(store).values()} == {"succeeded"}
        assert_hole(store, hole["since_ns"], hole["until_ns"])
    up = unidle("up", "--until-idle", "--store", damaged)
    assert up.returncode == 0, up.stderr
    again = unidle("run", tmp_path / "one.yaml", "--store", damaged)
    assert again.returncode == 0, again.stderr


def test_a_page_that_is_lost_costs_what_stood_on_it(damaged: Path) -> None:
    with closing(sqlite3.connect(damaged)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'unidle_events'"
        ).fetchone()
    data = bytearray(damaged.read_bytes())
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)  # SQLite finds no event any more
    damaged.write_bytes(data)
    assert unidle("list", "--store", damaged).returncode == 4
    done = ask("store", "repair", "--store", damaged)
    assert done["events"] > 5
    assert {j.state for j in gangs.jobs_of(damaged).values()} <= {"succeeded", "running"}
    assert unidle("store", "check", "--store", damaged).returncode == 0
    ledger = ask("ledger", "--store", damaged)
    assert sum(leaf["ns"] for leaf in ledger["leaves"]) == ledger["capacity_ns"]


def test_a_log_that_lost_its_last_commits_whole_is_known_by_what_the_ranks_left(tmp_path: Path) -> None:
    store, copy = tmp_path / "s.db", tmp_path / "old.jsonl"
    assert unidle("run", "--cpu-devices", 1, "--store", store, "--name", "one", "true").returncode == 0
    assert unidle("store", "export", copy, "--store", store).returncode == 0
    assert unidle("run", "--cpu-devices", 1, "--store", store, "--name", "two", "true").returncode == 0
    two = gangs.jobs_of(store)["two"].id
    assert ask("store", "check", "--store", store)["unlogged"] == []
    for suffix in ("", "-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)
    assert unidle("store", "import", copy, "--store", store).returncode == 0
    words = f"{two}: attempt 1 has files in {store}.d/runs, but is not in the log"
    checked = unidle("store", "check", "--store", store)
    assert checked.returncode == 0 and words in checked.stderr
    assert words in unidle("store", "repair", "--dry-run", "--store", store).stdout


def test_a_store_in_use_is_not_repaired(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with gangs.running("up", "--store", store) as up:
        wait_until(
            lambda: Path(f"{store}-wal").exists() and unidle("list", "--store", store).returncode == 0, 60
        )
        for words in (("repair",), ("repair", "--dry-run"), ("export", "--salvage")):
            done = unidle("store", *words, "--store", store)
            assert done.returncode == 4, done
            assert "another process has the store open; stop `unidle up`" in done.stderr
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.db", "s.db.d"]


def test_what_cannot_be_repaired_is_told(tmp_path: Path) -> None:
    missing = unidle("store", "repair", "--store", tmp_path / "s.db")
    assert (missing.returncode, "there is no store" in missing.stderr) == (2, True)
    (tmp_path / "s.db").write_bytes(os.urandom(20_000))
    foreign = unidle("store", "repair", "--store", tmp_path / "s.db")
    assert foreign.returncode == 4
    assert "no row of a store of unidle can be found in it; restore it from an export" in foreign.stderr


@needs.postgres
def test_a_controller_on_postgresql_survives_the_end_of_its_connections(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE faults")
        address = postgres_url.replace("/postgres?", "/faults?")
        try:
            gangs.submit(address, tmp_path / "job.yaml", UNTIL_GO, ranks=2)
            with gangs.running("up", "--store", address, "--until-idle", "--cpu-devices", 2) as up:
                gangs.wait_for_state(address, "job", "running")
                for _ in range(3):
                    ended = admin.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'faults'"
                    ).fetchall()
                    assert ended
                    wait_until(
                        lambda: admin.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'faults'").fetchone(),
                        60, "the controller's return",
                    )  # fmt: skip
                assert up.poll() is None
                (tmp_path / "go").touch()
                _, err = up.communicate(timeout=60)
            assert up.returncode == 0, err
            job = gangs.jobs_of(address)["job"]
            assert (job.state, len(job.attempts)) == ("succeeded", 1)
            change_rows(address)
            without = unidle("store", "repair", "--store", address)
            assert without.returncode == 2
            assert "--to" in without.stderr
            saved = ask("store", "repair", "--store", address, "--to", tmp_path / "saved.db")
            assert [hole["first"] for hole in saved["holes"]] == [5]
            assert gangs.jobs_of(tmp_path / "saved.db")["job"].state == "succeeded"
        finally:
            admin.execute("DROP DATABASE faults WITH (FORCE)")


def change_rows(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE unidle_events SET crc = crc + 1 WHERE seq = 5")
