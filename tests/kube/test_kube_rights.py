"""The rights of the controller: what the chart grants is what it asks for, by the audit log of the API server, and no more.

Nodes are marked under these rights, too; where one is taken away, the controller says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from kube.cluster import pod
from kube.in_cluster import Release
from kube.test_kube_commands import job_file, stop
from kube.test_kube_objects import apply, job_object, shows
from unidle.engine.kube.node_marks import HEALTHY
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]
Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


def role(release: Release, kind: str) -> dict[str, Any]:
    """One of the two roles of the controller."""
    if kind == "clusterrole":
        return dict(release.cluster.get(kind, f"{release.namespace}-{release.name}-controller"))
    return dict(release.cluster.get(kind, f"{release.name}-controller", "-n", release.namespace))


def granted(release: Release, kind: str) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role(release, kind)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests(release: Release) -> list[tuple[Right, bool, str]]:
    """Of the controller: the right that each needed, whether it had it, and the role by which."""
    account = f"system:serviceaccount:{release.namespace}:{release.name}-controller"
    found = []
    log: Path = release.cluster.layout.audit
    for line in log.read_bytes()[release.audit_from :].decode().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # being written
        event = json.loads(line)
        if event["user"]["username"] != account or "objectRef" not in event:
            continue
        about, notes = event["objectRef"], event.get("annotations", {})
        resource = "/".join(part for part in (about["resource"], about.get("subresource", "")) if part)
        allowed = notes.get("authorization.k8s.io/decision") == "allow"
        right = (about.get("apiGroup", ""), resource, event["verb"])
        found.append((right, allowed, notes.get("authorization.k8s.io/reason", "")))
    return found


def used(release: Release, kind: str) -> set[Right]:
    """Rights of a role by which a request was allowed."""
    name = role(release, kind)["metadata"]["name"]
    words = {"clusterrole": f'of ClusterRole "{name}"', "role": f'of Role "{name}"'}
    return {right for right, allowed, reason in requests(release) if allowed and words[kind] in reason}


def free_node(release: Release) -> str:
    """A real node without the controller."""
    found = release.cluster.get(
        "pods", "-n", release.namespace, "-l", "app.kubernetes.io/component=controller"
    )
    [own] = {one["spec"]["nodeName"] for one in found["items"]}
    return "n2" if own == "n1" else "n1"


@pytest.fixture
def other(release: Release) -> Iterator[str]:
    """The node of a pod of others, which is made again elsewhere."""
    node, labels = free_node(release), {"app": "of-others"}
    spec = pod("x", "pause")["spec"] | {"restartPolicy": "Always"}
    near = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}}]}  # fmt: skip
    spec["affinity"] = {"nodeAffinity": near}
    template = {"metadata": {"labels": labels}, "spec": spec}
    meta = {"name": "of-others", "namespace": "default"}
    chosen = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    apply(release, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": chosen})
    wait_until(lambda: where(release) == {node}, 120, "the pod of others")
    yield node
    release.tried("guard", "return", node, "--unproved")  # which the test did, unless it failed
    release.cluster.kubectl("delete", "deployment/of-others")


def where(release: Release) -> set[str]:
    found = release.cluster.get("pods", "-l", "app=of-others", "--field-selector=status.phase=Running")[
        "items"
    ]
    return {one["spec"]["nodeName"] for one in found if "deletionTimestamp" not in one["metadata"]}


def healthy(release: Release, node: str) -> str:
    found = release.cluster.get("node", node)["status"]["conditions"]
    return next((str(one["status"]) for one in found if one["type"] == HEALTHY), "")


def declare(release: Release) -> None:
    """Parts of the fleet as objects, until the controller has written the status of each."""
    parts: dict[str, dict[str, Any]] = {
        "Queue": {"weight": 2},
        "Topology": {"topology": {"labels": ["zone"]}},
        "FleetPolicy": {"prices": {"cpu": 1.5}},
    }
    for kind, spec in parts.items():
        apply(
            release,
            {"apiVersion": "unidle.dev/v1alpha1", "kind": kind, "metadata": {"name": "rights"}, "spec": spec},
        )
    for kind in parts:
        accepted = ("wait", f"{kind.lower()}.unidle.dev/rights", "--for=condition=Accepted", "--timeout=60s")
        release.cluster.kubectl(*accepted)
        release.cluster.kubectl("delete", f"{kind.lower()}.unidle.dev/rights")


def test_each_right_of_the_controller_is_used_and_none_is_missing(release: Release, other: str) -> None:
    job = release.json("submit", job_file(release, "rights"))["job"]
    release.becomes(job, "running")
    apply(release, job_object(release, "rights-object", ranks=1))
    shows(release, "rights-object", state="running")
    release.run("guard", "drain", other)
    wait_until(lambda: where(release) and other not in where(release), 120, "the eviction")
    wait_until(lambda: healthy(release, other) == "False", 60, "the condition")
    assert release.cluster.get("node", other)["spec"].get("unschedulable")
    release.run("guard", "return", other, "--unproved")
    wait_until(lambda: healthy(release, other) == "True", 60, "the condition of a node in use")
    stop(release, "rights")
    release.becomes(job, "succeeded", "cancelled")
    release.cluster.kubectl("delete", "jobs.unidle.dev", "rights-object", "-n", release.namespace)
    declare(release)
    for kind in ("clusterrole", "role"):
        wait_until(
            lambda kind=kind: granted(release, kind) <= used(release, kind),  # type: ignore[misc]
            60,
            f"what no request used of {kind}: {granted(release, kind) - used(release, kind)}",
        )
    assert {right for right, allowed, _ in requests(release) if not allowed} == set()


def test_a_right_that_is_missing_is_said_once_and_used_once_it_is_there(release: Release) -> None:
    node, name = free_node(release), role(release, "clusterrole")["metadata"]["name"]
    rules = role(release, "clusterrole")["rules"]
    fewer = [
        rule | {"resources": [one for one in rule["resources"] if one != "nodes/status"]} for rule in rules
    ]
    cluster = release.cluster
    try:
        cluster.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": fewer}))
        may = (
            "auth",
            "can-i",
            "patch",
            "nodes",
            "--subresource=status",
            f"--as=system:serviceaccount:{release.namespace}:{release.name}-controller",
        )
        wait_until(lambda: cluster.tried(*may).stdout.strip() == "no", 60, "the right to go")
        release.run("guard", "cordon", node)
        wait_until(
            lambda: 'grant the controller "patch nodes/status"' in release.log(), 60, "a line in its log"
        )
    finally:
        cluster.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": rules}))
    try:
        wait_until(lambda: healthy(release, node) == "False", 90, "the condition, once it may be written")
        assert release.log().count('grant the controller "patch nodes/status"') == 1
    finally:
        release.run("guard", "uncordon", node)
    wait_until(lambda: healthy(release, node) == "True", 60, "the node to be in use again")
