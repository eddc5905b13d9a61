"""Where a node is in the network, by its labels alone, so that one changed node changes no other.

The labels of a node form its way from the cluster down: region, zone, spine, leaf, NVLink domain. A tier's name is that
way (``eu-west.eu-west-1a.leaf3``), so that two racks called ``r1`` in two zones are two, whatever order nodes come in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet import Tier
from unidle.fleet.labels import HOST_KEY, NVLINK_KINDS, kind_of, kinds_of, well_known

TIER: Final = "unidle.dev/tier"
"""Label of a node: the declared tier that it hangs from."""
CLIQUE: Final = "nvidia.com/gpu.clique"
"""NVIDIA GFD: the NVLink domain of several nodes, ``CLUSTER_UUID.CLIQUE``."""
_NVLINK: Final = "nvlink"
ROOT_KIND: Final = "cluster"
_LONGEST: Final = 200
_SEPARATOR: Final = "."


@dataclass(frozen=True, slots=True)
class Way:
    """The tiers from the cluster down to the one that a node hangs from, and the labels that name them: one for each tier
    but the first, or one for a declared tier."""

    tiers: tuple[Tier, ...]
    keys: tuple[str, ...]

    @property
    def parent(self) -> str:
        return self.tiers[-1].id


def way_of(labels: Mapping[str, str], keys: Sequence[str] | None, root: Tier) -> Way:
    """The way of a node with ``labels``. ``keys``: from the node upwards; None: those that are known by convention.

    A node without one of the labels hangs from the next one above.
    """
    chosen = _well_known(labels) if keys is None else tuple(keys)
    kinds = {**dict(zip(chosen, kinds_of(chosen), strict=True)), CLIQUE: _NVLINK}
    used = [key for key in reversed(chosen) if labels.get(key) and key != HOST_KEY]
    tiers = [root]
    name = ""
    for key in used:
        # a dot inside a value is doubled, so that two ways never have one name
        value = labels[key].replace(_SEPARATOR, _SEPARATOR * 2)
        name = f"{name}{_SEPARATOR}{value}" if name else value
        tiers.append(Tier(_short(name, root.id), kinds[key], tiers[-1].id))
    return Way(tuple(tiers), tuple(used))


def declared_way(labels: Mapping[str, str], keys: Sequence[str] | None, tiers: Sequence[Tier]) -> Way:
    """The way of a node below declared tiers: the one that its label :data:`TIER` names, or the first that another label of
    the network names, from the node upwards. Without any, it hangs from the first tier.
    """
    known = {tier.id: tier for tier in tiers}
    for key in (TIER, *(_well_known(labels) if keys is None else keys)):
        name = labels.get(key, "")
        if name in known:
            return Way(_up_from(known[name], known), (key,))
    return Way(_up_from(tiers[0], known), ())


def _up_from(tier: Tier, known: Mapping[str, Tier]) -> tuple[Tier, ...]:
    """The tier and those above it, the highest first."""
    found = [tier]
    while (above := found[-1].parent) is not None:
        found.append(known[above])
    return tuple(reversed(found))


def tiers_of(ways: Iterable[Way], root: Tier) -> tuple[Tier, ...]:
    """All tiers, each after its parent, in an order that depends on them alone."""
    found = {tier.id: (depth, tier) for way in ways for depth, tier in enumerate(way.tiers)}
    found.setdefault(root.id, (0, root))
    return tuple(tier for _, tier in sorted(found.values(), key=lambda entry: (entry[0], entry[1].id)))


def _well_known(labels: Mapping[str, str]) -> tuple[str, ...]:
    keys = well_known(labels)
    if CLIQUE in labels and not any(kind_of(key) in NVLINK_KINDS for key in keys):
        return (CLIQUE, *keys)
    return keys


def _short(name: str, root: str) -> str:
    """``name``, apart from the root's, and with a digest where it is too long."""
    if len(name) > _LONGEST:
        return f"{name[: _LONGEST - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{name}-tier" if name == root else name
