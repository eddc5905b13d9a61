"""Nodes that unidle takes out of use, as others see them at the API server: conditions, taints, cordons, evictions.

All tests of this file use one controller, in this order; only `make test-kube` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import Cluster, pod
from kube.kube_site import KubeSite
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
HEALTHY, UNFIT = "unidle.dev/Healthy", "unidle.dev/unfit"


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    found = KubeSite(own_cluster, tmp_path_factory.mktemp("site"))
    try:
        found.serve()
        yield found
    finally:
        found.close()


@pytest.fixture
def others(site: KubeSite) -> Iterator[str]:
    """Two pods of others on n1, of which a PodDisruptionBudget keeps one; and one that nothing makes again."""
    labels = {"app": "others"}
    whole = pod("x", "pause")["spec"] | {
        "restartPolicy": "Always",
        "nodeSelector": {"kubernetes.io/hostname": "n1"},
    }
    template = {"metadata": {"labels": labels}, "spec": whole}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "others"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "others"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }  # fmt: skip
    for told in (deployment, budget, pod("alone", "pause", node="n1")):
        site.cluster.kubectl("create", "-f", "-", told=told)
    wait_until(lambda: len(ready(site.cluster)) == 2, 120, "two pods of others")
    wait_until(
        lambda: site.cluster.get("pdb", "others")["status"].get("disruptionsAllowed") == 1, 60, "the budget"
    )
    yield "n1"
    site.cluster.tried("delete", "deployment/others", "pdb/others", "pod/alone", "--wait=false")


def ready(cluster: Cluster) -> set[str]:
    """Uids of the pods of others that are ready and stay."""
    found = cluster.get("pods", "-l", "app=others")["items"]
    return {
        one["metadata"]["uid"]
        for one in found
        if "deletionTimestamp" not in one["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", ()))
    }


def shown(site: KubeSite, node: str) -> dict[str, Any]:
    """How a node is marked."""
    found = site.cluster.get("node", node)
    condition = next((c for c in found["status"]["conditions"] if c["type"] == HEALTHY), {})
    taints = {t["key"]: t.get("value", "") for t in found["spec"].get("taints", ())}
    return {
        "healthy": condition.get("status"),
        "reason": condition.get("reason"),
        "message": condition.get("message", ""),
        "cordoned": bool(found["spec"].get("unschedulable")),
        "unfit": taints.get(UNFIT),
    }


def guard(site: KubeSite, *words: str) -> None:
    done = unidle("guard", *words, "--store", site.store)
    assert done.returncode == 0, done.stderr


def becomes(site: KubeSite, node: str, **wanted: object) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = shown(site, node)
        return found if {name: found[name] for name in wanted} == wanted else None

    found = wait_until(look, 60, f"{node} to become {wanted}; {site.errors()}")
    assert found is not None
    return found


def test_a_drained_node_is_cordoned_and_pods_of_others_leave_as_their_budget_allows(
    site: KubeSite, others: str
) -> None:
    before = ready(site.cluster)
    guard(site, "drain", others)
    found = becomes(site, others, healthy="False", cordoned=True, unfit=None)
    assert "drained" in found["message"]
    wait_until(lambda: len(ready(site.cluster)) == 1, 120, "one eviction")
    [kept] = ready(site.cluster)
    assert kept in before
    assert site.cluster.phase("alone") == "Running"  # nothing would make it again
    site.cluster.kubectl("delete", "pdb", "others")
    wait_until(lambda: not ready(site.cluster), 120, "the other eviction, once there is no budget")
    guard(site, "return", others, "--unproved")
    becomes(site, others, healthy="True", cordoned=False)
    wait_until(lambda: len(ready(site.cluster)) == 2, 120, "pods of others to come back")


def test_a_fault_is_a_taint_which_comes_back_if_others_remove_it(site: KubeSite) -> None:
    guard(site, "report", "n2", "--action", "drain", "--because", "a fan stands still")
    found = becomes(site, "n2", healthy="False", cordoned=False)
    assert found["unfit"]
    assert "a fan stands still" in found["message"]
    site.cluster.kubectl("taint", "node", "n2", f"{UNFIT}-", "mine=1:NoSchedule")
    wait_until(lambda: shown(site, "n2")["unfit"], 60, "the taint again")
    node = site.cluster.get("node", "n2")
    assert "mine" in {taint["key"] for taint in node["spec"]["taints"]}
    view = site.view()
    assert [n.taints for n in view.fleet.nodes if n.id == "n2"] == [
        ("mine",)
    ]  # its own taint is not read back
    site.cluster.kubectl("taint", "node", "n2", "mine-")


def test_the_next_controller_keeps_marks_and_removes_them(site: KubeSite) -> None:
    site.kill_controller()
    site.cluster.kubectl("taint", "node", "n2", f"{UNFIT}-")
    site.serve()
    wait_until(lambda: shown(site, "n2")["unfit"], 60, "the taint of the next controller")
    guard(site, "return", "n2", "--unproved")
    becomes(site, "n2", healthy="True", unfit=None)


def test_a_cordon_of_others_stays_theirs(site: KubeSite) -> None:
    guard(site, "cordon", "n1")
    becomes(site, "n1", cordoned=True, reason="Cordoned")
    guard(site, "uncordon", "n1")
    becomes(site, "n1", cordoned=False, healthy="True")
    site.cluster.kubectl("cordon", "n2")
    guard(site, "cordon", "n2")
    becomes(site, "n2", cordoned=True, healthy="False")
    guard(site, "uncordon", "n2")
    becomes(site, "n2", cordoned=True, healthy="True")
    site.cluster.kubectl("uncordon", "n2")
    assert json.dumps(shown(site, "n2")["cordoned"]) == "false"
