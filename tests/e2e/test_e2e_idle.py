"""A job that holds devices and sleeps is told and released; one that computes without a word is not."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask, rows, start, unidle
from waiting import wait_until

FLEET = """
nodes: [{id: n1, devices: {count: 2, kind: cpu}}]
prices: {cpu: 3600}
idle: {after: 1s, start: 2s, notice: 3s, release: true}
"""
SLEEPS = "print('ready', flush=True); import time; time.sleep(600)"
COMPUTES = "import time; end = time.time() + 12\nwhile time.time() < end: sum(range(100000))"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def command(code: str) -> list[str]:
    return ["--", sys.executable, "-I", "-S", "-c", code]


def holders(store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("fleet", "--idle", "--store", store)
    return found


@pytest.mark.slow
def test_a_sleeper_is_told_and_released_and_its_output_is_left_alone(tmp_path: Path, fleet: Path) -> None:
    store = tmp_path / "s.db"
    options = ("--store", store, "--fleet", fleet, "--name", "sleeper", "--progress", "plain")
    done = unidle("run", *options, *command(SLEEPS))
    assert done.returncode == 1
    notice = next(line for line in done.stderr.splitlines() if "will be released in 3 s" in line)
    assert "holds 1 device" in notice
    assert "without a step or utilisation" in notice
    assert "released by policy after a notice of 3 s" in done.stdout
    assert unidle("logs", "sleeper", "--store", store).stdout == "ready\n"

    story = ask("explain", "sleeper", "--store", store)
    assert (story["state"], story["code"]) == ("cancelled", "idle_released")
    decisions = {d["what"]: d for d in story["decisions"]}
    told, stop = decisions["idle notice"], decisions["stop"]
    assert stop["time_ns"] - told["time_ns"] >= 3e9
    figures = stop["figures"]
    idle_ns = sum(r["end_ns"] - r["start_ns"] for r in rows(store) if r["job"] and r["leaf"] == "idle")
    assert idle_ns > figures["quiet_ns"] - 1e9
    assert figures["quiet_ns"] > 4e9
    assert stop["time_ns"] - figures["since_ns"] == pytest.approx(figures["quiet_ns"], abs=1e9)


@pytest.mark.slow
def test_one_that_computes_without_a_step_is_neither_told_nor_released(tmp_path: Path, fleet: Path) -> None:
    store = tmp_path / "s.db"
    options = ("--store", store, "--fleet", fleet, "--name", "computes")
    done = unidle("run", *options, "--json", *command(COMPUTES))
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert "idle notice" not in [d["what"] for d in ask("explain", "computes", "--store", store)["decisions"]]


@pytest.mark.slow
def test_a_notice_outlives_its_controller_and_is_counted_anew_by_the_next(tmp_path: Path) -> None:
    store, fleet = tmp_path / "s.db", tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.replace("notice: 3s", "notice: 8s"))
    unidle("submit", "--store", store, "--name", "sleeper", *command(SLEEPS))
    first = start("up", "--store", store, "--fleet", fleet)
    try:
        wait_until(lambda: holders(store) and holders(store)[0]["notice_ns"], 60, "the notice")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    (held,) = holders(store)
    assert held["policy"] == "releases"
    assert held["evidence"] in ("utilisation", "none")
    assert held["devices"] == 1
    assert held["cost"] == pytest.approx(held["device_hours"] * 3600)
    assert "sleeper" in unidle("fleet", "--idle", "--store", store).stdout
    assert "(idle)" in unidle("fleet", "--store", store).stdout
    (line,) = ask("list", "--store", store)
    assert "will be released in 8 s" in line["reason"]

    again_ns = time.time_ns()
    assert unidle("up", "--store", store, "--fleet", fleet, "--until-idle").returncode == 0
    story = ask("explain", "sleeper", "--store", store)
    assert story["code"] == "idle_released"
    assert [d["what"] for d in story["decisions"]].count("idle notice") == 1
    stop = next(d for d in story["decisions"] if d["what"] == "stop")
    assert stop["time_ns"] >= again_ns + 8e9


def test_idle_holders_are_those_of_a_store(fleet: Path) -> None:
    done = unidle("fleet", "--idle", "--fleet", fleet)
    assert done.returncode == 2
    assert "cannot be used with --idle, which reads a store" in done.stderr
