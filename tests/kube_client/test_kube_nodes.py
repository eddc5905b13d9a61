"""What a node of a cluster is to the fleet: devices, tiers, taints, health, and where each was read."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kube_client.made import GIB, gpu, node, resource_slice
from unidle.fleet import WHOLE_PPM, slices_of
from unidle.kube.nodes import FleetRules, ReadNode, read_node
from unidle.kube.objects import KubeNode, ResourceSlice

RULES = FleetRules()
GFD = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.count": "8",
}


def read(found: KubeNode, *slices: ResourceSlice, rules: FleetRules = RULES) -> ReadNode:
    return read_node(found, slices, rules)


def sources(found: ReadNode, of: str) -> list[str]:
    return [text for what, text in found.sources if what == of]


def test_gpus_are_counted_by_allocatable_and_named_by_labels() -> None:
    found = read(node(labels=GFD, allocatable={"nvidia.com/gpu": "8"}))
    assert [device.id for device in found.node.devices] == [f"n1/{k}" for k in range(8)]
    first = found.node.devices[0]
    assert (first.kind, first.vendor, first.model) == ("gpu", "nvidia", "NVIDIA H100 80GB HBM3")
    assert first.memory_bytes == 81559 << 20
    assert set(found.resources) == {"nvidia.com/gpu"}
    assert sources(found, "devices") == [
        "8 x NVIDIA H100 80GB HBM3: allocatable nvidia.com/gpu, label nvidia.com/gpu.product"
    ]


def test_cpu_memory_address_and_labels_are_those_of_the_object() -> None:
    found = read(node(labels={"b": "2", "a": "1"})).node
    assert (found.cpus, found.memory_bytes, found.address) == (7.91, 32 * GIB, "10.0.0.1")
    assert list(found.labels.items()) == [("a", "1"), ("b", "2")]
    assert found.devices == ()


def test_a_node_without_an_address_has_its_name() -> None:
    found = read(node(addresses=[]))
    assert found.node.address == "n1"
    assert sources(found, "address") == ["n1: the node's name, as it has no address"]


def test_cpu_devices_are_offered_where_configured_and_there_is_no_gpu() -> None:
    rules = FleetRules(cpu_devices=2)
    found = read(node(), rules=rules)
    assert [(device.id, device.kind) for device in found.node.devices] == [("n1/0", "cpu"), ("n1/1", "cpu")]
    assert "as configured" in sources(found, "devices")[0]
    with_gpu = read(node(allocatable={"nvidia.com/gpu": "1"}), rules=rules)
    assert [device.kind for device in with_gpu.node.devices] == ["gpu"]


def test_time_sliced_gpus_are_whole_gpus_in_parts() -> None:
    labels = {
        **GFD,
        "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    found = read(node(labels=labels, allocatable={"nvidia.com/gpu": "8"}))
    assert len(found.node.devices) == 2
    assert found.node.devices[0].model == "NVIDIA A10"
    assert [part.share_ppm for part in slices_of(found.node.devices[0])] == [250_000] * 4


def test_shares_of_a_gpu_are_all_of_it() -> None:
    labels = {"nvidia.com/gpu.replicas": "3", "nvidia.com/gpu.sharing-strategy": "mps"}
    found = read(node(labels=labels, allocatable={"nvidia.com/gpu.shared": "3"}))
    assert [sum(device.slices_ppm) for device in found.node.devices] == [WHOLE_PPM]


def test_mig_instances_are_devices_of_their_size() -> None:
    allocatable = {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1", "nvidia.com/gpu": "0"}
    found = read(node(labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, allocatable=allocatable))
    assert [(device.model, device.memory_bytes // GIB) for device in found.node.devices] == [
        ("NVIDIA A100 SXM4 40GB MIG 1g.5gb", 5), ("NVIDIA A100 SXM4 40GB MIG 1g.5gb", 5),
        ("NVIDIA A100 SXM4 40GB MIG 3g.20gb", 20),
    ]  # fmt: skip
    assert found.resources == ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb")


@pytest.mark.parametrize(
    "labels",
    [
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
        {"beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "8", "beta.amd.com/gpu.vram.192G": "8"},
    ],
    ids=["value", "key"],
)
def test_gpus_of_amd(labels: dict[str, str]) -> None:
    found = read(node(labels=labels, allocatable={"amd.com/gpu": "8"})).node.devices
    assert len(found) == 8
    assert (found[0].vendor, found[0].model, found[0].memory_bytes) == (
        "amd", "AMD Instinct MI300X OAM", 192 * GIB
    )  # fmt: skip


def test_npus_of_huawei() -> None:
    [found] = read(node(allocatable={"huawei.com/Ascend910": "1"})).node.devices
    assert (found.vendor, found.model) == ("ascend", "Ascend910")


def test_resource_slices_take_precedence_and_have_uuids() -> None:
    slices = resource_slice("n1", [gpu(10), gpu(9), gpu(0)])
    found = read(node(allocatable={"nvidia.com/gpu": "3"}), slices)
    assert [(device.index, device.uuid, device.number) for device in found.node.devices] == [
        (0, "GPU-0", None), (1, "GPU-9", 9), (2, "GPU-10", 10)
    ]  # fmt: skip
    assert found.node.devices[0].memory_bytes == 81559 << 20
    assert sources(found, "devices") == ["3 x NVIDIA H100 80GB HBM3: ResourceSlices of driver gpu.nvidia.com"]


def test_only_the_newest_generation_of_a_pool_counts_and_only_whole() -> None:
    old = resource_slice("n1", [gpu(0), gpu(1)], generation=1)
    half = resource_slice("n1", [gpu(0)], generation=2, of=2)
    rest = resource_slice("n1", [gpu(1)], generation=2, of=2, number=1)
    counted = node(allocatable={"nvidia.com/gpu": "4"})
    assert [device.uuid for device in read(counted, old, half).node.devices] == [""] * 4
    assert [device.uuid for device in read(counted, old, half, rest).node.devices] == ["GPU-0", "GPU-1"]


def test_mig_devices_of_a_slice_are_not_counted_beside_their_gpu() -> None:
    mig = gpu(1, type="mig")
    assert len(read(node(), resource_slice("n1", [gpu(0), mig])).node.devices) == 1


def test_attributes_with_the_name_of_their_driver_are_read_and_others_skipped() -> None:
    listed = {
        "name": "gpu-0",
        "attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-x"}, "index": {"int": 0}},
    }
    nic = resource_slice("n1", [{"name": "eth0"}], driver="nic.example.com")
    [found] = read(node(), resource_slice("n1", [listed]), nic).node.devices
    assert (found.uuid, found.model, found.memory_bytes) == ("GPU-x", "", 0)


def test_quantities_that_cannot_be_read_count_as_nothing_and_say_so() -> None:
    found = read(node(allocatable={"cpu": "many", "nvidia.com/gpu": "some"}))
    assert (found.node.cpus, found.node.devices) == (0.0, ())
    assert sources(found, "cpu") == ["0: allocatable 'many' is no quantity"]


def test_an_absurd_count_is_bounded() -> None:
    assert len(read(node(allocatable={"nvidia.com/gpu": "1E"})).node.devices) == 1024


def test_taints_that_keep_pods_off_are_taints() -> None:
    taints = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "spot", "effect": "PreferNoSchedule"},
        {"key": "bad", "effect": "NoExecute"},
    ]
    found = read(node(spec={"taints": taints}))
    assert found.node.taints == ("bad", "nvidia.com/gpu")
    assert sources(found, "taint") == ["bad: NoExecute", "nvidia.com/gpu: NoSchedule (present)"]


def test_a_cordoned_node_has_a_taint() -> None:
    assert read(node(spec={"unschedulable": True})).node.taints == ("node.kubernetes.io/unschedulable",)


@pytest.mark.parametrize(
    ("conditions", "health", "code"),
    [
        ([{"type": "Ready", "status": "True"}], "healthy", "node_ready"),
        (
            [{"type": "Ready", "status": "False", "message": "container\nruntime down"}],
            "fault",
            "node_not_ready",
        ),
        ([{"type": "Ready", "status": "Unknown"}], "fault", "node_unreachable"),
        ([], "boot", "node_not_ready"),
    ],
)
def test_health_is_that_of_the_kubelet(conditions: list[dict[str, str]], health: str, code: str) -> None:
    found = read(node(conditions=conditions))
    assert (found.health, found.because.code) == (health, code)
    assert found.because.figures.get("message", "container runtime down") == "container runtime down"


def test_a_node_that_is_being_deleted_is_in_maintenance() -> None:
    found = node()
    metadata = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    assert read(msgspec.structs.replace(found, metadata=metadata)).health == "maintenance"


PLACES = {"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1a"}


@pytest.mark.parametrize(
    ("labels", "way"),
    [
        ({}, [("cluster", "cluster")]),
        (PLACES, [("cluster", "cluster"), ("eu", "region"), ("eu.eu-1a", "zone")]),
        (
            {
                **PLACES,
                "network.topology.nvidia.com/accelerator": "nvl1",
                "network.topology.nvidia.com/leaf": "l3",
                "network.topology.nvidia.com/spine": "s1",
            },
            [("cluster", "cluster"), ("eu", "region"), ("eu.eu-1a", "zone"), ("eu.eu-1a.s1", "spine"),
             ("eu.eu-1a.s1.l3", "leaf"), ("eu.eu-1a.s1.l3.nvl1", "nvlink")],
        ),
        (
            {"fabric.topograph.run/tier-0": "leaf7", "fabric.topograph.run/tier-1": "spine2"},
            [("cluster", "cluster"), ("spine2", "tier-1"), ("spine2.leaf7", "tier-0")],
        ),
        (
            {**PLACES, "nvidia.com/gpu.clique": "7b9.1"},
            [("cluster", "cluster"), ("eu", "region"), ("eu.eu-1a", "zone"), ("eu.eu-1a.7b9..1", "nvlink")],
        ),
    ],
    ids=["none", "places", "nvidia", "topograph", "clique"],
)  # fmt: skip
def test_labels_known_by_convention_make_the_way_of_a_node(
    labels: dict[str, str], way: list[tuple[str, str]]
) -> None:
    found = read(node(labels=labels))
    assert [(tier.id, tier.kind) for tier in found.way.tiers] == way
    assert found.node.parent == way[-1][0]
    for (name, kind), tier in zip(way[1:], found.way.tiers[1:], strict=True):
        assert sources(found, kind)[0].startswith(f"{name}: label ")
        assert tier.parent is not None


def test_configured_labels_make_the_way_from_the_node_upwards() -> None:
    rules = FleetRules("prod", tier_labels=("example.com/rack", "example.com/hall"))
    found = read(node(labels={**PLACES, "example.com/rack": "r1", "example.com/hall": "h2"}), rules=rules)
    assert [(tier.id, tier.kind) for tier in found.way.tiers] == [
        ("prod", "cluster"), ("h2", "hall"), ("h2.r1", "rack")
    ]  # fmt: skip
    without_rack = read(node(labels={"example.com/hall": "h2"}), rules=rules)
    assert without_rack.node.parent == "h2"


def test_a_tier_is_never_called_as_the_cluster_and_two_ways_never_share_a_name() -> None:
    rules = replace(RULES, cluster="h", tier_labels=("e/rack", "e/hall"))
    assert read(node(labels={"e/hall": "h"}), rules=rules).node.parent == "h-tier"
    dotted = read(node(labels={"e/hall": "a.b"}), rules=rules).node.parent
    nested = read(node(labels={"e/hall": "a", "e/rack": "b"}), rules=rules).node.parent
    assert dotted != nested
