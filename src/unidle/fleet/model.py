"""Immutable snapshots of what there is: sites, network tiers, nodes, devices, slices, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unidle.fleet.idle import IdlePolicy
from unidle.fleet.links import GpuLinks
from unidle.fleet.queues import DAILY, UTC, History, Migration, QueueSpec, Zone

WHOLE_PPM = 1_000_000

Health = Literal["healthy", "fault", "repair", "maintenance", "quarantine", "boot"]
LinkClass = Literal["nvlink", "infiniband", "roce", "ethernet"]
Vendor = Literal["nvidia", "amd", "ascend"]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one declared CPU device.

    ``id`` is unique in the fleet (``node/index``). ``slices_ppm`` are the shares that the device is
    cut into and sum to 1,000,000; slice ``k`` is named ``id#k``, and a whole device ``id`` itself.
    ``vendor`` says whose GPU it is; it means nothing for a CPU device. ``number`` is what the vendor's own
    tools count it as, where that is not ``index``.
    """

    id: str
    node: str
    index: int
    kind: Literal["gpu", "cpu"]
    model: str = ""
    uuid: str = ""
    memory_bytes: int = 0
    slices_ppm: tuple[int, ...] = (WHOLE_PPM,)
    vendor: Vendor = "nvidia"
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """The unit that is placed and accounted for."""

    id: str
    device: str
    share_ppm: int


@dataclass(frozen=True, slots=True)
class Node:
    """One host. ``parent`` names the network tier that it hangs from, ``fabric`` what it hangs by.

    Without ``fabric`` that is the parent's. ``gpu_links`` names how its GPUs reach each other, in
    ``Fleet.gpu_links``: alike nodes share one entry. Without it that is not known.
    """

    id: str
    parent: str
    devices: tuple[Device, ...]
    cpus: float = 0.0
    memory_bytes: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    fabric: LinkClass | None = None
    taints: tuple[str, ...] = ()  # keep jobs off that do not tolerate them
    gpu_links: str = ""


@dataclass(frozen=True, slots=True)
class Tier:
    """One vertex of the network tree (site, zone, spine, leaf, NVLink domain, ...).

    ``fabric`` is the class of the links inside it; without one it is that of the tier above.
    """

    id: str
    kind: str
    parent: str | None = None
    fabric: LinkClass | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two vertices of the tree, or one from each vertex of a kind to the vertex above.

    In the second form ``tier`` is the kind (``node`` and ``device`` too), and ``a`` and ``b`` are empty.
    The bandwidth is that of one direction, in bit/s.
    """

    a: str
    b: str
    bandwidth_bps: int
    latency_ns: int = 0
    fabric: LinkClass | None = None
    tier: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A snapshot. Node and device order is the order of declaration, which first fit follows."""

    tiers: tuple[Tier, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    prices_per_device_hour: dict[str, float] = field(default_factory=dict)
    currency: str = "USD"
    source: str = "discovered"
    queues: tuple[QueueSpec, ...] = ()
    zone: Zone = UTC  # of the queues' time windows
    migration: Migration | None = None  # None: no running job is moved
    gpu_links: dict[str, GpuLinks] = field(default_factory=dict)
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    history: History = DAILY

    def devices(self) -> list[Device]:
        return [d for n in self.nodes for d in n.devices]

    def slices(self) -> list[Slice]:
        return [s for d in self.devices() for s in slices_of(d)]


def slices_of(device: Device) -> list[Slice]:
    """The slices of one device, in order; a whole device is a slice with the device's own name."""
    if len(device.slices_ppm) == 1:
        return [Slice(device.id, device.id, device.slices_ppm[0])]
    return [Slice(f"{device.id}#{k}", device.id, ppm) for k, ppm in enumerate(device.slices_ppm)]
