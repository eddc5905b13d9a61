"""Following objects of a real API server through what happens to connections and servers; only `make test-kube` runs it."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import needs
from kube.cluster import Cluster, kube
from kube.proxies import Answer, front, pump, status_answer
from unidle.kube.access import ClusterAccess
from unidle.kube.client import ApiClient, open_client
from unidle.kube.kubeconfig import load_access
from unidle.kube.objects import CONFIG_MAPS, NODES, AnyObject
from unidle.kube.protocol import Behind, Put, Selected, Synced, Vanished, WatchEvent
from unidle.kube.reflector import Reflector, WatchTimes, follow
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
SHORT = WatchTimes(2, 3, 1.0)


@pytest.fixture
def access(shared_cluster: Cluster) -> ClusterAccess:
    return load_access(shared_cluster.folder / "kubeconfig")


class Seen:
    """A watch of the ConfigMaps of one namespace, and all that was polled of it."""

    def __init__(self, client: ApiClient, namespace: str, times: WatchTimes | None = None) -> None:
        self.watch: Reflector[AnyObject] = follow(
            client, CONFIG_MAPS, Selected(namespace, labels="watched"), times
        )
        self.events: list[WatchEvent[AnyObject]] = []
        self.close = self.watch.close

    def poll(self) -> None:
        if select.select([self.watch.wake_fd], [], [], 0)[0]:
            self.events += self.watch.poll()

    @property
    def names(self) -> set[str]:
        self.poll()
        return {item.metadata.name for item in self.watch.objects.values()}

    def count(self, kind: type[object]) -> int:
        self.poll()
        return sum(isinstance(event, kind) for event in self.events)

    def told(self) -> list[str]:
        """``+name`` and ``-name`` in order."""
        self.poll()
        return [
            f"{'+' if isinstance(event, Put) else '-'}{event.object.metadata.name}"
            for event in self.events
            if isinstance(event, Put | Vanished)
        ]


@contextlib.contextmanager
def seen(access: ClusterAccess, namespace: str, times: WatchTimes | None = None) -> Iterator[Seen]:
    client = open_client(access, timeout_s=5)
    found = Seen(client, namespace, times)
    try:
        wait_until(lambda: found.count(Synced), what="the first list")
        yield found
    finally:
        found.close()
        client.close()


def make(cluster: Cluster, namespace: str, *names: str, **data: str) -> None:
    items = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, "labels": {"watched": "yes"}},
            "data": data,
        }
        for name in names
    ]
    told: dict[str, Any] = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.kubectl("apply", "-f", "-", told=told)


def remove(cluster: Cluster, namespace: str, *names: str) -> None:
    cluster.kubectl("delete", "configmap", "-n", namespace, *names)


def through(access: ClusterAccess, port: int, scheme: str = "https") -> ClusterAccess:
    return replace(access, server=f"{scheme}://127.0.0.1:{port}")


def test_what_is_made_changed_and_deleted_is_reported_in_order(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    make(shared_cluster, namespace, "before")
    with seen(access, namespace) as found:
        assert found.told() == ["+before"]
        assert found.count(Synced) == 1
        make(shared_cluster, namespace, "a")
        make(shared_cluster, namespace, "a", x="changed")
        remove(shared_cluster, namespace, "before")
        wait_until(lambda: found.names == {"a"}, what="the changes")
        wait_until(lambda: found.told() == ["+before", "+a", "+a", "-before"], what="all events")
        changed = found.events[3]
        assert isinstance(changed, Put)
        assert changed.old is not None
        assert changed.old.metadata.uid == changed.object.metadata.uid
        assert changed.old.metadata.resource_version != changed.object.metadata.resource_version


def test_an_object_that_is_selected_no_more_is_gone(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    make(shared_cluster, namespace, "a", "b")
    with seen(access, namespace) as found:
        shared_cluster.kubectl("label", "configmap", "-n", namespace, "a", "watched-")
        wait_until(lambda: found.names == {"b"}, what="the end of a")
        assert found.told() == ["+a", "+b", "-a"]


def test_a_watch_that_ends_by_itself_is_resumed_without_a_list(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    with front(access) as server, seen(through(access, server.port, "http"), namespace, SHORT) as found:

        def watches() -> int:
            return sum("watch=1" in path for _, path in server.requests)

        wait_until(lambda: watches() >= 3, what="the third watch")
        make(shared_cluster, namespace, "a")
        wait_until(lambda: found.names == {"a"}, what="the new object")
        assert found.count(Synced) == 1
        assert found.count(Behind) == 0
        assert sum("limit=" in path for _, path in server.requests) == 1


def test_connections_that_are_cut_lose_nothing(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    with pump(access) as between, seen(through(access, between.port), namespace) as found:
        for number in range(5):
            between.refuses = True
            between.cut()
            make(shared_cluster, namespace, f"a{number}")
            between.refuses = False
        wait_until(lambda: len(found.names) == 5, what="all objects")
        assert found.told() == [f"+a{number}" for number in range(5)]
        assert found.count(Synced) == 1  # each time it resumed


def test_a_server_that_cannot_be_reached_is_reported_until_it_can(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    with pump(access) as between, seen(through(access, between.port), namespace) as found:
        between.refuses = True
        between.cut()
        wait_until(lambda: found.count(Behind), what="the report")
        behind = next(event for event in found.events if isinstance(event, Behind))
        assert behind.error is not None
        assert behind.error.reason == "Unreachable"
        between.refuses = False
        wait_until(lambda: found.count(Behind) == 2, what="its end")
        last = [event for event in found.events if isinstance(event, Behind)][-1]
        assert last == Behind(None, behind.since_ns)


def test_a_connection_on_which_nothing_comes_is_given_up(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    with pump(access) as between, seen(through(access, between.port), namespace, SHORT) as found:
        between.stall()  # half open: neither end is closed
        make(shared_cluster, namespace, "a")
        accepted = between.accepted
        wait_until(lambda: between.accepted > accepted, what="another connection")
        between.resume()
        wait_until(lambda: found.names == {"a"}, what="the object")


def test_after_410_what_was_missed_becomes_events(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    """A restarted API server has none of the versions before: the real 410."""
    make(shared_cluster, namespace, "stays", "goes", "again", "changes")
    with pump(access) as between, seen(through(access, between.port), namespace) as found:
        between.refuses = True
        between.cut()
        remove(shared_cluster, namespace, "goes", "again")
        make(shared_cluster, namespace, "changes", x="y")
        make(shared_cluster, namespace, "new", "again")
        done = kube("restart", "kube-apiserver", "--dir", shared_cluster.folder)
        assert done.returncode == 0, done.stderr
        wait_until(
            lambda: shared_cluster.tried("get", "--raw", "/readyz").returncode == 0, 120, "the API server"
        )
        make(shared_cluster, namespace, "unrelated")  # past the versions that the server begins with
        found.poll()
        found.events.clear()
        between.refuses = False
        wait_until(lambda: found.count(Synced), 120, "the second list")
        told = found.told()
        assert sorted(told[:2]) == ["-again", "-goes"]  # before another one of their name is put
        assert sorted(told[2:]) == ["+again", "+changes", "+new", "+unrelated"]
        assert found.names == {"stays", "again", "changes", "new", "unrelated"}
        wait_until(lambda: shared_cluster.status()["whole"], 120, "the cluster is whole")


def test_an_error_in_a_watch_is_a_reason_to_list(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    make(shared_cluster, namespace, "a")
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
    answers = [Answer(200, gone), status_answer(410, "Expired", "too old")]
    with front(access) as server:

        def rule(_method: str, path: str) -> Answer | None:
            return answers.pop(0) if "watch=1" in path and answers else None

        server.rule = rule
        with seen(through(access, server.port, "http"), namespace) as found:
            wait_until(lambda: found.count(Synced) == 3, what="the third list")
            assert found.told() == ["+a"]
            make(shared_cluster, namespace, "b")
            wait_until(lambda: found.names == {"a", "b"}, what="the watch after it")


def test_a_busy_server_is_given_the_time_that_it_asks_for(
    shared_cluster: Cluster, access: ClusterAccess, namespace: str
) -> None:
    make(shared_cluster, namespace, "a")
    answers = [
        status_answer(429, "TooManyRequests", "later", Retry_After="1"),
        status_answer(500, "InternalError", "broken"),
        Answer(502, b"<html>Bad Gateway</html>"),
    ]
    with front(access) as server:
        server.rule = lambda _method, _path: answers.pop(0) if answers else None
        with seen(through(access, server.port, "http"), namespace) as found:
            assert found.names == {"a"}
            behind = [event for event in found.events if isinstance(event, Behind)]
            assert [event.error is None for event in behind] == [False, True]
            assert behind[0].error is not None
            assert behind[0].error.retry_after_s == 1.0


def test_a_list_comes_in_pages(shared_cluster: Cluster, access: ClusterAccess, namespace: str) -> None:
    names = [f"c{number:04}" for number in range(620)]
    make(shared_cluster, namespace, *names)
    client = open_client(access)
    with contextlib.closing(client):
        page = client.page(CONFIG_MAPS, Selected(namespace, "watched"))
        assert len(page.items) == 500
        assert page.next
        whole = client.list_all(CONFIG_MAPS, Selected(namespace, "watched"))
        assert [item.metadata.name for item in whole.items] == names
        with seen(access, namespace) as found:
            assert found.names == set(names)


def test_nodes_of_a_cluster_are_followed(access: ClusterAccess) -> None:
    client = open_client(access)
    with contextlib.closing(client):
        watch = follow(client, NODES)
        with contextlib.closing(watch):
            wait_until(lambda: watch.poll() is not None and watch.synced, what="the list")
            assert {"n1", "n2", "k1"} <= {node.metadata.name for node in watch.objects.values()}
