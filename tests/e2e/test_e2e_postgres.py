"""The same commands on a store that is a PostgreSQL database."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import needs
from e2e import gangs
from e2e.commands import ask, unidle
from unidle.engine.local.ranks import process_tree
from waiting import wait_until

pytestmark = needs.postgres


def test_job_runs_on_a_postgresql_store(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    file = gangs.write_job(
        tmp_path / "job.yaml",
        'echo "try $TORCHELASTIC_RESTART_COUNT"; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || kill -KILL $$',
        ranks=2,
        restart={"max": 1, "backoff_s": 0.1},
    )
    done = unidle("run", file, "--store", postgres_url, "--json")
    assert done.returncode == 0, done.stderr
    answer = gangs.last_line(done.stdout)
    assert (answer["state"], answer["attempts"]) == ("succeeded", 2)
    assert Path(answer["report"]).is_relative_to(tmp_path / "data" / "unidle")
    (line,) = ask("list", "--store", postgres_url)
    assert line["job"] == answer["job"]
    ledger = ask("ledger", "--store", postgres_url)
    assert sum(leaf["ns"] for leaf in ledger["leaves"]) == ledger["capacity_ns"]
    logs = unidle("logs", "job", "--store", postgres_url).stdout
    assert sorted(logs.splitlines()) == ["[0] try 1", "[1] try 1"]
    assert ask("store", "check", "--store", postgres_url)["ok"]


def test_second_controller_on_postgresql_is_turned_away(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    file = gangs.write_job(tmp_path / "long.yaml", "sleep 60")
    with gangs.running("run", file, "--store", postgres_url) as first:
        gangs.wait_for_state(postgres_url, "long", "running")
        second = unidle("up", "--store", postgres_url)
        assert second.returncode == 4
        assert f"is held by unidle run (pid {first.pid} on " in second.stderr
        assert ask("cancel", "long", "--store", postgres_url)["state"] == "cancelled"
        assert first.wait(60) == 1


def test_the_password_of_the_store_is_in_no_argument_and_no_environment_of_what_a_controller_starts(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres_url.replace("unidle@", "unidle:a-secret-word@")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("UNIDLE_STORE", address)
    file = gangs.write_job(tmp_path / "long.yaml", "sleep 60", ranks=2)
    with gangs.running("up", "--profile", "--cpu-devices", "2") as up:
        assert unidle("submit", file).returncode == 0
        gangs.wait_for_state(postgres_url, "long", "running")
        wait_until(lambda: _of("unidle.scope.continuous", up.pid), 60, "the profiler")
        started = process_tree.descendants(up.pid)
        assert len(started) >= 5  # two supervisors, two ranks, the profiler
        for pid in started:
            for name in ("cmdline", "environ"):
                with suppress(OSError):
                    assert b"a-secret-word" not in Path(f"/proc/{pid}/{name}").read_bytes(), (pid, name)
        assert b"a-secret-word" not in Path(f"/proc/{up.pid}/cmdline").read_bytes()
        assert ask("cancel", "long")["state"] == "cancelled"


def _of(module: str, pid: int) -> list[int]:
    """Descendants of a process that run this module."""
    found = []
    for one in process_tree.descendants(pid):
        with suppress(OSError):
            if module.encode() in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found
