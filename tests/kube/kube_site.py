"""A store and its controller on a real cluster, and jobs of it: for tests of the engine of Kubernetes as a user has it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.commands import UNIDLE, unidle
from e2e.gangs import view_of
from kube.cluster import IMAGE, Cluster, Layout, kube
from kube_cluster.traces import traces
from kube_cluster.user_space import pod_section
from unidle.engine.local.ranks import process_tree
from unidle.view.jobs import JobView
from unidle.view.state import View
from waiting import wait_until

DEADLINE_S = 8


@contextmanager
def cluster_of(folder: Path, nodes: int, kwok: int = 0) -> Iterator[Cluster]:
    """A cluster with so many nodes, and no trace of it afterwards. With UNIDLE_KUBE_DIR the one that runs there, which stays."""
    if standing := os.environ.get("UNIDLE_KUBE_DIR"):
        yield Cluster(Path(standing))
        return
    started = kube("up", "--nodes", nodes, "--kwok", kwok, "--dir", folder)
    try:
        assert started.returncode == 0, started.stderr
        yield Cluster(folder)
    finally:
        ended = kube("down", "--dir", folder)
    assert ended.returncode == 0, ended.stderr
    assert traces(Layout(folder.resolve())) == []


class KubeSite:
    """``place`` has the store and is in all pods."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster, self.place, self.store = cluster, place, place / "kube.db"
        self.up: subprocess.Popen[bytes] | None = None
        self.port = 0

    def serve(self, *more: object) -> None:
        """Start the controller, with ``more`` options; a later one listens where the first did."""
        reader = Path(f"{self.store}.d/hub/reader")
        reader.unlink(missing_ok=True)
        words = [
            *("up", "--store", self.store, "--kubeconfig", self.cluster.folder / "kubeconfig", "--progress", "off"),
            *("--listen", f"{self.cluster.host}:{self.port}", "--box-image", IMAGE, "--deadline", f"{DEADLINE_S}s"),
            *more,
        ]  # fmt: skip
        with (self.place / "up.err").open("ab") as errors:
            self.up = subprocess.Popen([*UNIDLE, *map(str, words)], stdout=subprocess.DEVNULL, stderr=errors)
        wait_until(reader.exists, 60, "the hub listens")
        self.port = json.loads(reader.read_text())["addresses"][0][1]

    def kill_controller(self) -> None:
        assert self.up is not None
        self.up.kill()
        self.up.wait()

    def close(self) -> None:
        if self.up is not None:
            self.up.terminate()
            self.up.wait(60)

    def submit(self, name: str, command: list[str], ranks: int, cpus: float = 0.2, **more: Any) -> str:
        job = {
            "name": name,
            "command": command,
            "workdir": str(self.place),
            "ranks": ranks,
            "devices_per_rank": 0,
            "requests": {"cpus": cpus},
            "rendezvous": "torchrun",
            "restart": {"max": 3, "backoff_s": 0.1},
            "grace_s": 1,
            "pod": pod_section(self.place),
            **more,
        }
        path = self.place / f"{name}.json"
        path.write_text(json.dumps(job))
        done = unidle("submit", path, "--store", self.store, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["job"])

    def view(self) -> View:
        return view_of(self.store)

    def job(self, job: str) -> JobView:
        return self.view().jobs[job]

    def attempt_runs(self, job: str, number: int = 1, timeout_s: float = 180) -> JobView:
        """The job, once all ranks of that attempt are up."""

        def look() -> JobView | None:
            found = self.view().jobs.get(job)
            if found is None or len(found.attempts) < number:
                return None
            assert not found.terminal, [attempt.why for attempt in found.attempts]
            return found if found.attempts[number - 1].all_spawned else None

        found = wait_until(look, timeout_s, f"attempt {number} of {job} runs; {self.errors()}")
        assert found is not None
        return found

    def ends(self, job: str, timeout_s: float = 180) -> JobView:
        def look() -> JobView | None:
            found = self.view().jobs.get(job)
            return found if found is not None and found.terminal else None

        found = wait_until(look, timeout_s, f"the end of {job}")
        assert found is not None
        return found

    def cancel(self, job: str) -> None:
        done = unidle("cancel", job, "--store", self.store)
        assert done.returncode == 0, done.stderr
        self.ends(job)
        wait_until(lambda: not self.pods(job), 120, f"no pod of {job}")

    def pods(self, job: str) -> dict[str, dict[str, Any]]:
        """By node."""
        found = self.cluster.get("pods", "-l", f"unidle.dev/job={job}")["items"]
        return {pod["metadata"]["annotations"]["unidle.dev/node"]: pod for pod in found}

    def uids(self, job: str) -> dict[str, str]:
        return {node: pod["metadata"]["uid"] for node, pod in self.pods(job).items()}

    def rank_pids(self, job: str, rank: int) -> set[int]:
        """On this machine, which sees the processes of all pods."""
        return process_tree.with_environment(f"UNIDLE_JOB={job}", f"UNIDLE_RANK={rank}")

    def explained(self, job: str) -> str:
        done = unidle("explain", job, "--store", self.store, env={**os.environ, "COLUMNS": "2000"})
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    def errors(self) -> str:
        return (self.place / "up.err").read_text()[-2000:]


@contextmanager
def site_in(
    cluster: Cluster, namespace: str, place: Path, told: Sequence[dict[str, Any]], **labels: str
) -> Iterator[KubeSite]:
    """A site whose pods are in a namespace of its own, which has the objects ``told`` and these labels; no pod of it may be left."""
    cluster.make_namespace(namespace, **labels)
    found = KubeSite(cluster, place)
    try:
        for one in told:
            cluster.kubectl("apply", "-f", "-", told=one)
        found.serve("--cpu-devices", 2, "--namespace", namespace)
        yield found
        pods = ("get", "pods", "-n", namespace, "-o", "name")
        wait_until(lambda: cluster.kubectl(*pods) == "", 120, "no pod is left")
    finally:
        found.close()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
