"""The network tree that node labels describe: which keys name tiers, in which order, and what they form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet.model import Node, Tier
from unidle.fleet.summary import FLEET_KIND

# Families of well-known keys, each ordered from the node upwards.
_NVIDIA: Final = (
    "accelerator.topograph.run/sub-domain",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/datacenter",
)
_GCE: Final = (
    "cloud.google.com/gce-topology-host",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-block",
)
_PLACES: Final = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
# Topograph counts outwards from the node, AWS downwards from the top of its network.
_OUTWARDS: Final = re.compile(r"fabric\.topograph\.run/tier-([0-9]{1,3})")
_DOWNWARDS: Final = re.compile(r"topology\.k8s\.aws/network-node-layer-([0-9]{1,3})")
_KINDS: Final = {
    "accelerator.topograph.run/sub-domain": "nvlink-part",
    "accelerator.topograph.run/domain": "nvlink",
    "network.topology.nvidia.com/accelerator": "nvlink",
    "cloud.google.com/gce-topology-host": "host",
    "cloud.google.com/gce-topology-subblock": "subblock",
    "cloud.google.com/gce-topology-block": "block",
}
NVLINK_KINDS: Final = frozenset({"nvlink", "nvlink-part", "accelerator"})
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""Taint of a node of a cluster that is cordoned."""
HOST_KEY: Final = "kubernetes.io/hostname"
OWN_KINDS: Final = frozenset({"node", "device"})
"""What the lowest ones are called."""
RESERVED_KINDS: Final = OWN_KINDS | {FLEET_KIND}
"""What unidle calls the lowest ones, and all of it; no tier may be called so."""


@dataclass(frozen=True, slots=True)
class LabelTree:
    """Tiers by labels, roots last, and the tier that each node hangs from, in the order of the nodes."""

    tiers: tuple[Tier, ...]
    parents: tuple[str, ...]


class LabelConflict(ValueError):
    """The labels do not form a tree: the value of ``key`` of ``node`` (an index) conflicts with another node."""

    def __init__(self, problem: str, node: int, key: str, value: str) -> None:
        super().__init__(problem)
        self.problem, self.node, self.key, self.value = problem, node, key, value


def well_known(keys: Iterable[str]) -> tuple[str, ...]:
    """Those of ``keys`` that name tiers by convention, from the node upwards.

    One family of fabric keys is taken (NVIDIA, Topograph, AWS, GCE, in this order), then zone and region.
    """
    known = set(keys)
    outwards = sorted((int(m[1]), key) for key in known if (m := _OUTWARDS.fullmatch(key)))
    downwards = sorted((-int(m[1]), key) for key in known if (m := _DOWNWARDS.fullmatch(key)))
    accelerator = [key for key in _NVIDIA[:3] if key in known]
    families = (
        [key for key in _NVIDIA if key in known] if known & set(_NVIDIA[3:]) else [],
        accelerator + [key for _, key in outwards] if outwards else [],
        accelerator + [key for _, key in downwards] if downwards else [],
        [key for key in _GCE if key in known],
        accelerator,
    )
    family = next((f for f in families if f), [])
    return (*family, *(key for key in _PLACES if key in known))


def kind_of(key: str) -> str:
    """The kind of the tiers that a label key names: ``aiops.io/switch`` makes switches."""
    return _KINDS.get(key) or key.rpartition("/")[2]


def kinds_of(keys: Sequence[str]) -> tuple[str, ...]:
    """One kind for each key; keys that would share a kind keep their full names."""
    short = [kind_of(key) for key in keys]
    return tuple(
        kind if short.count(kind) == 1 and kind not in RESERVED_KINDS else key
        for kind, key in zip(short, keys, strict=True)
    )


def tree_of(nodes: Sequence[Node], keys: Sequence[str], root: Tier) -> LabelTree:
    """The tree that ``keys``, ordered from the node upwards, make of the nodes' labels.

    A node without one of the labels hangs from its next one, and from ``root`` without any. A tier is
    named by its label's value, and ``KIND-VALUE`` where two kinds share the value or a node has it.
    Errors: :class:`LabelConflict` when one tier would have two parents.
    """
    kinds = kinds_of(keys)
    above: dict[tuple[int, str], tuple[int, str] | None] = {}
    lowest: list[tuple[int, str] | None] = []
    for index, node in enumerate(nodes):
        way = [(level, node.labels[key]) for level, key in enumerate(keys) if node.labels.get(key)]
        lowest.append(way[0] if way else None)
        for here, up in itertools.zip_longest(way, way[1:]):
            if above.setdefault(here, up) != up:
                raise _two_parents(keys, index, here, above[here], up)
    names = _names(above, kinds, {node.id for node in nodes} | {root.id})
    # Higher tiers first, as one would declare them; within a level in the order of the nodes.
    found = sorted(above, key=lambda vertex: -vertex[0])
    tiers = [Tier(names[v], kinds[v[0]], names[up] if (up := above[v]) else root.id) for v in found]
    return LabelTree((root, *tiers), tuple(names[vertex] if vertex else root.id for vertex in lowest))


def _names(
    vertices: Mapping[tuple[int, str], object], kinds: Sequence[str], taken: set[str]
) -> dict[tuple[int, str], str]:
    counts: dict[str, int] = {}
    for _, value in vertices:
        counts[value] = counts.get(value, 0) + 1
    names: dict[tuple[int, str], str] = {}
    for level, value in vertices:
        plain = counts[value] == 1 and value not in taken
        names[level, value] = value if plain else f"{kinds[level].rpartition('/')[2]}-{value}"
    return names


def _two_parents(
    keys: Sequence[str],
    node: int,
    here: tuple[int, str],
    first: tuple[int, str] | None,
    second: tuple[int, str] | None,
) -> LabelConflict:
    one, other = (f"{keys[up[0]]} {up[1]}" if up else "nothing above it" for up in (first, second))
    problem = f"{keys[here[0]]} {here[1]} has two parents: {one} by a node before, {other} here"
    return LabelConflict(problem, node, keys[here[0]], here[1])
