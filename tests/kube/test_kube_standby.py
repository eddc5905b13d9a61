"""Two controllers of one store on a real cluster: where one ends or stops, the other goes on, and nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import needs
from e2e.commands import UNIDLE, unidle
from kube.cluster import IMAGE, Cluster
from kube.kube_site import KubeSite
from unidle.store.lease_time import LEASE_TTL_NS
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts, needs.postgres]
NAMESPACE = "standby"
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
RANK = """
echo started >> "started.$UNIDLE_JOB.$RANK"
while [ ! -e "GO.$UNIDLE_JOB" ]; do sleep 0.1; done
"""


class TwoControllers(KubeSite):
    """Each has a port, a data directory and process numbers of its own, as on two machines: it cannot see whether the other lives."""

    def __init__(self, cluster: Cluster, place: Path, store: str) -> None:
        super().__init__(cluster, place)
        self.store = store  # type: ignore[assignment]
        self._ports = {name: free_port(cluster.host) for name in "ab"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        kubeconfig = self.cluster.folder / "kubeconfig"
        hubs = [
            word for port in self._ports.values() for word in ("--hub-address", f"{self.cluster.host}:{port}")
        ]
        words = [
            *("up", "--standby", "--store", self.store, "--kubeconfig", kubeconfig, "--namespace", NAMESPACE, "--progress", "plain"),
            *("--listen", f"{self.cluster.host}:{self._ports[name]}", *hubs, "--hub-secret", f"{NAMESPACE}/hub"),
            *("--box-image", IMAGE, "--deadline", "20s", "--cpu-devices", "2"),
        ]  # fmt: skip
        env = {**os.environ, "XDG_DATA_HOME": str(self.place / f"data-{name}")}
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*ALONE, *UNIDLE, *map(str, words)], stdout=log, stderr=log, env=env
            )

    def log(self, name: str) -> Path:
        return self.place / f"up-{name}.log"

    def serves(self, name: str, times: int = 1) -> None:
        wait_until(
            lambda: self.log(name).read_text().count(" s  serving ") >= times or self._lives(name),
            90,
            self.errors(),
        )

    def _lives(self, name: str) -> bool:
        assert self._processes[name].poll() is None, self.errors()
        return False

    def stands_by(self, name: str, times: int = 1) -> None:
        wait_until(
            lambda: self.log(name).read_text().count("standing by: the store is held by") >= times,
            60,
            self.errors(),
        )

    def send(self, name: str, number: int) -> None:
        pid = self._processes[name].pid
        [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), number)

    def ended(self, name: str) -> int:
        return self._processes[name].wait(60)

    def errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in map(self.log, "ab") if path.exists())

    def close(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is None:
                self.send(name, signal.SIGCONT)
                self.send(name, signal.SIGTERM)
                process.wait(60)

    def starts(self, job: str) -> list[int]:
        """How often each rank of a job was started."""
        return [len(path.read_text().splitlines()) for path in sorted(self.place.glob(f"started.{job}.*"))]

    def decided(self, how: str, job: str, ended_ns: int) -> None:
        """Print when a job was placed by the controller that stood by: a job that waited for it."""
        after_s = (self.job(job).attempts[0].placed_ns - ended_ns) / 1e9
        print(
            f"{how}: first decision after {after_s:.2f} s, of these at most {LEASE_TTL_NS / 1e9:.0f} s the lease"
        )

    def waits(self, name: str, ranks: int) -> str:
        return self.submit(name, ["/bin/bash", "-c", RANK], ranks, cpus=0.1)

    def go(self, job: str) -> None:
        (self.place / f"GO.{job}").touch()


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def pair(own_cluster: Cluster, postgres_url: str, tmp_path: Path) -> Iterator[TwoControllers]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA standby")
    own_cluster.make_namespace(NAMESPACE)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": NAMESPACE}}
    own_cluster.kubectl("create", "-f", "-", told=secret)
    found = TwoControllers(own_cluster, tmp_path, f"{postgres_url}&options=-csearch_path%3Dstandby")
    found.start("a")
    found.serves("a")
    found.start("b")
    found.stands_by("b")
    try:
        yield found
    finally:
        found.close()
        own_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA standby CASCADE")


def test_a_second_controller_goes_on_where_the_first_was_killed_or_stopped(pair: TwoControllers) -> None:
    long = pair.waits("long", 2)
    pair.attempt_runs(long)
    pods = pods_of(pair, long)
    pids = [min(pair.rank_pids(long, rank)) for rank in (0, 1)]

    ended_ns = time.time_ns()
    pair.send("a", signal.SIGKILL)
    meanwhile = pair.waits("meanwhile", 1)
    pair.serves("b")
    pair.attempt_runs(meanwhile)
    pair.decided("killed", meanwhile, ended_ns)
    assert pair.ended("a") != 0

    pair.start("a")
    pair.stands_by("a")
    ended_ns = time.time_ns()
    pair.send("b", signal.SIGSTOP)  # it lives, and still believes that it has the store
    second = pair.waits("second", 1)
    pair.serves("a", 2)
    pair.attempt_runs(second)
    pair.decided("stopped", second, ended_ns)
    assert pods_of(pair, long) == pods
    assert [min(pair.rank_pids(long, rank)) for rank in (0, 1)] == pids
    pair.send("b", signal.SIGCONT)
    assert pair.ended("b") == 4, pair.errors()
    assert pair.starts(second) == [1]

    for job in (long, meanwhile, second):
        pair.go(job)
        assert pair.ends(job).state == "succeeded", pair.explained(job)
        assert len(pair.job(job).attempts) == 1
    assert pair.starts(long) == [1, 1]
    assert pair.starts(meanwhile) == pair.starts(second) == [1]
    checked = unidle("store", "check", "--store", pair.store, "--json")
    assert json.loads(checked.stdout)["ok"], checked.stdout
    wait_until(lambda: not pods_of(pair, long), 120, "no pod of it")


def pods_of(pair: TwoControllers, job: str) -> list[str]:
    found = pair.cluster.get("pods", "-n", NAMESPACE, "-l", f"unidle.dev/job={job}")["items"]
    return sorted(pod["metadata"]["uid"] for pod in found)
