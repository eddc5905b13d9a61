"""Writes to a real API server: what is a success, and what is refused; only `make test-kube` runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import needs
from kube.cluster import Cluster
from kube.writing import Sent, config_map, made, pending_pod, sent
from unidle.kube.access import ClusterAccess
from unidle.kube.kubeconfig import load_access
from unidle.kube.objects import CONFIG_MAPS, PODS, Pod
from unidle.kube.protocol import (
    Bind,
    Create,
    Delete,
    Emit,
    Evict,
    Patch,
    WriteDone,
    WriteRefused,
)
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
OTHER_UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def access(shared_cluster: Cluster) -> ClusterAccess:
    return load_access(shared_cluster.folder / "kubeconfig")


@pytest.fixture
def to(access: ClusterAccess) -> Iterator[Sent]:
    with sent(access) as found:
        yield found


def test_a_create_that_is_sent_twice_makes_one_object(to: Sent, namespace: str) -> None:
    body = config_map(namespace, "a")
    first, second = to.write(Create(CONFIG_MAPS, body), Create(CONFIG_MAPS, dict(body)))
    assert isinstance(first, WriteDone)
    assert isinstance(second, WriteDone)
    assert (first.existing, second.existing) == (False, True)
    assert first.object(CONFIG_MAPS).metadata.uid == second.object(CONFIG_MAPS).metadata.uid


def test_an_object_of_others_is_not_adopted(to: Sent, namespace: str) -> None:
    to.write(Create(CONFIG_MAPS, config_map(namespace, "a", job="other")))
    [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
    assert isinstance(end, WriteRefused)
    assert end.error.reason == "AlreadyExists"
    bare = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace}}
    [end] = to.write(Create(CONFIG_MAPS, bare))  # nothing of it says whose it is
    assert isinstance(end, WriteRefused)


def test_an_object_of_another_owner_is_not_adopted(to: Sent, namespace: str) -> None:
    owner = made(to, CONFIG_MAPS, config_map(namespace, "owner"))

    def owned(uid: str) -> dict[str, Any]:
        body = config_map(namespace, "a")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
        body["metadata"]["ownerReferences"] = [reference]
        return body

    first, second = to.write(
        Create(CONFIG_MAPS, owned(owner.metadata.uid)), Create(CONFIG_MAPS, owned(owner.metadata.uid))
    )
    assert isinstance(first, WriteDone)
    assert isinstance(second, WriteDone)
    [end] = to.write(Create(CONFIG_MAPS, owned(OTHER_UID)))
    assert isinstance(end, WriteRefused)


def test_what_is_refused_is_reported_with_reason_and_field(to: Sent, namespace: str) -> None:
    invalid = config_map(namespace, "Not A Name")
    missing = config_map("no-such-namespace", "a")
    one, other = to.write(Create(CONFIG_MAPS, invalid), Create(CONFIG_MAPS, missing))
    assert isinstance(one, WriteRefused)
    assert one.error.reason == "Invalid"
    assert one.error.causes[0][:2] == ("FieldValueInvalid", "metadata.name")
    assert isinstance(other, WriteRefused)
    assert other.error.reason == "NotFound"


def test_a_quota_that_forbids_is_a_refusal(shared_cluster: Cluster, to: Sent, namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    shared_cluster.kubectl("create", "-f", "-", told=quota)

    def known() -> bool:
        status = shared_cluster.get("resourcequota", "few", "-n", namespace).get("status", {})
        return "pods" in status.get("used", {})

    wait_until(known, what="the quota's use")
    [end] = to.write(Create(PODS, pending_pod(namespace, "a")))
    assert isinstance(end, WriteRefused)
    assert end.error.reason == "Forbidden"
    assert "exceeded quota" in end.error.problem


def test_a_delete_is_for_the_object_of_its_uid_alone(to: Sent, namespace: str) -> None:
    item = made(to, CONFIG_MAPS, config_map(namespace, "a"))
    [end] = to.write(Delete(CONFIG_MAPS, namespace, "a", OTHER_UID))
    assert isinstance(end, WriteDone)
    assert end.existing
    assert to.client.get(CONFIG_MAPS, "a", namespace).metadata.uid == item.metadata.uid
    ends = to.write(
        Delete(CONFIG_MAPS, namespace, "a", item.metadata.uid),
        Delete(CONFIG_MAPS, namespace, "a", item.metadata.uid),
    )
    assert [isinstance(end, WriteDone) and end.existing for end in ends] == [False, True]


@pytest.mark.parametrize("manner", ["merge", "strategic", "json", "apply"])
def test_a_patch_is_for_the_object_of_its_uid_alone(to: Sent, namespace: str, manner: Any) -> None:
    item = made(to, CONFIG_MAPS, config_map(namespace, "a", x="old"))
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "new"}}
    if manner == "apply":
        body["metadata"] = {"name": "a", "namespace": namespace}
    if manner == "json":
        body = {"ops": [{"op": "replace", "path": "/data/x", "value": "new"}]}
    right = Patch(CONFIG_MAPS, namespace, "a", body, item.metadata.uid, manner)
    wrong, end = to.write(replace(right, uid=OTHER_UID), right)
    assert isinstance(wrong, WriteRefused)
    assert wrong.error.reason == "Conflict"
    assert isinstance(end, WriteDone)
    assert json.loads(end.body)["data"] == {"x": "new"}


def test_apply_makes_what_is_not_there_and_takes_no_field_of_others_unforced(
    to: Sent, namespace: str
) -> None:
    def applied(value: str, manager: str, force: bool) -> Patch:
        body = config_map(namespace, "a", x=value)
        return Patch(CONFIG_MAPS, namespace, "a", body, manner="apply", manager=manager, force=force)

    first, unforced, forced = to.write(
        applied("1", "one", False), applied("2", "two", False), applied("3", "two", True)
    )
    assert isinstance(first, WriteDone)
    assert isinstance(unforced, WriteRefused)
    assert unforced.error.reason == "Conflict"
    assert isinstance(forced, WriteDone)


def test_a_pod_is_bound_once(to: Sent, namespace: str) -> None:
    item: Pod = made(to, PODS, pending_pod(namespace, "a"))
    uid = item.metadata.uid
    first, again, elsewhere, other, absent = to.write(
        Bind(namespace, "a", uid, "k1"),
        Bind(namespace, "a", uid, "k1"),
        Bind(namespace, "a", uid, "k2"),
        Bind(namespace, "a", OTHER_UID, "k1"),
        Bind(namespace, "b", uid, "k1"),
    )
    assert isinstance(first, WriteDone)
    assert isinstance(again, WriteDone)
    assert (first.existing, again.existing) == (False, True)
    assert isinstance(elsewhere, WriteRefused)
    assert isinstance(other, WriteRefused)
    assert isinstance(absent, WriteRefused)
    assert absent.error.reason == "NotFound"
    assert to.client.get(PODS, "a", namespace).spec.node_name == "k1"


def test_the_status_of_a_pod_is_patched(to: Sent, namespace: str) -> None:
    item: Pod = made(to, PODS, pending_pod(namespace, "a"))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    patch = Patch(
        PODS,
        namespace,
        "a",
        {"status": {"conditions": [condition]}},
        item.metadata.uid,
        "strategic",
        "status",
    )
    [end] = to.write(patch)
    assert isinstance(end, WriteDone)
    assert [(found.type, found.message) for found in end.object(PODS).status.conditions] == [
        ("PodScheduled", "no GPU")
    ]


def test_an_event_is_made_once_for_each_key(shared_cluster: Cluster, to: Sent, namespace: str) -> None:
    item: Pod = made(to, PODS, pending_pod(namespace, "a"))
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "a", "uid": item.metadata.uid}
    ends = to.write(*(Emit(about, "Waiting", "needs 4 GPUs " * 200, key) for key in ("1", "1", "2")))
    assert all(isinstance(end, WriteDone) for end in ends)
    events = shared_cluster.get("events.events.k8s.io", "-n", namespace)["items"]
    assert [event["reason"] for event in events] == ["Waiting", "Waiting"]
    assert "needs 4 GPUs" in shared_cluster.kubectl("describe", "pod", "-n", namespace, "a")


def test_an_eviction_waits_for_the_disruption_budget(
    shared_cluster: Cluster, to: Sent, namespace: str
) -> None:
    item: Pod = made(to, PODS, pending_pod(namespace, "a"))
    to.write(Bind(namespace, "a", item.metadata.uid, "k1"))
    wait_until(
        lambda: "True" in [c.status for c in to.client.get(PODS, "a", namespace).status.conditions if c.type == "Ready"],
        what="the pod is ready",
    )  # fmt: skip
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "none", "namespace": namespace},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"unidle.dev/job": "train"}}},
    }
    shared_cluster.kubectl("create", "-f", "-", told=budget)
    wait_until(
        lambda: (
            shared_cluster.get("pdb", "none", "-n", namespace).get("status", {}).get("currentHealthy") == 1
        ),
        what="the budget counts the pod",
    )
    [other] = to.write(Evict(namespace, "a", OTHER_UID))
    assert isinstance(other, WriteDone)
    assert other.existing
    to.writer.write(Evict(namespace, "a", item.metadata.uid, 0))
    wait_until(lambda: to.delays() == ["TooManyRequests"], what="the refusal")
    shared_cluster.kubectl("delete", "pdb", "none", "-n", namespace)
    wait_until(lambda: to.poll() is None and not to.writer.waiting, what="the eviction")
    assert shared_cluster.tried("get", "pod", "-n", namespace, "a").returncode != 0
