"""Writes to a real API server while requests fail, and without a lease; only `make test-kube` runs it."""

from __future__ import annotations

import json

import pytest

import needs
from kube.cluster import Cluster
from kube.proxies import Answer, front, pump, status_answer
from kube.writing import Sent, config_map, made, ours, pending_pod, sent, through
from unidle.boot import boottime_ns
from unidle.kube.access import ClusterAccess
from unidle.kube.kubeconfig import load_access
from unidle.kube.objects import CONFIG_MAPS, PODS, Pod
from unidle.kube.protocol import (
    Create,
    Delayed,
    Dropped,
    Evict,
    Patch,
    WriteDone,
)
from unidle.kube.writer import THREADS
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
OTHER_UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def access(shared_cluster: Cluster) -> ClusterAccess:
    return load_access(shared_cluster.folder / "kubeconfig")


def test_a_create_whose_answer_was_lost_is_a_success(access: ClusterAccess, namespace: str) -> None:
    lost: list[str] = []

    def loses(method: str, path: str) -> bool:
        if method == "POST" and not lost:
            lost.append(path)
            return True
        return False

    with front(access) as server, sent(through(access, server.port)) as to:
        server.loses = loses
        [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert isinstance(end, WriteDone)
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
def test_what_may_pass_is_tried_again(access: ClusterAccess, namespace: str, answer: Answer) -> None:
    answers = [answer, answer]
    with front(access) as server, sent(through(access, server.port)) as to:
        server.rule = lambda method, _path: answers.pop(0) if method == "POST" and answers else None
        [end] = to.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert isinstance(end, WriteDone)
        assert len(to.delays()) == 1  # the same error twice


def test_a_write_of_another_object_does_not_wait_for_a_budget(access: ClusterAccess, namespace: str) -> None:
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


def test_writes_to_one_object_keep_their_order_while_requests_fail(
    access: ClusterAccess, namespace: str
) -> None:
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
        assert [json.loads(end.body)["data"]["n"] for end in ends if isinstance(end, WriteDone)] == [
            str(n) for n in range(20)
        ]


def test_a_connection_that_is_cut_again_and_again_makes_each_object_once(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
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
        assert sum(isinstance(result, WriteDone) for result in to.results) == 60
    found = shared_cluster.get("configmap", "-n", namespace, "-l", "unidle.dev/job=train")["items"]
    assert len(found) == 60


def test_a_fenced_writer_writes_nothing_more(access: ClusterAccess, namespace: str) -> None:
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
        assert to.client.list_all(CONFIG_MAPS, ours(namespace)).items == []


def test_without_a_lease_writes_wait_for_the_next_one(access: ClusterAccess, namespace: str) -> None:
    with front(access) as server, sent(through(access, server.port)) as to:
        to.writer.allow_until(boottime_ns() - 1)
        to.writer.write(Create(CONFIG_MAPS, config_map(namespace, "a")))
        assert to.client.list_all(CONFIG_MAPS, ours(namespace)).items == []
        assert not [method for method, _ in server.requests if method == "POST"]
        assert to.writer.waiting == 1
        to.writer.allow_until(boottime_ns() + 3600 * 10**9)
        wait_until(lambda: not to.writer.waiting, what="the write")
        [end] = to.writer.poll()
        assert isinstance(end, WriteDone)


def test_close_lets_what_is_queued_end(access: ClusterAccess, namespace: str) -> None:
    to = Sent(access)
    to.writer.write(*(Create(CONFIG_MAPS, config_map(namespace, f"c{n}")) for n in range(50)))
    to.writer.close(drain_s=60)
    assert all(isinstance(result, WriteDone) for result in to.writer.poll())
    assert len(to.client.list_all(CONFIG_MAPS, ours(namespace)).items) == 50
    to.client.close()
