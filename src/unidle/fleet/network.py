"""What the links of the network tree carry: class and bandwidth of each vertex's way up.

Declared links count as they are. What is not declared is modelled, and marked so, by these defaults
(one direction):

- a GPU inside its node: NVLink at 2.4 Tbit/s (12 links of an A100, 300 GB/s); a CPU device 100 Gbit/s;
- a node: 400 Gbit/s for each GPU (InfiniBand NDR, RoCE), 100 Gbit/s in all (Ethernet), and inside an
  NVLink domain also what its GPUs have;
- a tier: half of what hangs from it, 2:1 oversubscribed (an NVLink domain: its nodes' ports); between
  roots 10 Gbit/s, a WAN.

A gang that crosses classes is not carried by any: a tier of one class below a tier of another ends it.

Source of the rates: the data sheets of A100 (NVLink 3) and of ConnectX-7.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from unidle.fleet.labels import NVLINK_KINDS
from unidle.fleet.model import Fleet, Link, LinkClass, Node, Tier

CLASSES: Final[tuple[LinkClass, ...]] = ("nvlink", "infiniband", "roce", "ethernet")
GBPS: Final = 1_000_000_000
NVLINK_BPS: Final = 2_400 * GBPS
PORT_BPS: Final = 400 * GBPS
ETHERNET_BPS: Final = 100 * GBPS
WAN_BPS: Final = 10 * GBPS
OVERSUBSCRIPTION: Final = 2

How = Literal["declared", "modelled"]


@dataclass(frozen=True, slots=True)
class Uplink:
    """The way from a vertex to the one above it: bandwidth in bit/s, one direction, by class."""

    bps: dict[LinkClass, int] = field(default_factory=dict)
    how: How = "modelled"


@dataclass(frozen=True, slots=True)
class NetworkTree:
    """``up`` by tier and node; ``inside_bps`` by node: what one device has to those next to it."""

    up: dict[str, Uplink]
    inside_bps: dict[str, int]


def network_of(fleet: Fleet) -> NetworkTree:
    """The links of ``fleet``, declared ones first. A link of one vertex precedes one of its kind.

    A link of a kind that has a class is for the vertices of that class; for all of them where none has it.

    A link between vertices of which neither is above the other joins the branches that hold them: it
    counts for the way up of both ends.
    """
    tiers = {tier.id: tier for tier in fleet.tiers}
    parents = {tier.id: tier.parent for tier in fleet.tiers} | {n.id: n.parent or None for n in fleet.nodes}
    classes = _Classes(tiers)
    kinds = _by_kind(fleet.links)
    own = _by_vertex(fleet.links, parents, classes)
    up: dict[str, Uplink] = {}
    below: dict[str, dict[LinkClass, int]] = {}
    inside = {n.id: _inside(n, kinds.get("device", ())) for n in fleet.nodes}
    found_at = _classes_by_kind(fleet, classes)
    for node in fleet.nodes:
        fabric = node.fabric or classes.within(node.parent)
        outside = classes.above(node.parent)
        declared = own.get(node.id) or _declared(kinds.get("node", ()), fabric, outside, found_at["node"])
        found = declared or _of_node(node, fabric, outside, inside[node.id])
        up[node.id] = Uplink(found, "declared" if declared else "modelled")
        _add(below, node.parent, found)
    for tier in _upwards(fleet.tiers):
        fabric = classes.above(tier.id)
        declared = own.get(tier.id) or _declared(
            kinds.get(tier.kind, ()), fabric, fabric, found_at[tier.kind]
        )
        found = declared or _of_tier(tier, fabric, classes.outside(tier), below.get(tier.id, {}))
        up[tier.id] = Uplink(found, "declared" if declared else "modelled")
        _add(below, tier.parent, found)
    return NetworkTree(up, inside)


class _Classes:
    """Which class the links inside a tier, and above it, have."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._found: dict[str, LinkClass] = {}

    def within(self, tier: str | None) -> LinkClass:
        """Of the links inside ``tier``: its own, else that of the nearest tier above, else Ethernet."""
        way: list[str] = []
        here = self._tiers.get(tier or "")
        found: LinkClass = "ethernet"
        while here is not None:
            way.append(here.id)
            if here.id in self._found:
                found = self._found[here.id]
                break
            if here.fabric is not None or here.kind in NVLINK_KINDS:
                # an NVLink domain says nothing about the tiers around it
                found = here.fabric or "nvlink"
                break
            here = self._tiers.get(here.parent or "")
        self._found.update(dict.fromkeys(way, found))
        return found

    def above(self, tier: str) -> LinkClass:
        """Of the link from ``tier`` to its parent: the parent's, else the one that it has inside."""
        here = self._tiers.get(tier)
        found = (self.outside(here) if here is not None else None) or self.within(tier)
        return found if found != "nvlink" or here is None or self._in_nvlink(here) else "infiniband"

    def outside(self, tier: Tier) -> LinkClass | None:
        """What is declared for the links around ``tier``, if anything is."""
        here = self._tiers.get(tier.parent or "")
        while here is not None:
            if here.fabric is not None or here.kind in NVLINK_KINDS:
                return here.fabric or "nvlink"
            here = self._tiers.get(here.parent or "")
        return None

    def _in_nvlink(self, tier: Tier) -> bool:
        return self.outside(tier) == "nvlink"


def _by_kind(links: Iterable[Link]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links:
        if link.tier:
            found.setdefault(link.tier, []).append(link)
    return found


def _by_vertex(
    links: Iterable[Link], parents: Mapping[str, str | None], classes: _Classes
) -> dict[str, dict[LinkClass, int]]:
    found: dict[str, dict[LinkClass, int]] = {}
    for link in links:
        if link.tier:
            continue
        if parents.get(link.a) == link.b:
            ends: tuple[str, ...] = (link.a,)
        elif parents.get(link.b) == link.a:
            ends = (link.b,)
        else:
            ends = (link.a, link.b)
        for end in ends:
            fabric = link.fabric or classes.within(parents.get(end))
            has = found.setdefault(end, {})
            has[fabric] = max(has.get(fabric, 0), link.bandwidth_bps)
    return found


def _classes_by_kind(fleet: Fleet, classes: _Classes) -> dict[str, set[LinkClass]]:
    """The classes of the ways up of each kind of vertex."""
    found: dict[str, set[LinkClass]] = {"node": set()}
    for node in fleet.nodes:
        fabric = node.fabric or classes.within(node.parent)
        found["node"].add(classes.above(node.parent) if fabric == "nvlink" else fabric)
    for tier in fleet.tiers:
        found.setdefault(tier.kind, set()).add(classes.above(tier.id))
    return found


def _declared(
    links: Iterable[Link], fabric: LinkClass, outside: LinkClass, others: Container[LinkClass]
) -> dict[LinkClass, int]:
    """What the links of its kind give a vertex of class ``fabric`` (out of an NVLink domain ``outside``).

    A class that ``others`` of the kind have, and it has not, is theirs.
    """
    own = (fabric, outside) if fabric == "nvlink" else (fabric,)
    return {
        link.fabric or fabric: link.bandwidth_bps
        for link in links
        if link.fabric is None or link.fabric in own or link.fabric not in others
    }


def _of_node(node: Node, fabric: LinkClass, outside: LinkClass, inside_bps: int) -> dict[LinkClass, int]:
    devices = max(1, sum(device.kind == "gpu" for device in node.devices))
    if fabric != "nvlink":
        return {fabric: _ports(fabric, devices)}
    # in an NVLink domain the node has ports out of it as well
    found: dict[LinkClass, int] = {"nvlink": inside_bps * devices}
    if outside != "nvlink":
        found[outside] = _ports(outside, devices)
    return found


def _ports(fabric: LinkClass, devices: int) -> int:
    return PORT_BPS * devices if fabric in ("infiniband", "roce") else ETHERNET_BPS


def _inside(node: Node, links: Iterable[Link]) -> int:
    for link in links:
        return link.bandwidth_bps
    return NVLINK_BPS if any(device.kind == "gpu" for device in node.devices) else ETHERNET_BPS


def _of_tier(
    tier: Tier, fabric: LinkClass, outside: LinkClass | None, below: Mapping[LinkClass, int]
) -> dict[LinkClass, int]:
    if tier.parent is None:
        return {fabric: WAN_BPS}
    if tier.kind in NVLINK_KINDS and outside != "nvlink":
        # the nodes' own ports lead out of the domain, there is no switch to be oversubscribed
        ports: dict[LinkClass, int] = {name: bps for name, bps in below.items() if name != "nvlink"}
        return ports or {fabric: ETHERNET_BPS}
    carried: dict[LinkClass, int] = {name: bps // OVERSUBSCRIPTION for name, bps in below.items()}
    if outside is not None:
        return {outside: carried.get(outside) or max(carried.values(), default=ETHERNET_BPS)}
    return carried or {fabric: ETHERNET_BPS}


def _add(below: dict[str, dict[LinkClass, int]], parent: str | None, more: Mapping[LinkClass, int]) -> None:
    if parent:
        has = below.setdefault(parent, {})
        for name, bps in more.items():
            has[name] = has.get(name, 0) + bps


def _upwards(tiers: Iterable[Tier]) -> list[Tier]:
    """Each tier after all that hang from it."""
    by_id = {tier.id: tier for tier in tiers}
    depths: dict[str, int] = {}
    for tier in by_id.values():
        way: list[str] = []
        here: Tier | None = tier
        while here is not None and here.id not in depths:
            way.append(here.id)
            here = by_id.get(here.parent or "")
        depth = depths[here.id] if here is not None else -1
        for name in reversed(way):
            depth += 1
            depths[name] = depth
    return sorted(by_id.values(), key=lambda tier: -depths[tier.id])
