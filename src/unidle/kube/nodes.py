"""A Node object as a node of the fleet, with its health, and where each part of that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet import Health, Node, Tier
from unidle.fleet.labels import UNSCHEDULABLE
from unidle.jobs import Reason
from unidle.kube import objects
from unidle.kube.devices import devices_of
from unidle.kube.quantity import cores, whole
from unidle.kube.tiers import ROOT_KIND, Way, declared_way, way_of

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
UNFIT: Final = "unidle.dev/unfit"
"""Taint of a node that unidle itself has taken out of use, for all others."""
GPU_LINKS: Final = "unidle.dev/gpu-links"
"""Label of a node: the name of its entry in the ``gpu_links`` of a Topology."""
CORDONED_BY: Final = "unidle.dev/cordoned-by"
"""Annotation of a node that unidle has cordoned."""


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How a cluster becomes a fleet.

    ``cpu_devices``: how many CPU devices a node without GPUs offers, 0 for none. ``tier_labels``: the label keys that name
    network tiers, from the node upwards; None: those that are known by convention. ``tiers``: those that are declared, if any
    are. ``gpu_links``: names of declared links between the GPUs of a node.
    """

    cluster: str = "cluster"
    cpu_devices: int = 0
    tier_labels: tuple[str, ...] | None = None
    tiers: tuple[Tier, ...] = ()
    gpu_links: frozenset[str] = frozenset()

    @property
    def root(self) -> Tier:
        return Tier(self.cluster, ROOT_KIND)


@dataclass(frozen=True, slots=True)
class ReadNode:
    """A node and what ``unidle fleet`` shows of it. ``resources``: by device, what a pod requests to get it; ``names``: by device, that of its
    ResourceSlice, or empty. ``sources`` are pairs of what was read and where: ``("devices", "8 x H100: allocatable nvidia.com/gpu")``.
    """

    node: Node
    way: Way
    health: Health
    because: Reason
    resources: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    names: tuple[str, ...] = ()


def read_node(node: objects.KubeNode, slices: Sequence[objects.ResourceSlice], rules: FleetRules) -> ReadNode:
    """What the fleet has of ``node``. ``slices`` are the ResourceSlices of this node.

    A quantity that cannot be read counts as nothing, and a source has the reason.
    """
    labels = node.metadata.labels
    if rules.tiers:
        way = declared_way(labels, rules.tier_labels, rules.tiers)
    else:
        way = way_of(labels, rules.tier_labels, rules.root)
    found = devices_of(node, slices, rules.cpu_devices)
    sources = [("devices", source) for source in found.sources] or [("devices", "none: no allocatable GPU")]
    sources += _network(way, rules)
    links = labels.get(GPU_LINKS, "")
    if links:
        known = "" if links in rules.gpu_links else ", which no Topology declares"
        sources.append(("gpu links", f"{links}: label {GPU_LINKS}{known}"))
    address, kind = _address(node)
    sources.append(("address", f"{address}: {kind}"))
    cpus, bad_cpus = _read(node, "cpu", cores)
    memory, bad_memory = _read(node, "memory", whole)
    sources += [*bad_cpus, *bad_memory]
    taints = _taints(node)
    sources += [("taint", text) for text in taints.values()]
    health, because = health_of(node)
    read = Node(
        id=node.metadata.name,
        parent=way.parent,
        devices=found.devices,
        cpus=cpus,
        memory_bytes=int(memory),
        labels=dict(sorted(labels.items())),
        address=address,
        taints=tuple(taints),
        gpu_links=links if links in rules.gpu_links else "",
        sources=_shown(sources),
    )
    return ReadNode(read, way, health, because, found.resources, tuple(sources), found.names)


def _network(way: Way, rules: FleetRules) -> Iterator[tuple[str, str]]:
    if not way.keys:
        known = way.tiers[-1].id if rules.tiers else rules.cluster
        yield "network", f"{known}: no label names a tier"
    elif rules.tiers:
        yield way.tiers[-1].kind, f"{way.tiers[-1].id}: declared, label {way.keys[0]}"
    else:
        for key, tier in zip(way.keys, way.tiers[1:], strict=True):
            yield tier.kind, f"{tier.id}: label {key}"


_SHOWN: dict[tuple[str, ...], tuple[str, ...]] = {}
_MOST_SHOWN: Final = 10_000


def _shown(sources: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What the fleet keeps of the sources. It has no names of tiers, so that equal nodes share one value."""
    found = []
    for what, text in sources:
        if what not in ("address", "taint"):
            found.append(
                f"{what}: {text if what in ('devices', 'network', 'gpu links') else text.partition(': ')[2]}"
            )
    if len(_SHOWN) >= _MOST_SHOWN:
        _SHOWN.clear()
    return _SHOWN.setdefault(tuple(found), tuple(found))


def health_of(node: objects.KubeNode) -> tuple[Health, Reason]:
    """By the node's conditions: ``fault`` where it is not Ready or the kubelet is silent, ``maintenance`` as it leaves."""
    figures: dict[str, int | float | str] = {"node": node.metadata.name}
    if node.metadata.deletion_timestamp:
        return "maintenance", Reason("node_deleted", "The Node object is being deleted.", figures)
    ready = next((found for found in node.status.conditions if found.type == "Ready"), None)
    if ready is None:
        return "boot", Reason("node_not_ready", "The kubelet has not reported yet.", figures)
    figures |= {"reason": ready.reason, "since": ready.last_transition_time}
    if ready.status == "True":
        return "healthy", Reason("node_ready", "The kubelet reports the node as ready.", figures)
    if ready.status == "Unknown":
        return "fault", Reason("node_unreachable", "The kubelet reports nothing any more.", figures)
    figures["message"] = " ".join(ready.message.split())[:300]
    return "fault", Reason("node_not_ready", "The kubelet reports the node as not ready.", figures)


def _taints(node: objects.KubeNode) -> dict[str, str]:
    """Keys of the taints that keep pods off, each with its source. Those that unidle made follow from its log."""
    own = {UNFIT, UNSCHEDULABLE} if CORDONED_BY in node.metadata.annotations else {UNFIT}
    found = {
        taint.key: f"{taint.key}: {taint.effect}{f' ({taint.value})' if taint.value else ''}"
        for taint in sorted(node.spec.taints, key=lambda taint: (taint.key, taint.effect, taint.value))
        if taint.effect in _KEEPS_OFF and taint.key not in own
    }
    if node.spec.unschedulable and UNSCHEDULABLE not in own:
        found.setdefault(UNSCHEDULABLE, f"{UNSCHEDULABLE}: the node is cordoned")
    return dict(sorted(found.items()))


def _address(node: objects.KubeNode) -> tuple[str, str]:
    for kind in ("InternalIP", "ExternalIP", "Hostname"):
        for found in node.status.addresses:
            if found.type == kind and found.address:
                return found.address, kind
    return node.metadata.name, "the node's name, as it has no address"


def _read(
    node: objects.KubeNode, resource: str, reads: Callable[[str], float]
) -> tuple[float, list[tuple[str, str]]]:
    text = node.status.allocatable.get(resource, "0")
    try:
        return reads(text), []
    except (ValueError, OverflowError):
        return 0.0, [(resource, f"0: allocatable {text!r} is no quantity")]
