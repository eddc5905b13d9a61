"""``unidle agent`` in allocations of a real Slurm: nodes join under Slurm's names, and leave with the allocation."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import needs
import places
from agent.slurm_cluster import NODES, SlurmCluster, slurm_cluster
from e2e.commands import UNIDLE, start, unidle
from e2e.gangs import jobs_of, processes_of, submit, wait_for_state
from unidle.agent.slurm import LEAVE_S, asked_end_s
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from waiting import wait_until

pytestmark = needs.slurm

GANG = """
echo "rank $RANK of $WORLD_SIZE on $UNIDLE_NODE"
"""
WAITS = """
touch "began-$RANK-on-$UNIDLE_NODE"
while [ ! -e GO ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with places.open_directory("unidle-slurm-") as place, slurm_cluster(place) as found:
        yield found


class SlurmFleet:
    """A controller, and what allocations have to run to join it."""

    def __init__(self, place: Path, cluster: SlurmCluster, stack: ExitStack) -> None:
        self.place, self.store, self.cluster = place, place / "fleet.db", cluster
        errors = stack.enter_context((place / "up.err").open("wb"))
        self._up = start(
            "up", "--store", self.store, "--listen", "127.0.0.1:0", "--progress", "off", stderr=errors
        )
        stack.callback(self._end)
        reader = Path(f"{self.store}.d/hub/reader")
        wait_until(reader.exists, 60)
        port = json.loads(reader.read_text())["addresses"][0][1]
        join = f"--join=127.0.0.1:{port}", f"--token-file={self.store}.d/hub/join"
        self._agent = ["--ntasks-per-node=1", *UNIDLE, "agent", *join, "--cpu-devices=1", "--kernel-log=off"]

    def agents(self, *options: str) -> list[str]:
        """The command that starts one agent on each node of an allocation."""
        return ["env", f"XDG_DATA_HOME={self.place}/data", "srun", *options, *self._agent]

    def allocate(self, *options: str, before: str = "true") -> str:
        """Submit a batch script that runs ``before``, and then the agents; the number of its job."""
        script = f"{before} && {shlex.join(self.agents())}"
        return self.cluster.submit("--nodes=2", *options, script=script)

    def _end(self) -> None:
        self._up.terminate()
        self._up.wait(60)

    def nodes(self) -> set[str]:
        store = open_store(str(self.store), create=False, read_only=True)
        try:
            return {node.id for node in load_view(store).fleet.nodes}
        finally:
            store.close()

    def joined(self) -> None:
        wait_until(lambda: self.nodes() == set(NODES), 60, "both nodes to join")

    def empty(self) -> None:
        wait_until(lambda: not self.nodes(), 60, "both nodes to leave")

    def waiting_job(self, name: str) -> str:
        """Submit a job whose two ranks wait for a file."""
        workdir = self.place / name
        workdir.mkdir()
        fields = {"ranks": 2, "device": "cpu", "workdir": str(workdir)}
        return submit(self.store, self.place / f"{name}.json", WAITS, hold=True, **fields)

    def began(self, name: str) -> None:
        """Both ranks of that job run."""
        wait_until(lambda: len(list((self.place / name).glob("began-*"))) == 2, 60, "both ranks to begin")

    def waits_again(self, name: str, job: str) -> None:
        """Its ranks have ended, and it is not over."""
        wait_until(lambda: not processes_of(job), 60, "the ranks to end")
        wait_for_state(self.store, name, "queued", timeout_s=60)


@pytest.fixture(scope="module")
def controller(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmFleet]:
    with ExitStack() as stack:
        yield SlurmFleet(tmp_path_factory.mktemp("slurm"), cluster, stack)


@pytest.fixture
def fleet(controller: SlurmFleet) -> Iterator[SlurmFleet]:
    """No allocation outlives its test."""
    yield controller
    controller.cluster.cancel_all()
    controller.empty()


def test_srun_makes_its_nodes_a_fleet_and_a_gang_runs_over_them(fleet: SlurmFleet) -> None:
    job = submit(fleet.store, fleet.place / "gang.json", GANG, ranks=2, device="cpu", hold=True)
    with subprocess.Popen(fleet.agents("--nodes=2"), env=fleet.cluster.environ):
        try:
            fleet.joined()
            found = wait_for_state(fleet.store, "gang", "succeeded", timeout_s=60)
            ranks = found.attempts[0].places
            assert sorted(place.node for place in ranks) == list(NODES)
            shown = unidle("logs", job, "--store", fleet.store).stdout.splitlines()
            assert sorted(shown) == [f"[{one.rank}] rank {one.rank} of 2 on {one.node}" for one in ranks]
        finally:
            fleet.cluster.cancel_all()
    fleet.empty()


def test_after_scancel_a_job_waits_for_the_next_allocation(fleet: SlurmFleet) -> None:
    job = fleet.waiting_job("cancelled")
    first = fleet.allocate()
    fleet.began("cancelled")
    fleet.cluster.run("scancel", first)
    fleet.empty()
    fleet.waits_again("cancelled", job)
    wait_until(lambda: fleet.cluster.state(first) == "CANCELLED", 60)
    (fleet.place / "cancelled" / "GO").touch()
    fleet.allocate()
    wait_for_state(fleet.store, "cancelled", "succeeded", timeout_s=60)
    *before, last = jobs_of(fleet.store)["cancelled"].attempts
    assert {attempt.outcome for attempt in before} == {"preempted"}
    assert last.outcome == "succeeded"


@pytest.mark.nightly  # it waits for Slurm's clock
def test_nodes_leave_before_the_time_limit(fleet: SlurmFleet) -> None:
    job = fleet.waiting_job("limited")
    ends = f"scontrol update JobId=$SLURM_JOB_ID EndTime=now+{LEAVE_S + 45:.0f}"
    allocation = fleet.allocate("--time=5", before=ends)
    fleet.began("limited")
    end_s = asked_end_s_of(fleet.cluster, allocation)
    assert end_s is not None
    fleet.empty()
    fleet.waits_again("limited", job)
    wait_until(lambda: fleet.cluster.state(allocation) == "COMPLETED", 60)
    assert end_s - LEAVE_S < time.time() < end_s
    assert unidle("cancel", job, "--store", fleet.store).returncode == 0
    assert f"Slurm's allocation {allocation} ends" in fleet.cluster.output(allocation)


def test_slurm_is_asked_when_an_allocation_ends(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    job = cluster.submit("--time=5", script="sleep 300")
    wait_until(lambda: cluster.state(job) == "RUNNING", 60)
    end_s = asked_end_s(job)
    assert end_s is not None
    assert 0 < end_s - time.time() <= 300
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=UNLIMITED")
    assert asked_end_s(job) == math.inf
    assert asked_end_s("999999") is None
    cluster.cancel_all()


def asked_end_s_of(cluster: SlurmCluster, job: str) -> float | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        return asked_end_s(job)
