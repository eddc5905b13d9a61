"""Hosts that are checked before a gang starts, fall sick, are repaired on the spot and come back: real agents and hooks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask, rows, unidle
from e2e.gangs import submit
from e2e.host_fleets import Fleet, opened
from unidle.drill.lab import Lab
from unidle.events import types as ev
from unidle.store.open import open_store
from unidle.view.jobs import JobView
from waiting import wait_until

THREE = ("n1", "n2", "n3")
ALLOWED = ("--hooks", "allow")
SHORT = {
    "probation": "1s",
    "probation_every": "0.3s",
    "drain": "2s",
    "drain_hard": "0.3s",
    "preflight": "off",
}
BROKEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus."
UNTIL_GO = "while [ ! -e GO ]; do sleep 0.05; done"


def fleet_file(place: Path, **guard: Any) -> Path:
    path = place / "fleet.json"
    path.write_text(json.dumps({"guard": {**SHORT, "out": {"nodes": 2}, **guard}}))
    return path


def hook(place: Path, name: str, script: str = "", **more: Any) -> dict[str, Any]:
    """A command of the site: it notes its node and the parent of the process that runs it, then does what the script does."""
    path = place / f"{name}.sh"
    path.write_text(
        f'#!/bin/sh\nread -r _ _ _ agent _ < /proc/$PPID/stat\necho "{name} $1 $agent" >> {place}/begun\n{script}\n'
    )
    path.chmod(0o755)
    return {"command": [str(path), "{node}"], "pause": "0.1s", "timeout": "60s", **more}


def begun(place: Path) -> list[tuple[str, str, int]]:
    """What ran: name, node and the process that had it run."""
    path = place / "begun"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, node, int(pid)) for name, node, pid in (line.split() for line in lines)]


def remedies(fleet: Fleet, node: str) -> list[ev.RemedySet]:
    """What the log has of the node's care."""
    opened_store = open_store(str(fleet.store), create=False, read_only=True)
    events = [ev.decode(e.kind, e.body) for e in opened_store.read() if e.kind == "remedy_set"]
    opened_store.close()
    return [e for e in events if isinstance(e, ev.RemedySet) and e.target == node]


def states(fleet: Fleet, node: str) -> list[str]:
    """Every state that the node has been in."""
    return [event.state for event in remedies(fleet, node)]


def because(fleet: Fleet, node: str) -> list[str]:
    """The reason of each of them."""
    return [event.because.text for event in remedies(fleet, node)]


def returned(fleet: Fleet, node: str) -> bool:
    """Whether it was out, and is back in use."""
    found = states(fleet, node)
    return bool(found) and found[-1] == "healthy" and fleet.view().health.get(node, "healthy") == "healthy"


def ended(fleet: Fleet, job: str) -> JobView:
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120)
    found = fleet.view().jobs[job]
    assert found.state == "succeeded", [attempt.why for attempt in found.attempts]
    return found


def runs(fleet: Fleet, job: str) -> JobView | None:
    """The job, once all ranks of its newest attempt run."""
    found = fleet.job(job)
    return found if found is not None and found.live is not None and found.live.all_spawned else None


def where(job: JobView, attempt: int) -> set[str]:
    return {place.node for place in job.attempts[attempt].places}


def checking(fleet: Fleet, job: str) -> list[str]:
    """Which checks the job waits for, as `unidle explain` has it."""
    told = ask("explain", job, "--store", fleet.store)
    return [one["text"] for one in told["decisions"] if one["what"] == "checking"]


# -- before a gang starts --------------------------------------------------------------------------


@needs.root
@needs.shaping
def test_each_host_of_a_gang_is_checked_in_its_own_network_by_its_own_agent_before_a_rank_starts(
    tmp_path: Path,
) -> None:
    quick = hook(tmp_path, "quick", f"echo $1 $(readlink /proc/self/ns/net) >> {tmp_path}/networks")
    file = fleet_file(tmp_path, preflight="quick", quick=quick)
    lab = Lab(["hub", *THREE])
    try:
        with opened(tmp_path, THREE, *ALLOWED, file=file, lab=lab) as fleet:
            job = ended(fleet, submit(fleet.store, tmp_path / "gang.json", "true", ranks=3, device="cpu"))
            assert sorted(begun(tmp_path)) == [("quick", node, fleet.agents[node].pid) for node in THREE]
            numbers = {node: os.stat(f"/run/netns/{lab.space(node)}").st_ino for node in THREE}  # noqa: PTH116
            networks = (tmp_path / "networks").read_text().splitlines()
            assert sorted(networks) == [f"{node} net:[{numbers[node]}]" for node in THREE]
            [attempt] = job.attempts
            checked_ns = attempt.checked_ns
            assert checked_ns is not None
            assert all(rank.spawn_ns is not None and rank.spawn_ns > checked_ns for rank in attempt.ranks)
    finally:
        lab.close()


def test_unidles_own_check_needs_no_leave_for_hooks_and_has_the_directories_of_the_job(
    tmp_path: Path,
) -> None:
    file = fleet_file(tmp_path, preflight="quick")
    with opened(tmp_path, file=file) as fleet:
        job = submit(
            fleet.store, tmp_path / "gang.json", "true", ranks=2, device="cpu", workdir=str(tmp_path), checkpoint={"path": "ckpt"}
        )  # fmt: skip
        ended(fleet, job)
        for node in fleet.hosts:
            assert len(fleet.view().care.checks[node]) == 1
            [order] = (tmp_path / node / "orders").glob("*-preflight-*")
            words = json.loads((order / "order.json").read_text())["words"]
            assert words[-2:] == [f"--used={tmp_path}", f"--used={tmp_path}/ckpt"]
            told = json.loads(json.loads((order / "result.json").read_text())["text"])
            assert words[words.index("--node") + 1] == told["node"] == node
        assert not (Path(f"{fleet.store}.d") / "remedies").exists()  # nothing ran as the controller's process


def test_a_host_that_fails_its_check_does_not_get_the_gang_which_starts_on_others(tmp_path: Path) -> None:
    # the host that is checked first is the bad one, until it is mended
    quick = hook(
        tmp_path, "quick",
        f"test -e {tmp_path}/mended && exit 0\nmkdir {tmp_path}/bad 2>/dev/null && echo $1 > {tmp_path}/bad/node\n"
        f'test "$(cat {tmp_path}/bad/node)" != "$1"',
    )  # fmt: skip
    file = fleet_file(tmp_path, preflight="quick", quick=quick, prove=hook(tmp_path, "prove"))
    with opened(tmp_path, THREE, *ALLOWED, file=file) as fleet:
        job = ended(fleet, submit(fleet.store, tmp_path / "gang.json", "true", ranks=2, device="cpu"))
        bad = (tmp_path / "bad" / "node").read_text().strip()
        assert bad in where(job, 0) and where(job, 1) == set(THREE) - {bad}
        assert len(job.attempts) == 2 and job.retries == 0
        assert all(rank.spawn_ns is None for rank in job.attempts[0].ranks)
        wait_until(lambda: states(fleet, bad)[-1:] == ["out"], 120)
        (tmp_path / "mended").touch()
        assert unidle("guard", "return", bad, "--store", fleet.store).returncode == 0
        wait_until(lambda: returned(fleet, bad), 120)
        assert ("prove", bad, fleet.agents[bad].pid) in begun(tmp_path)


# -- sick hosts ------------------------------------------------------------------------------------


def test_a_fault_in_a_hosts_kernel_log_has_it_repaired_and_proven_there_and_the_job_moves(
    tmp_path: Path,
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("")
    file = fleet_file(
        tmp_path, prove=hook(tmp_path, "prove"), quick=hook(tmp_path, "quick"),
        remedy={"reboot": hook(tmp_path, "reboot"), "replace": hook(tmp_path, "replace")},
    )  # fmt: skip
    with opened(tmp_path, ("n1",), *ALLOWED, "--kernel-log", log, file=file) as fleet:
        fleet.hosts = ("n1", "n2")
        submitted = submit(fleet.store, tmp_path / "job.json", UNTIL_GO, device="cpu", workdir=str(tmp_path))
        wait_until(lambda: runs(fleet, submitted), 120)
        fleet.join("n2", *ALLOWED, "--kernel-log", "off")
        fleet.joined()
        wait_until(lambda: fleet.view().watching.get("n1"), 120)
        with log.open("a") as file_of_log:
            file_of_log.write(f"[{time.clock_gettime(time.CLOCK_BOOTTIME):.6f}] {BROKEN}\n")
        wait_until(lambda: returned(fleet, "n1"), 120)
        (tmp_path / "GO").touch()
        job = ended(fleet, submitted)
        assert [where(job, number) for number in (0, 1)] == [{"n1"}, {"n2"}] and job.retries == 0
        found = begun(tmp_path)
        assert {(node, pid) for _, node, pid in found} == {("n1", fleet.agents["n1"].pid)}
        assert [name for name, _, _ in found if name != "quick"] == ["reboot", "prove"]
        assert states(fleet, "n1")[:4] == ["draining", "quarantine", "remedy", "proving"]
        assert {"boot", "quarantine"} <= {row["leaf"] for row in rows(fleet.store) if row["device"] == "n1/0"}


def test_a_host_that_restarts_for_its_repair_leaves_the_fleet_and_is_proven_when_it_is_back(
    tmp_path: Path,
) -> None:
    """The hook does what a restart of its host does: it ends the agent and itself, and the next boot has another id."""
    orders = f"{tmp_path}/n1/orders"
    restart = (
        f"""sed -i 's/"boot": "[^"]*"/"boot": "the last one"/' {orders}/*-reboot/order.json\n"""
        "kill -TERM $agent\nkill -KILL $PPID"
    )
    file = fleet_file(
        tmp_path, prove=hook(tmp_path, "prove"), quick=hook(tmp_path, "quick"),
        remedy={"reboot": hook(tmp_path, "reboot", restart)},
    )  # fmt: skip
    with opened(tmp_path, ("n1", "n2"), *ALLOWED, file=file) as fleet:
        report = ("guard", "report", "n1", "--action", "reboot_node", "--because", "it broke")
        assert unidle(*report, "--store", fleet.store).returncode == 0
        fleet.agents["n1"].wait(60)
        wait_until(lambda: {node.id for node in fleet.view().fleet.nodes} == {"n2"}, 120)
        assert states(fleet, "n1")[-1] in ("remedy", "proving")  # its agent may have told of it in time
        fleet.join("n1", *ALLOWED)
        wait_until(lambda: returned(fleet, "n1"), 120)
        names = [(name, pid) for name, _, pid in begun(tmp_path) if name != "quick"]
        assert [name for name, _ in names] == ["reboot", "prove"]
        assert names[1][1] == fleet.agents["n1"].pid
        reasons = because(fleet, "n1")
        assert "reboot is done: the machine has restarted; next, a check" in reasons


def test_hooks_are_refused_unless_the_host_allows_them_and_the_reason_is_shown(tmp_path: Path) -> None:
    remedy = {"reboot": hook(tmp_path, "reboot", tries=1)}
    with opened(tmp_path, ("n1", "n2"), file=fleet_file(tmp_path, remedy=remedy)) as fleet:
        report = ("guard", "report", "n1", "--action", "reboot_node", "--because", "it broke")
        assert unidle(*report, "--store", fleet.store).returncode == 0
        wait_until(lambda: states(fleet, "n1")[-1:] == ["out"], 120)
        assert begun(tmp_path) == []
        shown = unidle("guard", "nodes", "--store", fleet.store)
        assert "this agent runs no hooks: start it with --hooks allow" in shown.stdout
        fleet.agents["n1"].kill()  # its operator allows them, and it is tried again
        fleet.agents["n1"].wait()
        fleet.join("n1", *ALLOWED)
        assert unidle("guard", "return", "n1", "--unproved", "--store", fleet.store).returncode == 0
        wait_until(lambda: states(fleet, "n1")[-1:] == ["healthy"], 120)
        assert unidle(*report, "--store", fleet.store).returncode == 0
        wait_until(lambda: begun(tmp_path), 120)
        assert begun(tmp_path) == [("reboot", "n1", fleet.agents["n1"].pid)]


def test_an_operator_drains_a_host_plans_work_on_it_and_has_it_back_when_it_is_proven(tmp_path: Path) -> None:
    file = fleet_file(tmp_path, prove=hook(tmp_path, "prove"), quick=hook(tmp_path, "quick"))
    with opened(tmp_path, ("n1", "n2"), *ALLOWED, file=file) as fleet:
        submitted = submit(fleet.store, tmp_path / "job.json", UNTIL_GO, device="cpu", workdir=str(tmp_path))
        first = next(iter(where(wait_until(lambda: runs(fleet, submitted), 60), 0)))
        assert unidle("guard", "drain", first, "--within", "1s", "--store", fleet.store).returncode == 0
        wait_until(lambda: states(fleet, first)[-1:] == ["out"], 120)
        assert unidle("guard", "return", first, "--store", fleet.store).returncode == 0
        wait_until(lambda: returned(fleet, first), 120)
        wait_until(lambda: runs(fleet, submitted), 120)
        [second] = {"n1", "n2"} - {first}
        window = ("--begin", "0.5s", "--until", "1.5s")
        assert unidle("guard", "maintain", second, *window, "--store", fleet.store).returncode == 0
        wait_until(lambda: returned(fleet, second), 120)
        wait_until(lambda: runs(fleet, submitted), 120)
        (tmp_path / "GO").touch()
        job = ended(fleet, submitted)
        assert [where(job, number) for number in range(3)] == [
            {first},
            {second},
            {first},
        ] and job.retries == 0
        assert "maintenance" in states(fleet, second)
        proofs = {(node, pid) for name, node, pid in begun(tmp_path) if name == "prove"}
        assert proofs == {(node, fleet.agents[node].pid) for node in ("n1", "n2")}


# -- agents and controllers that are killed --------------------------------------------------------


def test_a_check_outlives_its_agent_and_the_next_one_answers_for_it(tmp_path: Path) -> None:
    quick = hook(tmp_path, "quick", f"while [ ! -e {tmp_path}/checked ]; do sleep 0.05; done")
    file = fleet_file(tmp_path, preflight="quick", quick=quick)
    with opened(tmp_path, ("n1", "n2"), *ALLOWED, file=file) as fleet:
        submitted = submit(fleet.store, tmp_path / "gang.json", "true", ranks=2, device="cpu")
        wait_until(lambda: len(begun(tmp_path)) == 2, 120)
        nodes = ", ".join(place.node for place in fleet.view().jobs[submitted].attempts[0].places)
        assert checking(fleet, submitted) == [f"its nodes, before its ranks start: {nodes}"]
        before = fleet.agents["n1"].pid
        fleet.agents["n1"].kill()
        fleet.agents["n1"].wait()
        fleet.join("n1", *ALLOWED)
        (tmp_path / "checked").touch()
        job = ended(fleet, submitted)
        *moved, last = job.attempts  # moved: an agent that needs long to start is not waited for
        assert last.checked_ns is not None and job.retries == 0
        assert all(rank.spawn_ns is None for attempt in moved for rank in attempt.ranks)
        assert {(node, pid) for _, node, pid in begun(tmp_path)} == {
            ("n1", before),
            ("n2", fleet.agents["n2"].pid),
        }
        assert {found[-1].fit for found in fleet.view().care.checks.values()} == {True}
        assert checking(fleet, submitted) == []


@pytest.mark.slow
def test_a_gang_does_not_wait_for_the_check_of_a_host_that_does_not_answer_any_more(tmp_path: Path) -> None:
    quick = hook(tmp_path, "quick", f"while [ ! -e {tmp_path}/checked ]; do sleep 0.05; done")
    file = fleet_file(tmp_path, preflight="quick", quick=quick)
    with opened(tmp_path, THREE, *ALLOWED, file=file) as fleet:
        submitted = submit(fleet.store, tmp_path / "gang.json", "true", ranks=2, device="cpu")
        wait_until(lambda: len(begun(tmp_path)) == 2, 120)
        gone = min(where(fleet.view().jobs[submitted], 0))
        fleet.agents[gone].kill()
        fleet.agents[gone].wait()
        (tmp_path / "checked").touch()
        job = ended(fleet, submitted)
        assert where(job, 1) == set(THREE) - {gone} and job.retries == 0
        assert job.attempts[0].stop is not None
        assert job.attempts[0].stop.because.text == f"host {gone} does not answer"
        assert all(rank.spawn_ns is None for rank in job.attempts[0].ranks)


def test_a_gang_whose_controller_is_killed_during_its_check_starts_only_when_it_is_checked(
    tmp_path: Path,
) -> None:
    quick = hook(tmp_path, "quick", f"while [ ! -e {tmp_path}/checked ]; do sleep 0.05; done")
    file = fleet_file(tmp_path, preflight="quick", quick=quick)
    with opened(tmp_path, ("n1", "n2"), *ALLOWED, file=file) as fleet:
        submitted = submit(fleet.store, tmp_path / "gang.json", "true", ranks=2, device="cpu")
        wait_until(lambda: len(begun(tmp_path)) == 2, 120)
        assert fleet.up is not None
        fleet.up.kill()
        fleet.up.wait()
        fleet.serve()
        wait_until(lambda: len(begun(tmp_path)) == 4, 120)  # no one looks for what the first one began
        (tmp_path / "checked").touch()
        job = ended(fleet, submitted)
        *moved, last = job.attempts
        assert last.checked_ns is not None and job.retries == 0
        assert all(rank.spawn_ns is not None and rank.spawn_ns > last.checked_ns for rank in last.ranks)
        assert all(rank.spawn_ns is None for attempt in moved for rank in attempt.ranks)


@pytest.mark.parametrize("stage", ["remedy", "proving"])
def test_a_controller_and_an_agent_that_are_killed_begin_no_remedy_twice(tmp_path: Path, stage: str) -> None:
    wait = f"while [ ! -e {tmp_path}/{{}} ]; do sleep 0.05; done"
    file = fleet_file(
        tmp_path, prove=hook(tmp_path, "prove", wait.format("proven")), quick=hook(tmp_path, "quick"),
        remedy={"reboot": hook(tmp_path, "reboot", wait.format("repaired"))},
    )  # fmt: skip
    with opened(tmp_path, ("n1", "n2"), *ALLOWED, file=file) as fleet:
        report = ("guard", "report", "n1", "--action", "reboot_node", "--because", "it broke")
        assert unidle(*report, "--store", fleet.store).returncode == 0
        if stage == "proving":
            (tmp_path / "repaired").touch()
        name = {"remedy": "reboot", "proving": "prove"}[stage]
        wait_until(lambda: any(one[0] == name for one in begun(tmp_path)), 120)
        assert fleet.up is not None
        fleet.up.kill()
        fleet.up.wait()
        fleet.agents["n1"].kill()
        fleet.agents["n1"].wait()
        fleet.serve()
        fleet.join("n1", *ALLOWED)
        for done in ("repaired", "proven"):
            (tmp_path / done).touch()
        wait_until(lambda: returned(fleet, "n1"), 120)
        names = [one[0] for one in begun(tmp_path) if one[0] != "quick"]
        assert names == ["reboot", "prove"]
