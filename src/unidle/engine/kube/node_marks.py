"""Marks of nodes at the API server: a condition for all that is out of use, a taint where a fault is the reason, and a
cordon where a person is. And evictions, where what others run has to go.

Each node is compared with how it should be, and what differs is written: so marks of an earlier controller, and those
that others removed, need nothing more. A cordon that is not unidle's own is not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unidle.engine.hosts.timing import S
from unidle.engine.kube.hook_jobs import HOOK
from unidle.engine.node_marks import NodeMark
from unidle.kube.nodes import CORDONED_BY, UNFIT
from unidle.kube.objects import NODES, KubeNode, Pod
from unidle.kube.protocol import Evict, KubeError, KubeWriter, Patch, WriteDone, WriteRefused, WriteResult

HEALTHY: Final = "unidle.dev/Healthy"
"""Condition: False with the reason while a node is out of use, True once it is in use again."""
_AGAIN_NS: Final = 10 * S
_FORBIDDEN_NS: Final = 30 * S
_EVICT_NS: Final = 2 * S
_MIRROR: Final = "kubernetes.io/config.mirror"


@dataclass(slots=True)
class _Written:
    """The version of a node from which what was written last was made, and when it is made again all the same."""

    version: str
    again_ns: int


@dataclass(slots=True)
class KubeMarks:
    """``is_ours``: pods of jobs, which end otherwise. Nothing is written before :attr:`wanted` is known. ``say`` is called
    with a line for each right that is missing, once until it is there."""

    writer: KubeWriter
    is_ours: Callable[[Pod], bool]
    say: Callable[[str], None]
    wanted: Mapping[str, NodeMark] | None = None
    _nodes: dict[str, KubeNode] = field(default_factory=dict)
    _marked: set[str] = field(default_factory=set)  # nodes that show a mark of unidle
    _written: dict[str, _Written] = field(default_factory=dict)
    _evicted: set[str] = field(default_factory=set)  # by uid
    _evict_ns: int = 0
    _missing: set[str] = field(default_factory=set)  # rights, as words

    def see(self, node: KubeNode, *, gone: bool) -> None:
        """A node came, changed or left."""
        name = node.metadata.name
        self._marked.discard(name)
        if gone:
            self._nodes.pop(name, None)
            self._written.pop(name, None)
            return
        self._nodes[name] = node
        condition = _condition(node)
        if _is_tainted(node) or _is_cordoned(node) or (condition is not None and condition[0] == "False"):
            self._marked.add(name)

    def act(self, pods: Callable[[], Iterable[Pod]], now_ns: int) -> None:
        """Write what differs. ``pods`` has all that there are; it is called where some have to go."""
        wanted = self.wanted
        if wanted is None:
            return
        for name in sorted(wanted.keys() | self._marked):
            node = self._nodes.get(name)
            if node is not None and self._is_due(node, now_ns):
                patches = [*_patches(node, wanted.get(name))]
                if patches:
                    self._written[name] = _Written(node.metadata.resource_version, now_ns + _AGAIN_NS)
                for patch in patches:
                    self.writer.write(patch)
        leaving = {name for name, mark in wanted.items() if mark.leave and name in self._nodes}
        if leaving and now_ns >= self._evict_ns:
            self._evict_ns = now_ns + _EVICT_NS
            self._evict(leaving, pods())
        elif not leaving:
            self._evicted.clear()

    def written(self, result: WriteResult, now_ns: int) -> None:
        """What became of a write. One that is not allowed is tried again later: the right may be granted meanwhile."""
        write = result.write
        if not isinstance(write, Evict) and not (isinstance(write, Patch) and write.kind == NODES):
            return
        if isinstance(result, WriteDone):
            self._missing.discard(_right(write))
        if not isinstance(result, WriteRefused):
            return
        forbidden = result.error.status == 403
        if isinstance(write, Evict):
            self._evicted.discard(write.uid)
            if forbidden:
                self._evict_ns = now_ns + _FORBIDDEN_NS
        elif forbidden and (last := self._written.get(write.name)) is not None:
            last.again_ns = now_ns + _FORBIDDEN_NS
        if forbidden and (right := _right(write)) not in self._missing:
            self._missing.add(right)
            self.say(_lacking(write, right, result.error))

    def _is_due(self, node: KubeNode, now_ns: int) -> bool:
        """What was written is seen with the next version of the node; a write that was refused is tried again."""
        last = self._written.get(node.metadata.name)
        return last is None or last.version != node.metadata.resource_version or now_ns >= last.again_ns

    def _evict(self, leaving: set[str], pods: Iterable[Pod]) -> None:
        """Evict pods that something makes again elsewhere. PodDisruptionBudgets hold each eviction back for as long as they say."""
        for pod in pods:
            meta = pod.metadata
            if (
                pod.spec.node_name not in leaving
                or pod.ended
                or meta.deletion_timestamp
                or meta.uid in self._evicted
            ):
                continue
            owner = next((one for one in meta.owner_references if one.controller), None)
            if owner is None or owner.kind in ("DaemonSet", "Node") or _MIRROR in meta.annotations:
                continue
            if not self.is_ours(pod) and HOOK not in meta.labels:  # a remedy is for a node that is out of use
                self._evicted.add(meta.uid)
                self.writer.write(Evict(meta.namespace, meta.name, meta.uid))


def _patches(node: KubeNode, mark: NodeMark | None) -> Iterable[Patch]:
    """What brings a node in line with its mark."""
    if (patch := _cordon(node, wanted=mark is not None and mark.by_hand)) is not None:
        yield patch
    if (patch := _taint(node, None if mark is None or mark.by_hand else mark)) is not None:
        yield patch
    if (patch := _status(node, mark)) is not None:
        yield patch


def _cordon(node: KubeNode, *, wanted: bool) -> Patch | None:
    if wanted and not node.spec.unschedulable:
        return _patch(
            node, {"metadata": {"annotations": {CORDONED_BY: "unidle"}}, "spec": {"unschedulable": True}}
        )
    if not wanted and _is_cordoned(node):
        return _patch(
            node, {"metadata": {"annotations": {CORDONED_BY: None}}, "spec": {"unschedulable": None}}
        )
    return None


def _taint(node: KubeNode, mark: NodeMark | None) -> Patch | None:
    """A list of taints is one value: it is replaced only in the version that was read."""
    own = {(taint.value, taint.effect) for taint in node.spec.taints if taint.key == UNFIT}
    if own == (set() if mark is None else {(mark.state, "NoSchedule")}):
        return None
    taints = [_as_json(taint) for taint in node.spec.taints if taint.key != UNFIT]
    if mark is not None:
        taints.append({"key": UNFIT, "value": mark.state, "effect": "NoSchedule"})
    ops: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]
    return Patch(NODES, "", node.metadata.name, {"ops": ops}, manner="json")


def _status(node: KubeNode, mark: NodeMark | None) -> Patch | None:
    wanted = ("True", "InUse", "") if mark is None else ("False", _reason(mark.state), mark.text)
    now = _condition(node)
    if now == wanted or (now is None and mark is None):
        return None
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = dict(zip(("status", "reason", "message"), wanted, strict=True)) | {"type": HEALTHY}
    condition["lastHeartbeatTime"] = moment
    if now is None or now[0] != wanted[0]:
        condition["lastTransitionTime"] = moment
    body = {"status": {"conditions": [condition]}}
    return Patch(NODES, "", node.metadata.name, body, manner="strategic", sub="status")


def _patch(node: KubeNode, body: dict[str, Any]) -> Patch:
    return Patch(NODES, "", node.metadata.name, body)


def _right(write: Patch | Evict) -> str:
    """What the write needs, in words of RBAC."""
    if isinstance(write, Evict):
        return "create pods/eviction"
    return f"patch nodes/{write.sub}" if write.sub else "patch nodes"


def _lacking(write: Patch | Evict, right: str, error: KubeError) -> str:
    what = (
        f"pod {write.namespace}/{write.name} is not evicted"
        if isinstance(write, Evict)
        else f"node {write.name} is not marked"
    )
    return f'{what}: {error.problem}; grant the controller "{right}" in a ClusterRole, as the chart does'


def _reason(state: str) -> str:
    """A state as one word in CamelCase."""
    return "".join(part.capitalize() for part in state.replace("-", "_").split("_"))


def _condition(node: KubeNode) -> tuple[str, str, str] | None:
    found = next((one for one in node.status.conditions if one.type == HEALTHY), None)
    return None if found is None else (found.status, found.reason, found.message)


def _is_tainted(node: KubeNode) -> bool:
    return any(taint.key == UNFIT for taint in node.spec.taints)


def _is_cordoned(node: KubeNode) -> bool:
    """By unidle."""
    return CORDONED_BY in node.metadata.annotations


def _as_json(taint: Any) -> dict[str, str]:
    fields = {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.time_added}
    return {name: value for name, value in fields.items() if value}
