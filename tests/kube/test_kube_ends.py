"""Ends of pods that others bring about, on a real cluster: each is a cause in the log, and no failure of the job.

All tests of this file use one controller; only `make test-kube` runs them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from kube.cluster import Cluster, pod
from kube.kube_site import KubeSite
from kube.test_kube_jobs import WAITS, go
from unidle.engine.kube.sources import OUT_OF_SERVICE
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NODES = ("n1", "n2")


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    found = KubeSite(own_cluster, tmp_path_factory.mktemp("site"))
    try:
        found.serve("--deadline", "20s")
        yield found
    finally:
        found.close()


def running(site: KubeSite, name: str, ranks: int = 1) -> tuple[str, str]:
    """A job that runs, and the node of its first rank."""
    job = site.submit(name, ["/bin/bash", "-c", WAITS], ranks, restart={"max": 1, "backoff_s": 0.1})
    return job, site.attempt_runs(job).attempts[0].places[0].node


def ends_well(site: KubeSite, job: str) -> None:
    go(site, job)
    assert site.ends(job).state == "succeeded", site.explained(job)
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def disrupted(site: KubeSite, job: str) -> str:
    """Why its first attempt ended, once a later one runs."""

    def again() -> bool:
        attempts = site.job(job).attempts
        return len(attempts) > 1 and attempts[-1].all_spawned

    wait_until(again, 120, f"another attempt of {job}")
    because = site.job(job).attempts[0].disrupted
    assert because is not None, site.explained(job)
    return because.code


def test_a_pod_whose_deadline_is_over_is_no_failure(site: KubeSite) -> None:
    job, node = running(site, "deadline")
    name = site.pods(job)[node]["metadata"]["name"]
    site.cluster.kubectl("patch", "pod", name, "-p", '{"spec": {"activeDeadlineSeconds": 1}}')
    assert disrupted(site, job) == "pod_deadline"
    assert "activeDeadlineSeconds" in site.explained(job)
    ends_well(site, job)


def test_a_pod_that_is_preempted_is_no_failure(site: KubeSite) -> None:
    job, node = running(site, "preempted")
    cores = int(site.cluster.get("node", node)["status"]["allocatable"]["cpu"])
    first = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "first"},
        "value": 1000,
    }
    site.cluster.kubectl("apply", "-f", "-", told=first)
    resources = {"requests": {"cpu": f"{cores * 1000 - 100}m"}}
    greedy = pod(
        "greedy", "pause", container={"resources": resources}, priorityClassName="first",
        nodeSelector={"kubernetes.io/hostname": node},
    )  # fmt: skip
    site.cluster.kubectl("create", "-f", "-", told=greedy)
    try:
        assert disrupted(site, job) == "pod_preempted"
        assert "higher priority" in site.explained(job)
        wait_until(lambda: site.cluster.phase("greedy") == "Running", 120, "the pod of higher priority")
        ends_well(site, job)
    finally:
        site.cluster.kubectl("delete", "pod/greedy", "priorityclass/first")


def test_ranks_of_a_node_that_is_out_of_service_are_lost_at_once(site: KubeSite) -> None:
    job, node = running(site, "out-of-service")
    pids = site.rank_pids(job, 0)
    port = site.cluster.layout.port(NODES.index(node) + 1)
    subprocess.run(["ip", "link", "set", port, "down"], check=True)
    site.cluster.kubectl("taint", "node", node, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
    try:
        second = site.attempt_runs(job, 2)
        assert second.attempts[1].places[0].node != node
        assert f"node {node} is out of service, by its taint" in site.explained(job)
    finally:
        site.cluster.kubectl("taint", "node", node, f"{OUT_OF_SERVICE}-")
        subprocess.run(["ip", "link", "set", port, "up"], check=True)
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 120, "the end of the lost rank"
    )
    ends_well(site, job)
    wait_until(lambda: site.cluster.status()["nodes"][node], 120, "the node is Ready")
