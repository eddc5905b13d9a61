"""What is written at the API server to show which nodes are out of use. Pure."""

from __future__ import annotations

from typing import Any

from unidle.engine.kube.hook_jobs import HOOK
from unidle.engine.kube.node_marks import HEALTHY, KubeMarks
from unidle.engine.node_marks import NodeMark
from unidle.kube.nodes import CORDONED_BY, UNFIT, FleetRules, read_node
from unidle.kube.objects import (
    Condition,
    KubeNode,
    Metadata,
    NodeSpec,
    NodeStatus,
    OwnerReference,
    Pod,
    PodSpec,
    Taint,
)
from unidle.kube.protocol import Evict, KubeError, Patch, Write, WriteDone, WriteRefused

FAULT = NodeMark("out", "a fan stands still")
DRAINED = NodeMark("out", "drained by ann", by_hand=True, leave=True)
S = 1_000_000_000


class Writes:
    """Takes writes down."""

    def __init__(self) -> None:
        self.all: list[Write] = []

    def write(self, write: Write) -> None:
        self.all.append(write)

    def taken(self) -> list[Write]:
        found, self.all = self.all, []
        return found


SAID: list[str] = []


def made() -> tuple[KubeMarks, Writes]:
    writes = Writes()
    writer: Any = writes
    SAID.clear()
    return KubeMarks(writer, lambda pod: pod.metadata.name.startswith("ours"), SAID.append), writes


def node(version: str = "1", *, unschedulable: bool = False, cordoned: bool = False, **more: Any) -> KubeNode:
    meta = Metadata(
        name="n1", resource_version=version, annotations={CORDONED_BY: "unidle"} if cordoned else {}
    )
    return KubeNode(
        meta,
        NodeSpec(more.get("taints", ()), unschedulable),
        NodeStatus(conditions=more.get("conditions", ())),
    )


def pod(name: str, owner: str = "ReplicaSet", on: str = "n1", labels: dict[str, str] | None = None) -> Pod:
    owners = (OwnerReference("v1", owner, "o", "u", controller=True),) if owner else ()
    meta = Metadata(name=name, namespace="d", uid=f"uid-{name}", labels=labels or {}, owner_references=owners)
    return Pod(meta, PodSpec(on))


def test_nothing_is_written_before_it_is_known_what_is_out_of_use() -> None:
    marks, writes = made()
    marks.see(node(cordoned=True, unschedulable=True), gone=False)
    marks.act(list, S)
    assert writes.taken() == []
    marks.wanted = {}
    marks.act(list, S)
    [patch] = writes.taken()
    assert isinstance(patch, Patch)
    assert patch.body == {"metadata": {"annotations": {CORDONED_BY: None}}, "spec": {"unschedulable": None}}


def test_a_fault_keeps_the_taints_of_others_and_is_bound_to_the_version_that_was_read() -> None:
    marks, writes = made()
    marks.wanted = {"n1": FAULT}
    marks.see(node("7", taints=(Taint("mine", "1", "NoExecute", "2026-01-01T00:00:00Z"),)), gone=False)
    marks.act(list, S)
    taint, status = writes.taken()
    assert isinstance(taint, Patch)
    test, add = taint.body["ops"]
    assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert add["value"] == [
        {"key": "mine", "value": "1", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": UNFIT, "value": "out", "effect": "NoSchedule"},
    ]
    assert isinstance(status, Patch)
    [condition] = status.body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["message"]) == (HEALTHY, "False", FAULT.text)


def test_one_version_of_a_node_is_written_to_once_and_again_after_a_while() -> None:
    marks, writes = made()
    marks.wanted = {"n1": DRAINED}
    marks.see(node(), gone=False)
    marks.act(list, S)
    assert len(writes.taken()) == 2
    marks.act(list, 2 * S)
    assert writes.taken() == []
    marks.act(list, 12 * S)
    assert len(writes.taken()) == 2
    shown = (Condition(HEALTHY, "False", "Out", DRAINED.text),)
    marks.see(node("2", cordoned=True, unschedulable=True, conditions=shown), gone=False)
    marks.act(list, 13 * S)
    assert writes.taken() == []


def test_a_cordon_of_others_is_not_taken_over() -> None:
    marks, writes = made()
    marks.wanted = {"n1": DRAINED}
    marks.see(node(unschedulable=True), gone=False)
    marks.act(list, S)
    assert [write.sub for write in writes.taken() if isinstance(write, Patch)] == ["status"]


def test_only_what_something_makes_again_is_evicted_and_once() -> None:
    marks, writes = made()
    marks.wanted = {"n1": DRAINED}
    marks.see(node(), gone=False)
    pods = [pod("web"), pod("ours-1"), pod("agent", "DaemonSet"), pod("alone", ""), pod("far", on="n2")]
    pods.append(pod("remedy", "Job", labels={HOOK: "unidle-hook-1"}))  # of this node, as it is out of use
    marks.act(lambda: pods, S)
    assert [write.name for write in writes.taken() if isinstance(write, Evict)] == ["web"]
    marks.act(lambda: pods, 10 * S)
    assert not [write for write in writes.taken() if isinstance(write, Evict)]


def test_own_marks_are_not_read_back_as_taints_of_the_node() -> None:
    own = (Taint(UNFIT, "out", "NoSchedule"), Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"))
    read = read_node(node(cordoned=True, unschedulable=True, taints=own), [], FleetRules())
    assert read.node.taints == ()
    theirs = read_node(node(unschedulable=True, taints=own), [], FleetRules())
    assert theirs.node.taints == ("node.kubernetes.io/unschedulable",)


def test_a_right_that_is_missing_is_said_once_and_tried_again_later() -> None:
    marks, writes = made()
    marks.wanted = {"n1": FAULT}
    marks.see(node(), gone=False)
    marks.act(list, S)
    refused = KubeError("no", verb="patch", target="nodes n1", status=403, reason="Forbidden")
    taint, status = writes.taken()
    for write in (taint, status, taint):
        marks.written(WriteRefused(write, refused), S)
    assert [line.split("grant the controller ")[1].split(" in ")[0] for line in SAID] == [
        '"patch nodes"',
        '"patch nodes/status"',
    ]
    marks.act(list, 30 * S)
    assert writes.taken() == []
    marks.act(list, 31 * S)
    assert len(writes.taken()) == 2
    marks.written(WriteDone(taint), 32 * S)
    marks.written(WriteRefused(taint, refused), 33 * S)
    assert len(SAID) == 3  # it was there meanwhile


def test_an_eviction_that_is_not_allowed_is_tried_again() -> None:
    marks, writes = made()
    marks.wanted = {"n1": DRAINED}
    marks.see(node(unschedulable=True, cordoned=True), gone=False)
    marks.act(lambda: [pod("other")], S)
    [evict] = [write for write in writes.taken() if isinstance(write, Evict)]
    refused = KubeError("no", verb="create", target="pods/eviction d/other", status=403, reason="Forbidden")
    marks.written(WriteRefused(evict, refused), S)
    assert "create pods/eviction" in SAID[0]
    marks.act(lambda: [pod("other")], 30 * S)
    assert evict not in writes.taken()
    marks.act(lambda: [pod("other")], 31 * S)
    assert evict in writes.taken()
