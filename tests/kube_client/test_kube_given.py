"""Devices as kubelets name them, and which of them pods really have."""

from __future__ import annotations

from typing import Any

from kube_client.made import asks, gpu, node, pod, put, resource_slice
from kube_client.test_kube_cluster_fleet import see, seen, used
from unidle.kube.cluster_fleet import ClusterFleet
from unidle.kube.given import NodeGiven, natural

GPU = "nvidia.com/gpu"
FOUR = ("GPU-c", "GPU-a", "GPU-d", "GPU-b")


def gpus(count: int, **more: Any) -> Any:
    return node("n", allocatable={GPU: str(count)}, **more)


def listed(*ids: str, **pods: tuple[str, ...]) -> NodeGiven:
    """A kubelet with these GPUs, of which pods in ``default`` have some."""
    return NodeGiven("", {GPU: ids}, {f"default/{name}": {GPU: some} for name, some in pods.items()})


def named(fleet: ClusterFleet) -> dict[str, str]:
    """The ids of devices by those that their kubelet gave them, in the order of the fleet."""
    fleet.changes()
    read = fleet.node("n")
    assert read is not None
    assert [device.index for device in read.node.devices] == sorted(d.index for d in read.node.devices)
    return {device.uuid: device.id for device in read.node.devices}


def given(found: ClusterFleet, what: NodeGiven) -> ClusterFleet:
    found.changes()
    found.give("n", what)
    return found


def test_devices_get_the_ids_that_their_kubelet_gives_them() -> None:
    found = given(seen(gpus(4)), listed(*FOUR))
    assert named(found) == {"GPU-a": "n/0", "GPU-b": "n/1", "GPU-c": "n/2", "GPU-d": "n/3"}
    read = found.node("n")
    assert read is not None
    assert "devices of pods: as its kubelet lists them" in read.node.sources


def test_a_device_that_leaves_takes_its_own_id_along_and_none_else() -> None:
    found = given(seen(gpus(4)), listed(*FOUR))
    named(found)
    given(found, listed("GPU-a", "GPU-c", "GPU-d"))
    assert len(named(found)) == 4  # the API server does not know it yet
    see(found, put(gpus(3)))
    assert named(found) == {"GPU-a": "n/0", "GPU-c": "n/2", "GPU-d": "n/3"}
    see(found, put(gpus(4)))
    assert named(given(found, listed(*FOUR)))["GPU-b"] == "n/1"


def test_ids_outlive_the_controller_and_the_agent() -> None:
    before = given(seen(gpus(4)), listed("GPU-a", "GPU-c", "GPU-d", "GPU-e"))
    old = named(before)
    read = before.node("n")
    assert read is not None
    now = seen()
    now.was([read.node], {})
    see(now, put(gpus(4)))
    assert named(now) == old
    given(now, NodeGiven("there is no socket"))
    assert named(now) == old
    read = now.node("n")
    assert read is not None
    assert "devices of pods: not known: there is no socket" in read.node.sources
    assert named(given(now, listed("GPU-0", "GPU-c", "GPU-d", "GPU-e"))) == {
        "GPU-0": "n/0", "GPU-c": "n/1", "GPU-d": "n/2", "GPU-e": "n/3",
    }  # fmt: skip


def test_a_node_without_gpus_and_a_kubelet_with_another_count_change_nothing() -> None:
    found = given(seen(node("n")), listed())
    assert named(found) == {}
    assert named(given(seen(gpus(2)), listed("GPU-a"))) == {"": "n/1"}


def test_parts_and_mig_instances_have_the_ids_of_their_devices() -> None:
    labels = {"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    shared = given(seen(gpus(4, labels=labels)), listed("GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"))
    assert named(shared) == {"GPU-a": "n/0", "GPU-b": "n/1"}
    mig = "nvidia.com/mig-1g.10gb"
    found = seen(node("n", allocatable={GPU: "1", mig: "2"}))
    given(found, NodeGiven("", {GPU: ("GPU-z",), mig: ("MIG-2", "MIG-1")}, {}))
    assert named(found) == {"GPU-z": "n/0", "MIG-1": "n/1", "MIG-2": "n/2"}
    see(found, put(node("n", allocatable={mig: "2"})))
    given(found, NodeGiven("", {mig: ("MIG-2", "MIG-1")}, {}))
    assert named(found) == {"MIG-1": "n/1", "MIG-2": "n/2"}


def test_pods_of_others_take_exactly_the_devices_that_they_have() -> None:
    found = seen(
        gpus(4), pod("p", "n", containers=[asks(gpu="1")]), pod("q", "n", containers=[asks(gpu="1")])
    )
    assert used(found.changes()).devices == ("n/2", "n/3")
    found.give("n", listed(*FOUR, p=("GPU-b",)))
    use = used(found.changes())
    # which one q has is not known yet: one that no other has
    assert [(one.name, one.devices) for one in use.pods] == [("default/p", ("n/1",)), ("default/q", ("n/2",))]
    found.give("n", listed(*FOUR, p=("GPU-b",), q=("GPU-a",)))
    assert used(found.changes()).devices == ("n/0", "n/1")
    found.give("n", NodeGiven("the kubelet is away"))
    assert found.changes().used == ()  # they keep what they have


def test_a_pod_with_a_claim_takes_the_device_of_its_slice() -> None:
    found = seen(node("n"), resource_slice("n", [gpu(0), gpu(5), gpu(2)]), pod("p", "n"))
    found.changes()
    found.give("n", NodeGiven("", {}, {"default/p": {"gpu.nvidia.com": ("gpu-5",), "net.example": ("x",)}}))
    use = used(found.changes())
    assert [(one.name, one.devices) for one in use.pods] == [("default/p", ("n/2",))]


def test_an_id_that_is_not_known_leaves_the_count() -> None:
    found = seen(gpus(2), pod("p", "n", containers=[asks(gpu="1")]))
    found.changes()
    found.give("n", listed("GPU-a", "GPU-b", p=("GPU-unknown",)))
    assert found.changes().used == ()
    assert found.given_to("n", "default/p") is None
    assert found.devices_of("n", {GPU: ["GPU-b"], "rdma/hca": ["h"]}) == {"n/1": 1}


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["gpu-10", "gpu-9", "1", "0", "0000:81:00.0"], key=natural) == [
        "0", "0000:81:00.0", "1", "gpu-9", "gpu-10",
    ]  # fmt: skip
