"""The fleet of a real cluster: its nodes, nodes of kwok with devices and labels, and pods; only `make test-kube` runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import needs
from kube.cluster import Cluster, pod
from unidle.fleet import Node
from unidle.kube.client import ApiClient, open_client
from unidle.kube.cluster_fleet import ClusterFleet
from unidle.kube.kubeconfig import load_access
from unidle.kube.nodes import FleetRules, ReadNode
from unidle.kube.objects import NODES, PODS, RESOURCE_SLICES
from unidle.kube.protocol import Put, Vanished
from unidle.kube.reflector import follow
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]


class Followed:
    """A fleet that follows a cluster, and what an engine would know by its changes."""

    def __init__(self, client: ApiClient) -> None:
        self.nodes, self.pods = follow(client, NODES), follow(client, PODS)
        self.slices = follow(client, RESOURCE_SLICES)
        self.fleet = ClusterFleet(FleetRules("test", cpu_devices=2))
        self.shown: dict[str, Node] = {}
        self.puts: list[str] = []
        self.used: dict[str, Any] = {}

    def close(self) -> None:
        for watch in (self.nodes, self.pods, self.slices):
            watch.close()

    def look(self) -> bool:
        for watch, see in (
            (self.nodes, self.fleet.see_node),
            (self.pods, self.fleet.see_pod),
            (self.slices, self.fleet.see_slice),
        ):
            for event in watch.poll():
                if isinstance(event, Put | Vanished):
                    see(event)  # type: ignore[operator]
        changes = self.fleet.changes()
        self.puts += [node.id for node in changes.put]
        self.shown.update({node.id: node for node in changes.put})
        for name in changes.gone:
            del self.shown[name]
        self.used.update({use.node: use for use in changes.used})
        return self.nodes.synced and self.pods.synced and self.slices.synced

    def read(self, name: str) -> ReadNode | None:
        self.look()
        return self.fleet.node(name)


@pytest.fixture
def followed(shared_cluster: Cluster) -> Iterator[Followed]:
    with contextlib.closing(open_client(load_access(shared_cluster.folder / "kubeconfig"))) as client:
        found = Followed(client)
        with contextlib.closing(found):
            wait_until(found.look, what="the first lists")
            yield found


def patch(cluster: Cluster, name: str, told: str, *more: str) -> None:
    cluster.kubectl("patch", "node", name, "--type=merge", "-p", told, *more)


def test_real_nodes_are_read_with_their_address_cores_and_health(followed: Followed) -> None:
    for name in ("n1", "n2"):
        found = followed.read(name)
        assert found is not None
        assert (found.health, found.node.address.split(".")[0]) == ("healthy", "10")
        assert found.node.cpus >= 1
        assert found.node.memory_bytes > 1 << 30
        assert [device.kind for device in found.node.devices] == ["cpu", "cpu"]
        assert found.node.taints == ()


def test_devices_and_labels_of_a_node_that_change_are_one_node_put(
    shared_cluster: Cluster, followed: Followed
) -> None:
    followed.puts.clear()
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/zone": "z1",
        "network.topology.nvidia.com/leaf": "leaf1",
    }  # fmt: skip
    words = [f"{key}={value}" for key, value in labels.items()]
    shared_cluster.kubectl("label", "node", "k1", *words)
    gpus = '{"status":{"capacity":{"nvidia.com/gpu":"8"},"allocatable":{"nvidia.com/gpu":"8"}}}'
    patch(shared_cluster, "k1", gpus, "--subresource=status")
    wait_until(lambda: (found := followed.read("k1")) and len(found.node.devices) == 8, what="the GPUs")
    assert set(followed.puts) == {"k1"}
    assert followed.shown["k1"].parent == "z1.leaf1"
    assert followed.shown["k1"].devices[0].model == "NVIDIA H100 80GB HBM3"
    assert [tier.id for tier in followed.fleet.fleet().tiers] == ["test", "z1", "z1.leaf1"]


def test_a_cordoned_node_has_a_taint_until_it_is_not(shared_cluster: Cluster, followed: Followed) -> None:
    shared_cluster.kubectl("cordon", "k2")
    cordoned = "node.kubernetes.io/unschedulable"
    wait_until(lambda: (found := followed.read("k2")) and cordoned in found.node.taints, what="the taint")
    shared_cluster.kubectl("uncordon", "k2")
    wait_until(lambda: (found := followed.read("k2")) and cordoned not in found.node.taints, what="its end")


def test_a_node_that_is_deleted_leaves(shared_cluster: Cluster, followed: Followed) -> None:
    assert "k3" in followed.shown
    saved = shared_cluster.get("node", "k3")
    shared_cluster.kubectl("delete", "node", "k3")
    wait_until(lambda: followed.look() and "k3" not in followed.shown, what="the end of k3")
    told = {key: saved[key] for key in ("apiVersion", "kind", "spec", "status")}
    kept = ("name", "labels", "annotations")
    shared_cluster.kubectl(
        "create", "-f", "-", told={**told, "metadata": {key: saved["metadata"][key] for key in kept}}
    )
    wait_until(lambda: followed.look() and "k3" in followed.shown, what="k3 again")


def test_resource_slices_of_a_driver_give_devices_their_uuids(
    shared_cluster: Cluster, followed: Followed
) -> None:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{number}"}, "index": {"int": number}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(2)
    ]  # fmt: skip
    told = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "k2-gpus"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "k2",
            "pool": {"name": "k2", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    shared_cluster.kubectl("create", "-f", "-", told=told)
    try:
        wait_until(
            lambda: [d.uuid for d in followed.shown["k2"].devices] == ["GPU-0", "GPU-1"] if followed.look() else False,
            what="the devices",
        )  # fmt: skip
        assert followed.shown["k2"].devices[0].memory_bytes == 80 << 30
    finally:
        shared_cluster.kubectl("delete", "resourceslice", "k2-gpus")
    wait_until(lambda: followed.look() and len(followed.shown["k2"].devices) == 2, what="the CPU devices")


def test_pods_of_others_are_what_they_request_until_they_end(
    shared_cluster: Cluster, followed: Followed, namespace: str
) -> None:
    requests = {"cpu": "100m", "memory": "64Mi"}
    for name, args, labels in (
        ("other", ("exit", "0"), {}),
        ("stays", ("pause",), {}),
        ("ours", ("pause",), {"unidle.dev/job": "train"}),
    ):
        made = pod(name, *args, node="n2", container={"resources": {"requests": requests}})
        made["metadata"] |= {"namespace": namespace, "labels": labels}
        shared_cluster.kubectl("create", "-f", "-", told=made)
    wait_until(
        lambda: followed.look() and "n2" in followed.used and followed.used["n2"].cpus == pytest.approx(0.1),
        120,
        "the pod that ended gives back what it took",
    )
    assert followed.used["n2"].memory_bytes == 64 << 20
    assert f"{namespace}/stays" in followed.used["n2"].because.text
    shared_cluster.kubectl("delete", "pod", "-n", namespace, "stays", "--grace-period=0", "--force")
    wait_until(lambda: followed.look() and followed.used["n2"].cpus == 0, 120, "nothing is taken")
