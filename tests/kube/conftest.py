"""One cluster for all tests of a run that only use it. Tests that break a cluster start their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kube.cluster import Cluster
from kube.in_cluster import Release, released
from kube.kube_site import cluster_of

SHARED_NODES = 2
SHARED_KWOK = 3


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes n1 and n2, and k1, k2 and k3 of kwok. Each test uses a namespace of its own."""
    with cluster_of(tmp_path_factory.mktemp("shared") / "cluster", SHARED_NODES, SHARED_KWOK) as found:
        yield found


@pytest.fixture(scope="session")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes n1 and n2, for a controller of the test's own: one after the other, as each marks nodes."""
    with cluster_of(tmp_path_factory.mktemp("own") / "cluster", 2) as found:
        yield found


@pytest.fixture(scope="session")
def release(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """unidle in a pod of the shared cluster, by its chart, with its jobs in the same namespace."""
    place, name = tmp_path_factory.mktemp("release"), "unidle-test"
    shared_cluster.make_namespace(name)
    with released(shared_cluster, name, place) as found:
        yield found
    shared_cluster.kubectl("delete", "namespace", name, "--timeout=120s")


@pytest.fixture
def namespace(shared_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, which has a service account as soon as pods can be made in it."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    shared_cluster.make_namespace(name)
    yield name
    shared_cluster.kubectl("delete", "namespace", name, "--wait=false")
