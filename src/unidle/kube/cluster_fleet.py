"""The fleet that a cluster's objects amount to, kept up to date one object at a time.

Each node is read from its own object and its ResourceSlices alone, so one changed node is one node put, however many
there are. The same objects give the same fleet, in whatever order they came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from unidle.events.hosts import OtherPod
from unidle.fleet import HOSTS, Fleet, Node, Tier
from unidle.kube import objects
from unidle.kube.given import Names, NodeGiven, devices_in, named, names_in
from unidle.kube.nodes import FleetRules, ReadNode, read_node
from unidle.kube.protocol import Put, Vanished
from unidle.kube.tiers import tiers_of
from unidle.kube.use import NodeUse, PodUse, node_use, pod_use

JOB_LABEL = "unidle.dev/job"


def is_of_unidle(pod: objects.Pod) -> bool:
    """Whether the pod carries the label that pods of jobs have."""
    return JOB_LABEL in pod.metadata.labels


@dataclass(frozen=True, slots=True)
class FleetChanges:
    """What is otherwise than at the last look. ``tiers``: the tree of tiers has changed, so the fleet is to be read whole.

    ``health`` are nodes whose health or its reason changed; ``used`` what pods of others use of a node now.
    """

    put: tuple[Node, ...] = ()
    gone: tuple[str, ...] = ()
    health: tuple[ReadNode, ...] = ()
    used: tuple[NodeUse, ...] = ()
    tiers: bool = False


@dataclass(slots=True)
class _Entry:
    """One node: its object, what is read of it, what others use of it, and what its kubelet gave to pods."""

    object: objects.KubeNode | None = None
    slices: dict[str, objects.ResourceSlice] = field(default_factory=dict)
    pods: dict[str, PodUse] = field(default_factory=dict)
    read: ReadNode | None = None
    used: NodeUse | None = None
    given: NodeGiven | None = None
    names: Names = field(default_factory=Names)


class ClusterFleet:
    """Takes events of watches of nodes, pods and ResourceSlices; of one thread. ``is_ours``: pods that unidle accounts for
    otherwise. ``held``: ids of devices of a node that jobs of ours hold."""

    def __init__(
        self,
        rules: FleetRules,
        is_ours: Callable[[objects.Pod], bool] = is_of_unidle,
        held: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self.rules = rules
        self._is_ours, self._held = is_ours, held
        self._nodes: dict[str, _Entry] = {}
        self._pod_nodes: dict[str, str] = {}  # by the pod's UID
        self._tiers: Counter[Tier] = Counter()  # how many nodes are below each
        self._changed: set[str] = set()  # nodes whose object or slices changed
        self._used: set[str] = set()  # nodes whose pods changed
        self._was_named: dict[str, Names] = {}
        self._was_used: dict[str, dict[str, tuple[str, ...]]] = {}
        self._moved = False  # a tier came or left

    def was(self, nodes: Iterable[Node], pods: Mapping[str, Iterable[OtherPod]]) -> None:
        """What an earlier controller had. Devices of ``nodes`` keep their ids until a kubelet lists others. ``pods`` of
        others, by node, keep their devices, and that none is left is news, too."""
        self._was_named.update({node.id: names_in(node.devices) for node in nodes})
        self._was_used.update(
            {name: {pod.name: pod.devices for pod in found} for name, found in pods.items()}
        )
        self._used.update(name for name in pods if name in self._nodes)

    def give(self, name: str, given: NodeGiven) -> None:
        """What the kubelet of a node has given to pods, as the agent there reports it."""
        entry = self._nodes.get(name)
        if entry is not None:
            entry.given = given
            self._changed.add(name)
            self._used.add(name)

    def devices_of(self, name: str, ids: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
        """The devices that a pod on a node has by its kubelet's ``ids``, each with how many parts; None where these are not known."""
        read = self.node(name)
        return None if read is None else devices_in(read, ids)

    def given_to(self, name: str, pod: str) -> dict[str, int] | None:
        """The devices of a pod (NAMESPACE/NAME) on a node as its kubelet listed them last; None where that is not known."""
        entry = self._nodes.get(name)
        if entry is None or entry.given is None or entry.given.why or pod not in entry.given.pods:
            return None
        return self.devices_of(name, entry.given.pods[pod])

    def held_by(self, held: Callable[[str], Collection[str]]) -> None:
        """From now on, ids of devices of a node that jobs of ours hold are those."""
        self._held = held

    @property
    def nodes(self) -> Mapping[str, ReadNode]:
        """What is read of each node, with its sources. As of the last :meth:`changes`."""
        return {name: entry.read for name, entry in self._nodes.items() if entry.read is not None}

    def node(self, name: str) -> ReadNode | None:
        """One of :attr:`nodes`."""
        entry = self._nodes.get(name)
        return entry.read if entry is not None else None

    def see_node(self, event: Put[objects.KubeNode] | Vanished[objects.KubeNode]) -> None:
        """A node came, changed or left."""
        name = event.object.metadata.name
        entry = self._entry(name)
        if isinstance(event, Put):
            entry.object = event.object
        elif entry.object is None or entry.object.metadata.uid == event.object.metadata.uid:
            entry.object = None
        self._changed.add(name)

    def see_slice(self, event: Put[objects.ResourceSlice] | Vanished[objects.ResourceSlice]) -> None:
        """A ResourceSlice came, changed or left. One that is of no single node is not used."""
        uid = event.object.metadata.uid
        name = event.object.spec.node_name
        if not name:
            return
        if isinstance(event, Put):
            self._entry(name).slices[uid] = event.object
        else:
            self._entry(name).slices.pop(uid, None)
        self._changed.add(name)

    def see_pod(self, event: Put[objects.Pod] | Vanished[objects.Pod]) -> None:
        """A pod came, changed or left."""
        pod = event.object
        uid = pod.metadata.uid
        use = pod_use(pod) if isinstance(event, Put) and not self._is_ours(pod) else None
        before = self._pod_nodes.get(uid)
        if before is not None and (use is None or pod.spec.node_name != before):
            del self._pod_nodes[uid]
            self._entry(before).pods.pop(uid, None)
            self._used.add(before)
        if use is not None:
            entry = self._entry(pod.spec.node_name)
            if entry.pods.get(uid) != use:
                entry.pods[uid] = use
                self._used.add(pod.spec.node_name)
            self._pod_nodes[uid] = pod.spec.node_name

    def look_again(self, nodes: Iterable[str]) -> None:
        """Which devices of these nodes jobs of ours hold has changed."""
        self._used.update(name for name in nodes if name in self._nodes)

    def changes(self) -> FleetChanges:
        """What the events since the last call changed, in the order of names."""
        put, gone, health = [], [], []
        for name in sorted(self._changed):
            entry = self._nodes[name]
            before = entry.read
            entry.read = self._read(entry)
            if entry.read is not None:
                if before is None or before.node != entry.read.node:
                    put.append(entry.read.node)
                    self._used.add(name)
                if before is None or (before.health, before.because) != (
                    entry.read.health,
                    entry.read.because,
                ):
                    health.append(entry.read)
            elif before is not None:
                gone.append(name)
            self._count(before, entry.read)
        used = [found for name in sorted(self._used) if (found := self._use(name)) is not None]
        for name in self._changed | self._used:
            entry = self._nodes[name]
            if entry.object is None and not entry.slices and not entry.pods:
                del self._nodes[name]
        self._changed.clear()
        self._used.clear()
        moved, self._moved = self._moved, False
        return FleetChanges(tuple(put), tuple(gone), tuple(health), tuple(used), moved)

    def read_by(self, rules: FleetRules) -> None:
        """Read all nodes again by other rules, with the next :meth:`changes`."""
        if rules != self.rules:
            self.rules = rules
            self._changed.update(name for name, entry in self._nodes.items() if entry.read is not None)
            self._moved = True

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """As of the last :meth:`changes`: those that are declared, else those of labels in an order of their own."""
        ways = (read.way for _, read in sorted(self.nodes.items()))
        return self.rules.tiers or tiers_of(ways, self.rules.root)

    def fleet(self) -> Fleet:
        """The whole, as of the last :meth:`changes`: nodes and tiers in the order of their names."""
        found = tuple(read.node for _, read in sorted(self.nodes.items()))
        return Fleet(self.tiers, found, source=HOSTS)

    def _entry(self, name: str) -> _Entry:
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = _Entry()
        return found

    def _read(self, entry: _Entry) -> ReadNode | None:
        if entry.object is None:
            return None
        slices = sorted(entry.slices.values(), key=lambda found: found.metadata.name)
        read = read_node(entry.object, slices, self.rules)
        before = self._was_named.pop(read.node.id, None) or entry.names
        read, entry.names = named(read, entry.given, before)
        return read

    def _count(self, before: ReadNode | None, now: ReadNode | None) -> None:
        if before is not None and now is not None and before.way.tiers == now.way.tiers:
            return
        for tier in before.way.tiers if before is not None else ():
            self._tiers[tier] -= 1
            if not self._tiers[tier]:
                del self._tiers[tier]
                self._moved = True
        for tier in now.way.tiers if now is not None else ():
            self._moved |= tier not in self._tiers
            self._tiers[tier] += 1

    def _use(self, name: str) -> NodeUse | None:
        """What others use of a node, where that is news. A node that is no more needs no report."""
        entry = self._nodes[name]
        before = entry.used
        if entry.read is None:
            entry.used = None
            return None
        node = entry.read.node
        earlier = self._was_used.pop(name, None)
        had = (earlier or {}) if before is None else {pod.name: pod.devices for pod in before.pods}
        read = entry.read
        given = {
            use.name: found
            for use in entry.pods.values()
            if (found := self.given_to(name, use.name)) is not None
        }
        entry.used = node_use(
            name, entry.pods.values(), node.devices, read.resources, self._held(name), had, given
        )
        same = before is not None and replace(before, because=entry.used.because) == entry.used
        unsaid = before is None and not entry.pods and earlier is None
        return None if same or unsaid else entry.used
