"""Real processes on parts of a CPU device that is cut on demand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
from e2e.commands import ask, rows, unidle
from e2e.gangs import groups_of, jobs_of, running, submit, wait_for_state
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from waiting import wait_until

FLEET = "nodes: [{id: n, cpus: 2, devices: {count: 1, kind: cpu, memory: 512MiB, share: {}}}]"


def fleet_file(place: Path) -> Path:
    path = place / "fleet.yaml"
    path.write_text(FLEET)
    return path


def quotas(job: str) -> list[float]:
    """CPUs that the control groups of a job's ranks allow."""
    found = []
    for group in groups_of(job):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        elif (group / "cpu.cfs_quota_us").exists():
            period_us = int((group / "cpu.cfs_period_us").read_text())
            found.append(int((group / "cpu.cfs_quota_us").read_text()) / period_us)
    return found


def wait_script(gate: Path) -> str:
    return f"while [ ! -e {gate} ]; do sleep 0.05; done"


def device(store: Path) -> dict[str, Any]:
    (found,) = ask("fleet", "--store", store)["devices"]
    assert isinstance(found, dict)
    return found


def shares_at_all_times(store: Path) -> None:
    """The parts of the device sum to all of it in the ledger, whenever one looks."""
    opened = open_store(str(store), create=False, read_only=True)
    view = load_view(opened)
    opened.close()
    spans = [(r.first_ns, r.gone_ns or view.time_ns, r.share_ppm) for r in view.book.slices]
    for at in sorted({t for first, last, _ in spans for t in (first, last)})[:-1]:
        assert sum(ppm for first, last, ppm in spans if first <= at < last) == 1_000_000


@needs.cgroups
def test_what_is_left_of_a_device_is_told_as_what_may_still_be_promised(tmp_path: Path) -> None:
    store, gate, fleet = tmp_path / "s.db", tmp_path / "gate", tmp_path / "more.yaml"
    fleet.write_text(FLEET.replace("share: {}", "share: {oversubscribe: {compute: 1.5}}"))
    submit(store, tmp_path / "a.json", wait_script(gate), share={"fraction": 0.75})
    with running("up", "--store", store, "--fleet", fleet, "--until-idle") as up:
        wait_for_state(store, "a", "running")
        assert device(store)["slices_ppm"] == [500_000, 500_000]
        assert "quota 75 %, 75 % left" in unidle("fleet", "--store", store).stdout
        gate.touch()
        assert up.wait(60) == 0


@needs.cgroups
def test_two_jobs_share_a_device_by_quota_and_a_whole_device_job_gets_it_when_they_have_left(
    tmp_path: Path,
) -> None:
    store, gate = tmp_path / "s.db", tmp_path / "gate"
    a = submit(store, tmp_path / "a.json", wait_script(gate), share={"fraction": 0.25})
    b = submit(store, tmp_path / "b.json", wait_script(gate), share={"fraction": 0.5})
    submit(store, tmp_path / "whole.json", "true", device="cpu")
    with running("up", "--store", store, "--fleet", fleet_file(tmp_path), "--until-idle") as up:
        for name in ("a", "b"):
            wait_for_state(store, name, "running")
        assert (quotas(a), quotas(b)) == ([0.5], [1.0])
        seen = device(store)
        assert seen["slices_ppm"] == [250_000, 500_000, 250_000] and seen["cut"]["mode"] == "quota"
        assert [part["job"] for part in seen["cut"]["parts"]] == [a, b, None]
        assert jobs_of(store)["whole"].state == "queued"
        assert "quota 25 % 50 %, 25 % left" in unidle("fleet", "--store", store).stdout
        told = ask("explain", a, "--store", store)
        placed = next(d for d in told["decisions"] if d["what"] == "placed")
        assert "quota on n/0, on an empty CPU device: 25.0 % of compute" in placed["text"]
        gate.touch()
        assert up.wait(60) == 0
    assert {job.state for job in jobs_of(store).values()} == {"succeeded"}
    assert device(store)["cut"] is None
    by_job = {
        row["job"]: row["share_ppm"] for row in rows(store) if row["job"] and row["leaf"] == "unmeasured"
    }
    assert sorted(by_job.values()) == [250_000, 500_000, 1_000_000]
    shares_at_all_times(store)
    assert unidle("store", "check", "--store", store).returncode == 0


@needs.cgroups
def test_a_controller_that_is_killed_between_cut_and_start_is_followed_by_one_that_starts_the_part(
    tmp_path: Path,
) -> None:
    store, gate = tmp_path / "s.db", tmp_path / "gate"
    a = submit(store, tmp_path / "a.json", wait_script(gate), share={"fraction": 0.25})
    # the first start of a rank ends the controller as kill -9 does: the log has the cut, and nothing runs
    crash = (
        "import os, signal\n"
        "from unidle.engine.local.engine import LocalEngine\n"
        "LocalEngine.start = lambda self, command: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from unidle.cli.main import main\n"
        "main()\n"
    )
    done = _python(crash, "up", "--store", store, "--fleet", fleet_file(tmp_path), "--until-idle")
    assert done == -signal.SIGKILL
    before = jobs_of(store)["a"]
    assert before.attempts[0].places[0].slices == ("n/0#1.0",) and not before.attempts[0].all_spawned
    with running("up", "--store", store, "--fleet", fleet_file(tmp_path), "--until-idle") as up:
        wait_for_state(store, "a", "running")
        assert quotas(a) == [0.5]
        up.send_signal(signal.SIGKILL)
        up.wait()
    with running("up", "--store", store, "--fleet", fleet_file(tmp_path), "--until-idle") as up:
        b = submit(store, tmp_path / "b.json", wait_script(gate), share={"fraction": 0.5})
        wait_for_state(store, "b", "running")
        assert (quotas(a), quotas(b)) == ([0.5], [1.0])
        gate.touch()
        assert up.wait(60) == 0
    jobs = jobs_of(store)
    assert [(job.state, len(job.attempts)) for job in jobs.values()] == [("succeeded", 1)] * 2
    assert device(store)["cut"] is None
    shares_at_all_times(store)


def test_a_snapshot_of_a_cut_device_repeats_the_decision(tmp_path: Path) -> None:
    store, gate = tmp_path / "s.db", tmp_path / "gate"
    submit(store, tmp_path / "a.json", wait_script(gate), share={"fraction": 0.6})
    submit(store, tmp_path / "b.json", "true", share={"fraction": 0.6})
    with running("up", "--store", store, "--fleet", fleet_file(tmp_path), "--until-idle") as up:
        wait_for_state(store, "a", "running")
        wait_until(lambda: jobs_of(store)["b"].verdict is not None, 60, "why b waits")
        snapshot = tmp_path / "snapshot"
        snapshot.write_text(unidle("fleet", "snapshot", "--store", store).stdout)
        live = jobs_of(store)["b"].verdict
        gate.touch()
        assert up.wait(60) == 0
    job = jobs_of(store)["b"].id
    answer = json.loads(unidle("place", "--snapshot", snapshot, "--job", job, "--json").stdout)
    assert live is not None and answer["blocked_by"][0]["text"] == live.text
    third = tmp_path / "c.json"
    third.write_text(json.dumps({"command": ["x"], "share": {"fraction": 0.4}}))
    fits = json.loads(unidle("place", "--snapshot", snapshot, "--job", third, "--json").stdout)
    assert fits["placed"] and "next to 1 other" in fits["because"][0]


def _python(code: str, *words: object) -> int:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, check=False, timeout=60
    ).returncode


def test_a_part_that_this_machine_can_never_make_ends_the_run_at_once(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "nodes: [{id: n, devices: {kind: gpu, model: H100, memory: 80GiB, share: {modes: [mig]}}}]"
    )
    job = tmp_path / "job.yaml"
    job.write_text("{command: ['true'], share: {profile: 1g.10gb}, name: part}")
    ended = unidle("run", job, "--fleet", fleet, "--store", tmp_path / "s.db")
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].startswith("unidle: part-")
    assert "it can never start here" in ended.stderr
    assert [line["state"] for line in ask("list", "--store", tmp_path / "s.db")] == ["cancelled"]
