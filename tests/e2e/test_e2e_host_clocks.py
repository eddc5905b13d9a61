"""Hosts whose clocks differ, one of them behind a slow link: what the log, the commands and the ledger have of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import needs
from e2e.commands import UNIDLE, ask, unidle
from e2e.gangs import submit, view_of
from unidle.agent.boxes import LOCK
from unidle.drill.lab import Lab
from unidle.engine.local.ranks.netns import WHERE
from unidle.engine.local.ranks.rundir import is_held
from unidle.view.state import View
from waiting import wait_until

AHEAD_S = {"n1": 600, "n2": 86_400}  # of the clock since boot
DELAY_MS = 20
NEAR_NS = 60_000_000_000
MS = 1_000_000

STEPS = """
echo "$(date +%s%N)" > note.$RANK
for n in 1 2 3 4 5; do echo "step $n/5"; sleep 0.05; done
while [ ! -e GO ]; do sleep 0.05; done
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(["hub", *AHEAD_S])
    yield made
    made.close()


def started(stack: ExitStack, lab: Lab, place: Path, node: str, *words: object, ahead_s: int = 0) -> None:
    """A command in the network of a node, with its clock; it is ended with the stack."""
    inside = ["nsenter", f"--net={WHERE}/{lab.space(node)}"]
    clock = ["unshare", "--time", "--boottime", str(ahead_s), "--monotonic", str(ahead_s)] if ahead_s else []
    errors = stack.enter_context((place / f"{node}.err").open("wb"))
    process = subprocess.Popen([*inside, *clock, *UNIDLE, *map(str, words)], stderr=errors)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)


def boxes_end(place: Path) -> None:
    locks = list(place.glob(f"n*/boxes/*/{LOCK}"))
    for lock in locks:
        if is_held(lock):
            os.kill(int(lock.read_text()), signal.SIGTERM)
    wait_until(lambda: not any(map(is_held, locks)), 60)


@needs.shaping
@needs.time_namespaces
def test_clocks_that_differ_are_corrected_and_how_well_each_is_known_is_shown(
    lab: Lab, tmp_path: Path
) -> None:
    store = tmp_path / "fleet.db"
    with ExitStack() as stack:
        stack.callback(boxes_end, tmp_path)
        address = f"{lab.address('hub')}:7411"
        started(stack, lab, tmp_path, "hub", "up", "--store", store, "--listen", address, "--progress", "off")
        wait_until(Path(f"{store}.d/hub/join").exists, 60)
        lab.delay("hub", "n2", DELAY_MS)
        for node, ahead_s in AHEAD_S.items():
            join = ("--join", address, "--token-file", f"{store}.d/hub/join", "--node", node)
            own = ("--cpu-devices", 1, "--state", tmp_path / node, "--kernel-log", "off")
            started(stack, lab, tmp_path, node, "agent", *join, *own, ahead_s=ahead_s)
        wait_until(lambda: set(view_of(store).clocks) == set(AHEAD_S), 60)
        clocks_are_right(view_of(store))
        job = submit(store, tmp_path / "gang.json", STEPS, ranks=2, device="cpu", workdir=str(tmp_path))
        wait_until(lambda: (found := view_of(store).jobs.get(job)) is not None and found.steps() == 5, 60)
        times_are_right(view_of(store), job, tmp_path)
        shown_everywhere(store, job)
        (tmp_path / "GO").touch()
        wait_until(lambda: view_of(store).jobs[job].terminal, 60)
        check = unidle("ledger", "--check", "--store", store)
        assert check.returncode == 0, check.stdout


def clocks_are_right(view: View) -> None:
    """Within the errors; that of the slow link is at least as large as its delay."""
    for node, ahead_s in AHEAD_S.items():
        clock = view.clocks[node]
        assert abs(clock.offset_ns - (view.clock_offset_ns - ahead_s * 10**9)) <= clock.error_ns, node
    assert view.clocks["n2"].error_ns >= DELAY_MS * MS


def times_are_right(view: View, job: str, place: Path) -> None:
    attempt = view.jobs[job].attempts[0]
    drift_ns = time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) + view.clock_offset_ns)
    for number, rank in enumerate(attempt.ranks):
        noted_ns = int((place / f"note.{number}").read_text())
        assert rank.spawn_ns is not None
        assert abs(rank.spawn_ns - (noted_ns - drift_ns)) < NEAR_NS, attempt.places[number].node


def shown_everywhere(store: Path, job: str) -> None:
    [run] = ask("show", job, "--store", store)["runs"]
    assert set(run["clock_errors_ns"]) == set(AHEAD_S)
    assert run["clock_errors_ns"]["n2"] >= DELAY_MS * MS
    for command in ("show", "explain"):
        shown = unidle(command, job, "--store", store).stdout
        assert "clocks of hosts known within" in shown and "(n2)" in shown
    nodes = {line["target"]: line["clock_error_ns"] for line in ask("guard", "nodes", "--store", store)}
    assert nodes["n2"] >= DELAY_MS * MS > 0 < nodes["n1"]
    assert "clock" in unidle("guard", "nodes", "--store", store).stdout.splitlines()[0]
    assert "note: the clock of n2 is known within" in unidle("ledger", "--store", store).stdout
    trace = json.loads(unidle("ledger", "--format", "perfetto", "--store", store).stdout)
    assert set(trace["otherData"]["clock_error_ns"]) == set(AHEAD_S)
