"""The fleet of a cluster, one object at a time: one change is one node, and the order of objects changes nothing."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_client.made import GIB, asks, gone, gpu, node, pod, put, resource_slice
from unidle.fleet import Fleet
from unidle.kube.cluster_fleet import ClusterFleet, FleetChanges, is_of_unidle
from unidle.kube.nodes import FleetRules
from unidle.kube.objects import KubeNode, Pod, ResourceSlice
from unidle.kube.use import NodeUse, pod_use

RULES = FleetRules("prod", tier_labels=("rack", "zone"))
EIGHT = {"nvidia.com/gpu": "8"}


def seen(*items: Any, rules: FleetRules = RULES, **more: Any) -> ClusterFleet:
    """A fleet that has seen these objects."""
    found = ClusterFleet(rules, **more)
    for item in items:
        see(found, put(item))
    return found


def see(found: ClusterFleet, event: Any) -> None:
    match event.object:
        case KubeNode():
            found.see_node(event)
        case Pod():
            found.see_pod(event)
        case ResourceSlice():
            found.see_slice(event)


def used(changes: FleetChanges) -> NodeUse:
    [found] = changes.used
    return found


def test_the_first_look_has_everything() -> None:
    found = seen(node("b"), node("a", labels={"zone": "z1", "rack": "r1"}, allocatable=EIGHT))
    changes = found.changes()
    assert [item.id for item in changes.put] == ["a", "b"]
    assert changes.tiers
    assert [read.health for read in changes.health] == ["healthy", "healthy"]
    assert changes.used == ()
    fleet = found.fleet()
    assert [item.id for item in fleet.nodes] == ["a", "b"]
    assert [tier.id for tier in fleet.tiers] == ["prod", "z1", "z1.r1"]


def test_nothing_new_is_no_change() -> None:
    found = seen(node("a"), pod("p", on="a"))
    found.changes()
    see(found, put(node("a")))
    see(found, put(pod("p", on="a")))
    assert found.changes() == FleetChanges()


def test_one_changed_node_of_many_is_one_put() -> None:
    names = [f"n{number}" for number in range(300)]
    found = seen(*(node(name, labels={"zone": "z", "rack": f"r{name[-1]}"}) for name in names))
    found.changes()
    see(found, put(node("n7", labels={"zone": "z", "rack": "r7", "new": "label"})))
    changes = found.changes()
    assert [item.id for item in changes.put] == ["n7"]
    assert (changes.gone, changes.health, changes.used, changes.tiers) == ((), (), (), False)


def test_a_node_that_falls_silent_has_another_health_and_its_taint() -> None:
    found = seen(node("a"))
    found.changes()
    silent = node(
        "a",
        conditions=[{"type": "Ready", "status": "Unknown"}],
        spec={"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
    )
    see(found, put(silent))
    changes = found.changes()
    assert [item.taints for item in changes.put] == [("node.kubernetes.io/unreachable",)]
    assert [read.health for read in changes.health] == ["fault"]


def test_a_node_that_leaves_takes_its_tiers_along() -> None:
    found = seen(node("a", labels={"zone": "z1"}), node("b", labels={"zone": "z2"}))
    found.changes()
    see(found, gone(node("a", labels={"zone": "z1"})))
    changes = found.changes()
    assert (changes.gone, changes.tiers) == (("a",), True)
    assert [tier.id for tier in found.fleet().tiers] == ["prod", "z2"]
    assert list(found.nodes) == ["b"]


def test_a_node_that_was_made_again_is_not_gone_with_the_former_one() -> None:
    former = node("a")
    metadata = msgspec.structs.replace(former.metadata, uid="another")
    found = seen(msgspec.structs.replace(former, metadata=metadata))
    see(found, gone(former))
    assert [item.id for item in found.changes().put] == ["a"]


def test_slices_may_come_before_their_node_and_leave_after_it() -> None:
    slices = resource_slice("a", [gpu(0), gpu(1)])
    found = seen(slices)
    assert found.changes() == FleetChanges()
    see(found, put(node("a")))
    assert [len(item.devices) for item in found.changes().put] == [2]
    see(found, gone(slices))
    assert [len(item.devices) for item in found.changes().put] == [0]


def test_pods_of_others_take_cpu_memory_and_devices_from_the_last_one_on() -> None:
    found = seen(
        node("a", allocatable=EIGHT), pod("p", on="a", containers=[asks(cpu="1500m", memory="4Gi", gpu="2")])
    )
    use = used(found.changes())
    assert (use.node, use.cpus, use.memory_bytes, use.devices) == ("a", 1.5, 4 * GIB, ("a/6", "a/7"))
    assert use.because.text == "Pods of others are on the node: default/p."


def test_devices_that_our_jobs_hold_are_not_those_of_others() -> None:
    found = seen(
        node("a", allocatable=EIGHT),
        pod("p", on="a", containers=[asks(gpu="2")]),
        held=lambda name: {f"{name}/7", f"{name}/5"},
    )
    assert used(found.changes()).devices == ("a/4", "a/6")


def test_what_our_jobs_hold_may_change() -> None:
    held: set[str] = set()
    found = seen(
        node("a", allocatable=EIGHT), pod("p", on="a", containers=[asks(gpu="1")]), held=lambda _: held
    )
    assert used(found.changes()).devices == ("a/7",)
    held.add("a/7")
    found.look_again(["a", "not-there"])
    assert used(found.changes()).devices == ("a/6",)


def test_parts_of_a_gpu_take_as_many_gpus_as_they_may_be_on() -> None:
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    found = seen(node("a", labels=labels, allocatable=EIGHT), pod("p", on="a", containers=[asks(gpu="5")]))
    assert used(found.changes()).devices == ("a/0", "a/1")


def test_mig_instances_are_taken_by_their_own_resource() -> None:
    allocatable = {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1"}
    wanted = {"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
    found = seen(node("a", allocatable=allocatable), pod("p", on="a", containers=[wanted]))
    assert used(found.changes()).devices == ("a/1",)


def test_pods_of_unidle_and_pods_that_ended_take_nothing() -> None:
    ours = pod("ours", on="a", labels={"unidle.dev/job": "train"})
    assert is_of_unidle(ours)
    found = seen(node("a"), ours, pod("done", on="a", phase="Succeeded"), pod("waits", on=""))
    assert found.changes().used == ()


def test_a_pod_that_ends_or_is_deleted_gives_back_what_it_took() -> None:
    for event in (put(pod("p", on="a", phase="Failed")), gone(pod("p", on="a"))):
        found = seen(node("a"), pod("p", on="a"), pod("q", on="a"))
        assert used(found.changes()).cpus == 1.0
        see(found, event)
        assert used(found.changes()).cpus == 0.5
        see(found, gone(pod("q", on="a")))
        last = used(found.changes())
        assert (last.cpus, last.memory_bytes, last.devices, last.because.code) == (0, 0, (), "no_other_pods")


def test_a_pod_on_a_node_that_is_not_known_yet_counts_once_it_is() -> None:
    found = seen(pod("p", on="a"))
    assert found.changes().used == ()
    see(found, put(node("a")))
    assert used(found.changes()).cpus == 0.5


@pytest.mark.parametrize(
    ("spec", "cpu", "memory_gib"),
    [
        ({"containers": [asks(cpu="1", memory="1Gi"), asks(cpu="2")]}, 3, 1),
        ({"containers": [asks(cpu="1")], "initContainers": [asks(cpu="4", memory="2Gi"), asks(cpu="3")]}, 4, 2),
        ({"containers": [asks(cpu="1")], "initContainers": [{**asks(cpu="2"), "restartPolicy": "Always"}]}, 3, 0),
        (
            {"containers": [asks(cpu="1")],
             "initContainers": [{**asks(cpu="2"), "restartPolicy": "Always"}, asks(cpu="4")]},
            6, 0,
        ),
        (
            {"containers": [asks(cpu="1")],
             "initContainers": [asks(cpu="4"), {**asks(cpu="2"), "restartPolicy": "Always"}]},
            4, 0,
        ),
        ({"containers": [asks(cpu="1")], "overhead": {"cpu": "250m", "memory": "1Gi"}}, 1.25, 1),
        ({"containers": [asks(cpu="1")], "resources": {"requests": {"cpu": "7", "memory": "3Gi"}}}, 7, 3),
        ({"containers": [{"name": "a", "resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}}]}, 2, 1),
        ({"containers": [{"name": "a"}]}, 0, 0),
        ({"containers": [asks(cpu="lots", memory="1Gi")]}, 0, 1),
    ],
)  # fmt: skip
def test_requests_are_counted_as_the_scheduler_counts_them(spec: Any, cpu: float, memory_gib: int) -> None:
    metadata = {"name": "p", "namespace": "default"}
    found = pod_use(msgspec.convert({"metadata": metadata, "spec": {**spec, "nodeName": "a"}}, Pod))
    assert found is not None
    assert (float(found.cpus), found.memory_bytes) == (cpu, memory_gib * GIB)


def test_a_reason_names_few_of_many_pods_those_with_devices_first() -> None:
    pods = [pod(f"p{number}", on="a") for number in range(9)]
    found = seen(node("a", allocatable=EIGHT), *pods)
    assert used(found.changes()).because.text == (
        "Pods of others are on the node: default/p0, default/p1, default/p2 and 6 more."
    )
    see(found, put(pod("trains", on="a", containers=[asks(gpu="1")])))
    assert used(found.changes()).because.text == "Pods of others are on the node: default/trains."


ZONES = st.sampled_from(["", "z1", "z2"])


@st.composite
def clusters(draw: st.DrawFn) -> list[Any]:
    names = [f"n{number}" for number in range(draw(st.integers(1, 5)))]
    items: list[Any] = []
    for name in names:
        labels = {key: value for key in ("zone", "rack") if (value := draw(ZONES))}
        count = str(draw(st.integers(0, 3)))
        items.append(node(name, labels=labels, allocatable={"nvidia.com/gpu": count}))
        if draw(st.booleans()):
            items.append(resource_slice(name, [gpu(number) for number in range(draw(st.integers(0, 3)))]))
    for number in range(draw(st.integers(0, 8))):
        wanted = asks(cpu=draw(st.sampled_from(["100m", "1", "300m"])), gpu=str(draw(st.integers(0, 2))))
        items.append(pod(f"p{number}", on=draw(st.sampled_from(names)), containers=[wanted]))
    return items


def without_devices(used: NodeUse | None) -> Any:
    """What does not depend on the past: a pod keeps the devices that it had, so only how many they are is certain."""
    if used is None:
        return None
    pods = tuple((pod.name, pod.phase) for pod in used.pods)
    return used.cpus, used.memory_bytes, len(used.devices), used.because, pods


def outcome(found: ClusterFleet) -> tuple[Fleet, dict[str, Any], dict[str, Any]]:
    found.changes()
    reads = dict(found.nodes)
    uses = {name: without_devices(found._nodes[name].used) for name in reads}
    return found.fleet(), reads, uses


@given(clusters(), st.randoms(use_true_random=False))
def test_the_same_objects_in_any_order_give_the_same_fleet(items: list[Any], chance: random.Random) -> None:
    expected = outcome(seen(*items))
    shuffled = list(items)
    chance.shuffle(shuffled)
    found = ClusterFleet(RULES)
    for item in shuffled:
        see(found, put(item))
        if chance.random() < 0.3:
            found.changes()
    assert outcome(found) == expected


@given(clusters(), clusters(), st.randoms(use_true_random=False))
def test_a_fleet_that_changed_is_the_fleet_of_what_is_left(
    before: list[Any], after: list[Any], chance: random.Random
) -> None:
    found = ClusterFleet(RULES)
    known: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    tiers: set[str] = set()

    def follow() -> None:
        """What an engine knows by the changes alone."""
        changes = found.changes()
        for item in changes.put:
            shown[item.id] = item
        for name in changes.gone:
            del shown[name]
        now = {tier.id for tier in found.fleet().tiers if tier.parent is not None}
        assert changes.tiers or now == tiers
        tiers.clear()
        tiers.update(now)

    for items in (before, after):
        now = {item.metadata.uid: item for item in items}
        events = [gone(item) for uid, item in known.items() if uid not in now]
        events += [put(item) for item in items]
        chance.shuffle(events)
        for event in events:
            see(found, event)
            if chance.random() < 0.3:
                follow()
        known = now
    follow()
    assert outcome(found) == outcome(seen(*after))
    assert shown == {item.id: item for item in found.fleet().nodes}
