"""The engine of Kubernetes on a real cluster: boxes are pods on two of its nodes. One cluster serves the whole session."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from engine_contract.process_rigs import HubRig
from engine_contract.rigs import Behaviour, S
from kube.cluster import IMAGE, Cluster, kube
from kube_cluster.traces import traces
from kube_cluster.user_space import pod_section
from unidle.control.kube import ClusterObjects, KubeController, KubeWish, kube_engine
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.kube.engine import KubeEngine
from unidle.engine.local.ranks import process_tree
from unidle.engine.protocol import StartGang
from unidle.files.job import job_from_command
from unidle.hub.limits import HubLimits
from unidle.hub.server import HubServer
from unidle.jobs import JobSpec

NODES = ("n1", "n2")


@cache
def contract_cluster() -> Cluster:
    """The cluster of the session; :func:`close_cluster` takes it down."""
    folder = Path(tempfile.mkdtemp(prefix="unidle-contract-kube.")) / "cluster"
    done = kube("up", "--nodes", len(NODES), "--dir", folder)
    assert done.returncode == 0, done.stderr
    return Cluster(folder)


def close_cluster() -> None:
    if contract_cluster.cache_info().currsize:
        cluster = contract_cluster()
        done = kube("down", "--dir", cluster.folder)
        assert done.returncode == 0, done.stderr
        assert traces(cluster.layout) == []
        shutil.rmtree(cluster.folder.parent, ignore_errors=True)
        contract_cluster.cache_clear()


class KubeRig(HubRig):
    """Boxes are pods."""

    nodes = NODES
    timing = HostsTiming(deadline_ns=5 * S, silent_ns=3 * S // 2, start_within_ns=90 * S)
    limits = HubLimits(every_ns=S // 5, deadline_ns=timing.deadline_ns)

    def __init__(self, place: Path, cluster: Cluster) -> None:
        super().__init__(place)
        self.cluster = cluster
        self._objects: list[ClusterObjects] = []
        self.hub_host = cluster.host
        self.open()
        self.engine: KubeEngine = self.engine_of(self.hub)

    def engine_of(self, hub: HubServer, fence: int | None = None) -> KubeEngine:
        addresses = tuple(f"{self.cluster.host}:{port}" for port in self.ports)
        kubeconfig = str(self.cluster.folder / "kubeconfig")
        wish = KubeWish(IMAGE, kubeconfig=kubeconfig, hub_addresses=addresses, cpu_devices=4)
        by = KubeController(self.clock, fence or self.fence, self.timing, lambda: True, self.runs)
        engine, objects = kube_engine(hub, wish, lambda declared: declared, by)
        self._objects.append(objects)
        return engine

    def spec(self, behaviour: Behaviour, ranks: int) -> JobSpec:
        wish = job_from_command(["true"], base_dir=self.place, pod=pod_section(self.place)).pod
        return replace(super().spec(behaviour, ranks), pod=wish)

    def _of(self, command: StartGang, rank: int) -> set[int]:
        run = f"{self.engine._name}-{command.job}-{command.attempt}"
        return process_tree.with_environment(f"UNIDLE_RUN_ID={run}", f"UNIDLE_RANK={rank}")

    def pid(self, command: StartGang, rank: int) -> int:
        """On this machine, which sees the processes of all pods."""
        return min(self._of(command, rank))

    def runs(self, command: StartGang, rank: int) -> bool:
        return bool(self._of(command, rank))

    def stall(self, command: StartGang, rank: int, *, on: bool) -> None:
        os.kill(self._box(command.places[rank].node), signal.SIGSTOP if on else signal.SIGCONT)

    def _box(self, node: str) -> int:
        """The first process of the pod on a node."""
        for entry in Path("/proc").iterdir():
            try:
                found = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            told = next((line[11:] for line in found.split(b"\0") if line.startswith(b"UNIDLE_BOX=")), b"")
            if told and json.loads(told)["node"] == node and str(self.ports[0]) in told.decode():
                return int(entry.name)
        raise AssertionError(f"no box on {node}")

    def cut(self, node: str, *, on: bool) -> None:
        port = self.cluster.layout.port(NODES.index(node) + 1)
        subprocess.run(["ip", "link", "set", port, "down" if on else "up"], check=True)

    def refusals(self) -> list[Callable[[], str]]:
        pods = [state.pod.metadata.name for state in self.engine.pods.at.values()]
        return [lambda pod=pod: self.cluster.kubectl("logs", pod) for pod in pods]  # type: ignore[misc]

    def close(self) -> None:
        for node in NODES:
            self.cut(node, on=False)
        for gang in self.followed:
            if not gang.is_over:
                self.stop(gang, 0)
                self.ends(gang)
        for job in {gang.command.job for gang in self.followed}:
            self.engine.finish(job)
        self.engine.keep([])
        self.until(lambda: not self.engine.pods.at, "the end of all pods", 120)
        self.engine.close()
        for objects in self._objects:
            objects.close()
