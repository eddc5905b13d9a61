"""The ledger of a real cluster: each nanosecond of each device has one cause, also under pods that unidle did not start."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import Cluster, pod
from kube.kube_site import KubeSite
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]

GPUS = 4
RESOURCE = "nvidia.com/gpu"
NEVER_PULLED = "never-pulled:1"


@pytest.fixture
def site(own_cluster: Cluster, tmp_path: Path) -> Iterator[KubeSite]:
    """Node n2 has four GPUs by the word of its status."""
    gpus = {"status": {"capacity": {RESOURCE: str(GPUS)}}}
    patch = ("patch", "node", "n2", "--subresource=status", "--type=merge", "-p")
    own_cluster.kubectl(*patch, json.dumps(gpus))
    wait_until(
        lambda: own_cluster.get("node", "n2")["status"]["allocatable"].get(RESOURCE) == str(GPUS), 60, "GPUs"
    )
    found = KubeSite(own_cluster, tmp_path)
    found.serve("--cpu-devices", 1)
    yield found
    found.close()
    own_cluster.kubectl("delete", "pods", "-l", "of=others", "--grace-period=0", "--force", "--wait=true")
    own_cluster.kubectl("uncordon", "n2")
    own_cluster.kubectl(*patch, json.dumps({"status": {"capacity": {RESOURCE: None}}}))


def other(site: KubeSite, name: str, gpus: int, image: str = "") -> None:
    """A pod of others, bound to n2."""
    asks = {"resources": {"limits": {RESOURCE: str(gpus)}}, **({"image": image} if image else {})}
    made = pod(name, "pause", container=asks, nodeSelector={"kubernetes.io/hostname": "n2"})
    made["metadata"]["labels"] = {"of": "others"}
    site.cluster.kubectl("create", "-f", "-", told=made)


def others(site: KubeSite) -> dict[str, Any]:
    done = unidle("list", "--others", "--store", site.store, "--json")
    assert done.returncode == 0, done.stderr
    return {line["pod"]: line for line in json.loads(done.stdout)}


def rows(site: KubeSite) -> list[dict[str, Any]]:
    done = unidle("ledger", "--store", site.store, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def adds_up(site: KubeSite) -> None:
    done = unidle("ledger", "--store", site.store, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def leaves(site: KubeSite, **where: str) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows(site):
        if all(row[key] == value for key, value in where.items()):
            found[row["leaf"]] += row["end_ns"] - row["start_ns"]
    return found


def test_pods_of_others_are_in_the_ledger_by_phase_and_outlive_pod_and_controller(site: KubeSite) -> None:
    other(site, "stuck", 1, NEVER_PULLED)
    other(site, "runs", 2)
    wait_until(
        lambda: (
            {name: one["phase"] for name, one in others(site).items()}
            == {"default/stuck": "starting", "default/runs": "running"}
        ),
        90,
        f"both pods of others; {site.errors()}",
    )
    has = others(site)["default/runs"]["devices"]
    assert len(has) == 2
    site.cluster.kubectl("delete", "pod", "stuck", "--grace-period=0", "--force")
    wait_until(lambda: others(site).keys() == {"default/runs"}, 60, "one pod of others")
    assert others(site)["default/runs"]["devices"] == has  # it keeps its devices
    site.kill_controller()
    site.cluster.kubectl("delete", "pod", "runs", "--grace-period=0", "--force")
    site.serve("--cpu-devices", 1)
    wait_until(lambda: not others(site), 60, "no pod of others")
    adds_up(site)
    assert leaves(site, job="pod default/stuck").keys() <= {"others_starting", "others_ending"}
    ran = leaves(site, job="pod default/runs")
    assert ran["others_running"] > 0
    assert ran.keys() <= {"others_starting", "others_running", "others_ending"}
    by_user = json.loads(unidle("ledger", "--store", site.store, "--by", "user,group", "--json").stdout)
    assert any(group["user"] == "default" and group["group"] == "down" for group in by_user["groups"])


def test_a_cordoned_node_is_drained_and_not_free(site: KubeSite) -> None:
    site.cluster.kubectl("cordon", "n2")
    wait_until(lambda: leaves(site, device="n2/0")["drained"] > 0, 60, f"drained; {site.errors()}")
    site.cluster.kubectl("uncordon", "n2")
    wait_until(lambda: rows(site) and last_leaf(site, "n2/0") == "no_demand", 60, "free again")
    adds_up(site)


def last_leaf(site: KubeSite, device: str) -> str:
    return str(
        max((row for row in rows(site) if row["device"] == device), key=lambda row: row["end_ns"])["leaf"]
    )


def test_the_start_of_a_job_is_in_the_ledger_by_the_phase_of_its_pod(site: KubeSite) -> None:
    job = site.submit("phases", ["sh", "-c", "sleep 600"], 1, devices_per_rank=1, device="cpu")
    site.attempt_runs(job)
    site.cancel(job)
    adds_up(site)
    found = leaves(site, job=job)
    assert {"pod_binding", "volume_mount", "container_start"} <= found.keys(), found
    whole = sum(
        row["end_ns"] - row["start_ns"] for row in rows(site) if row["job"] == job and row["attempt"] == 1
    )
    attempt = site.job(job).attempts[0]
    assert attempt.ended_ns is not None
    assert whole == attempt.ended_ns - attempt.placed_ns


def test_pods_and_nodes_that_are_there_at_the_start_are_seen(site: KubeSite) -> None:
    other(site, "first", 1)
    site.close()
    wait_until(lambda: site.cluster.phase("first") == "Running", 90, "the pod of others runs")
    (site.place / "kube.db").rename(site.place / "former.db")
    site.serve("--cpu-devices", 1)
    wait_until(lambda: others(site).keys() == {"default/first"}, 60, f"the pod; {site.errors()}")
