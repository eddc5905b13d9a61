"""Writes to a real API server, sent again after what happens to requests; only `make test-kube` runs it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import needs
from kube.cluster import Cluster, pod
from kube.proxies import Answer, front, pump, status_answer
from unidle.boot import boottime_ns
from unidle.kube.access import Access
from unidle.kube.client import open_client
from unidle.kube.kubeconfig import load_access
from unidle.kube.objects import CONFIG_MAPS, PODS, Kind, Pod
from unidle.kube.protocol import (
    Bind,
    Create,
    Delayed,
    Delete,
    Dropped,
    Emit,
    Evict,
    Patch,
    Refused,
    Selected,
    Write,
    WriteResult,
    Written,
)
from unidle.kube.writer import THREADS, ApiWriter, open_writer
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
OTHER_UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def access(shared_cluster: Cluster) -> Access:
    return load_access(shared_cluster.folder / "kubeconfig")


class Sent:
    """A writer and all its results."""

    def __init__(self, access: Access) -> None:
        self.client = open_client(access)
        self.writer: ApiWriter = open_writer(self.client, timeout_s=5)
        self.results: list[WriteResult] = []

    def write(self, *writes: Write) -> list[Written | Refused | Dropped]:
        """Send them and wait for their ends, in the order of the writes."""
        first = len(self.results)
        self.writer.write(*writes)
        wait_until(lambda: self.poll() is None and not self.writer.waiting, what="the writes")
        self.poll()
        ends = [result for result in self.results[first:] if not isinstance(result, Delayed)]
        assert len(ends) == len(writes)
        return sorted(ends, key=lambda end: next(n for n, write in enumerate(writes) if write is end.write))

    def poll(self) -> None:
        self.results += self.writer.poll()

    def delays(self) -> list[str]:
        self.poll()
        return [result.error.reason for result in self.results if isinstance(result, Delayed)]


@contextlib.contextmanager
def sent(access: Access) -> Iterator[Sent]:
    found = Sent(access)
    try:
        yield found
    finally:
        found.writer.close()
        found.client.close()


@pytest.fixture
def to(access: Access) -> Iterator[Sent]:
    with sent(access) as found:
        yield found


def config_map(namespace: str, name: str, job: str = "train", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"unidle.dev/job": job}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pending_pod(namespace: str, name: str) -> dict[str, Any]:
    """A pod that no scheduler binds."""
    made = pod(name, "pause", schedulerName="unidle")
    made["metadata"] |= {"namespace": namespace, "labels": {"unidle.dev/job": "train"}}
    return made


def made(to: Sent, kind: Kind[Any], body: dict[str, Any]) -> Any:
    [end] = to.write(Create(kind, body))
    assert isinstance(end, Written), end
    return end.object(kind)


def through(access: Access, port: int, scheme: str = "http") -> Access:
    return replace(access, server=f"{scheme}://127.0.0.1:{port}")


def test_a_create_that_is_sent_twice_makes_one_object(to: Sent, namespace: str) -> None:
    body = config_map(namespace, "a")
    first, second = to.write(Create(CONFIG_MAPS, body), Create(CONFIG_MAPS, dict(body)))
    assert isinstance(first, Written)
    assert isinstance(second, Written)
    assert (first.existing, second.existing) == (False, True)
    assert first.object(CONFIG_MAPS).metadata.uid == second.object(CONFIG_MAPS).metadata.uid


def test_an_object_of_others_is_not_adopted(to: Sent, namespace: str) -> None:
    to.write(Create(CONFIG_MAPS, config_map(namespace, "a", job="other")))
    [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
    assert isinstance(end, Refused)
    assert end.error.reason == "AlreadyExists"
    bare = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace}}
    [end] = to.write(Create(CONFIG_MAPS, bare))  # nothing of it says whose it is
    assert isinstance(end, Refused)


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
    assert isinstance(first, Written)
    assert isinstance(second, Written)
    [end] = to.write(Create(CONFIG_MAPS, owned(OTHER_UID)))
    assert isinstance(end, Refused)


def test_a_create_whose_answer_was_lost_is_a_success(access: Access, namespace: str) -> None:
    lost: list[str] = []

    def loses(method: str, path: str) -> bool:
        if method == "POST" and not lost:
            lost.append(path)
            return True
        return False

    with front(access) as server, sent(through(access, server.port)) as to:
        server.loses = loses
        [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert isinstance(end, Written)
        assert end.existing
        assert lost
        assert to.delays() == ["Unreachable"]


@pytest.mark.parametrize(
    "answer",
    [
        status_answer(429, "TooManyRequests", "later", Retry_After="1"),
        status_answer(500, "InternalError", "webhook"),
        Answer(503, b"no backend"),
        status_answer(409, "Conflict", "Operation cannot be fulfilled on resourcequotas: changed"),
    ],
    ids=["429", "500", "503", "quota-conflict"],
)
def test_what_may_pass_is_tried_again(access: Access, namespace: str, answer: Answer) -> None:
    answers = [answer, answer]
    with front(access) as server, sent(through(access, server.port)) as to:
        server.rule = lambda method, _path: answers.pop(0) if method == "POST" and answers else None
        [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert isinstance(end, Written)
        assert len(to.delays()) == 1  # the same error twice


def test_what_is_refused_is_reported_with_reason_and_field(to: Sent, namespace: str) -> None:
    invalid = config_map(namespace, "Not A Name")
    missing = config_map("no-such-namespace", "a")
    one, other = to.write(Create(CONFIG_MAPS, invalid), Create(CONFIG_MAPS, missing))
    assert isinstance(one, Refused)
    assert one.error.reason == "Invalid"
    assert one.error.causes[0][:2] == ("FieldValueInvalid", "metadata.name")
    assert isinstance(other, Refused)
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
    assert isinstance(end, Refused)
    assert end.error.reason == "Forbidden"
    assert "exceeded quota" in end.error.problem


def test_a_delete_is_for_the_object_of_its_uid_alone(to: Sent, namespace: str) -> None:
    item = made(to, CONFIG_MAPS, config_map(namespace, "a"))
    [end] = to.write(Delete(CONFIG_MAPS, namespace, "a", OTHER_UID))
    assert isinstance(end, Written)
    assert end.existing
    assert to.client.get(CONFIG_MAPS, "a", namespace).metadata.uid == item.metadata.uid
    ends = to.write(
        Delete(CONFIG_MAPS, namespace, "a", item.metadata.uid),
        Delete(CONFIG_MAPS, namespace, "a", item.metadata.uid),
    )
    assert [isinstance(end, Written) and end.existing for end in ends] == [False, True]


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
    assert isinstance(wrong, Refused)
    assert wrong.error.reason == "Conflict"
    assert isinstance(end, Written)
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
    assert isinstance(first, Written)
    assert isinstance(unforced, Refused)
    assert unforced.error.reason == "Conflict"
    assert isinstance(forced, Written)


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
    assert isinstance(first, Written)
    assert isinstance(again, Written)
    assert (first.existing, again.existing) == (False, True)
    assert isinstance(elsewhere, Refused)
    assert isinstance(other, Refused)
    assert isinstance(absent, Refused)
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
    assert isinstance(end, Written)
    assert [(found.type, found.message) for found in end.object(PODS).status.conditions] == [
        ("PodScheduled", "no GPU")
    ]


def test_an_event_is_made_once_for_each_key(shared_cluster: Cluster, to: Sent, namespace: str) -> None:
    item: Pod = made(to, PODS, pending_pod(namespace, "a"))
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "a", "uid": item.metadata.uid}
    ends = to.write(*(Emit(about, "Waiting", "needs 4 GPUs " * 200, key) for key in ("1", "1", "2")))
    assert all(isinstance(end, Written) for end in ends)
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
    assert isinstance(other, Written)
    assert other.existing
    to.writer.write(Evict(namespace, "a", item.metadata.uid, 0))
    wait_until(lambda: to.delays() == ["TooManyRequests"], what="the refusal")
    shared_cluster.kubectl("delete", "pdb", "none", "-n", namespace)
    wait_until(lambda: to.poll() is None and not to.writer.waiting, what="the eviction")
    assert shared_cluster.tried("get", "pod", "-n", namespace, "a").returncode != 0


def test_a_write_of_another_object_does_not_wait_for_a_budget(access: Access, namespace: str) -> None:
    held = {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods"}], "retryAfterSeconds": 3600},
    }  # fmt: skip
    with front(access) as server, sent(through(access, server.port)) as to:
        server.rule = lambda _method, path: (
            Answer(429, json.dumps(held).encode()) if path.endswith("/eviction") else None
        )
        item: Pod = made(to, PODS, pending_pod(namespace, "a"))
        to.writer.write(Evict(namespace, "a", item.metadata.uid))
        wait_until(lambda: to.delays() == ["TooManyRequests"], what="the refusal")
        to.writer.write(Create(CONFIG_MAPS, config_map(namespace, "b")))
        wait_until(lambda: to.poll() is None and to.writer.waiting == 1, what="the other write")
        assert to.client.get(CONFIG_MAPS, "b", namespace).metadata.name == "b"


def test_writes_to_one_object_keep_their_order_while_requests_fail(access: Access, namespace: str) -> None:
    count = 0

    def every_third(method: str, _path: str) -> Answer | None:
        nonlocal count
        count += method == "PATCH"
        return (
            status_answer(500, "InternalError", "now and then")
            if method == "PATCH" and count % 3 == 0
            else None
        )

    with front(access) as server, sent(through(access, server.port)) as to:
        server.rule = every_third
        made(to, CONFIG_MAPS, config_map(namespace, "a"))
        patches = [Patch(CONFIG_MAPS, namespace, "a", {"data": {"n": str(n)}}) for n in range(20)]
        ends = to.write(*patches)
        assert [json.loads(end.body)["data"]["n"] for end in ends if isinstance(end, Written)] == [
            str(n) for n in range(20)
        ]


def test_a_connection_that_is_cut_again_and_again_makes_each_object_once(
    shared_cluster: Cluster, access: Access, namespace: str
) -> None:
    with pump(access) as between, sent(through(access, between.port, "https")) as to:
        to.writer.write(*(Create(CONFIG_MAPS, config_map(namespace, f"c{n}")) for n in range(60)))

        def cut() -> bool:
            between.cut()
            to.poll()
            return len(to.results) > 20

        wait_until(cut, what="some writes")
        wait_until(lambda: to.poll() is None and not to.writer.waiting, what="all writes")
        to.poll()
        assert sum(isinstance(result, Written) for result in to.results) == 60
    found = shared_cluster.get("configmap", "-n", namespace, "-l", "unidle.dev/job=train")["items"]
    assert len(found) == 60


def test_a_fenced_writer_writes_nothing_more(access: Access, namespace: str) -> None:
    with front(access) as server, sent(through(access, server.port)) as to:
        busy = status_answer(503, "ServiceUnavailable", "busy")
        server.rule = lambda method, _path: busy if method == "POST" else None
        writes = [Create(CONFIG_MAPS, config_map(namespace, f"c{n}")) for n in range(30)]
        to.writer.write(*writes)
        wait_until(to.delays, what="a try")
        to.writer.fence()
        asked = len(server.requests)
        wait_until(lambda: not to.writer.waiting, what="the end")
        to.poll()
        ends = [result for result in to.results if not isinstance(result, Delayed)]
        assert [end for end in ends if not isinstance(end, Dropped)] == []
        assert {id(end.write) for end in ends} == {id(write) for write in writes}
        to.writer.write(writes[0])
        assert to.writer.poll() == [Dropped(writes[0])]
        assert len(server.requests) <= asked + THREADS  # those that were on their way
        assert to.client.list_all(CONFIG_MAPS, _ours(namespace)).items == []


def test_without_a_lease_writes_wait_for_the_next_one(access: Access, namespace: str) -> None:
    with front(access) as server, sent(through(access, server.port)) as to:
        to.writer.allow_until(boottime_ns() - 1)
        to.writer.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert to.client.list_all(CONFIG_MAPS, _ours(namespace)).items == []
        assert not [method for method, _ in server.requests if method == "POST"]
        assert to.writer.waiting == 1
        to.writer.allow_until(boottime_ns() + 3600 * 10**9)
        wait_until(lambda: not to.writer.waiting, what="the write")
        [end] = to.writer.poll()
        assert isinstance(end, Written)


def test_close_lets_what_is_queued_end(access: Access, namespace: str) -> None:
    to = Sent(access)
    to.writer.write(*(Create(CONFIG_MAPS, config_map(namespace, f"c{n}")) for n in range(50)))
    to.writer.close(drain_s=60)
    assert all(isinstance(result, Written) for result in to.writer.poll())
    assert len(to.client.list_all(CONFIG_MAPS, _ours(namespace)).items) == 50
    to.client.close()


def _ours(namespace: str) -> Selected:
    return Selected(namespace, "unidle.dev/job")
