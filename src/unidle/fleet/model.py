"""Immutable snapshots of hardware: sites, network tiers, nodes, devices, slices, links."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from unidle.fleet.links import GpuLinks
from unidle.fleet.policies import GuardPolicy, IdlePolicy, ProfilePolicy, RetentionPolicy, WatchSources
from unidle.fleet.queues import DAILY, USUAL_ORDER, UTC, Migration, QueueOrder, QueueSpec, UsageDecay, Zone

WHOLE_PPM = 1_000_000

Health = Literal["healthy", "fault", "repair", "maintenance", "quarantine", "boot"]
Barred = Health | Literal["taken"]
"""Why no job may be placed on a node or device: its health, or others use it."""
LinkClass = Literal["nvlink", "infiniband", "roce", "ethernet"]
Vendor = Literal["nvidia", "amd", "ascend"]
PartMode = Literal["mig", "mps", "time", "quota"]
CutMode = Literal["whole", PartMode]
PART_MODES: Final[dict[str, tuple[PartMode, ...]]] = {
    "cpu": ("quota",), "nvidia": ("mig", "mps", "time"), "amd": ("time",), "ascend": ("time",)
}  # fmt: skip
"""The ways to cut a device, by vendor of a GPU, else by kind: MIG and MPS are NVIDIA's."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a device may be divided for jobs that request a part of it.

    ``compute_ppm`` and ``memory_ppm`` are the amounts that may be promised, in millionths: 1,500,000 is one and a
    half times. ``why_not``: for declared modes, the reason why this machine does not offer them.
    """

    modes: tuple[CutMode, ...]
    compute_ppm: int = WHOLE_PPM
    memory_ppm: int = WHOLE_PPM
    why_not: tuple[tuple[CutMode, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CutPart:
    """One part of a device that was cut on demand, made for one rank of ``job``; the rest has no job.

    ``name`` is unique on the device and never reused. ``share_ppm`` is what it counts in the ledger;
    ``compute_ppm`` and ``memory_bytes`` are what was promised. ``profile`` and ``start`` are those of a MIG
    instance.
    """

    name: str
    share_ppm: int
    job: str = ""
    compute_ppm: int = 0
    memory_bytes: int = 0
    profile: str = ""
    start: int = -1


@dataclass(frozen=True, slots=True)
class Cut:
    """How a device is cut now: parts in use, then the rest, if any. Shares sum to 1,000,000."""

    mode: CutMode
    parts: tuple[CutPart, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one declared CPU device.

    ``id`` is unique in the fleet (``node/index``). ``slices_ppm`` are the shares that the device is declared to
    be cut into and sum to 1,000,000; slice ``k`` is named ``id#k``, and a whole device ``id`` itself. ``vendor``
    is the vendor of a GPU; it is ignored for a CPU device. ``number`` is its number in the vendor's tools, if
    that is not ``index``.

    ``sharing`` is there where jobs may have it cut, and ``cut`` while some have. ``generation`` counts how often
    it was cut again; from 1 on it is part of the names of slices, so that a name denotes one share.
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
    sharing: Sharing | None = None
    generation: int = 0
    cut: Cut | None = None

    @property
    def in_parts(self) -> bool:
        """Whether its slices are parts of it."""
        return self.cut is not None or len(self.slices_ppm) > 1


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
    ``Fleet.gpu_links``: equal nodes share one entry. Without it, the links are unknown.
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
    netns: str = ""  # the network namespace of this machine that its ranks run in
    watch: WatchSources | None = None  # where the signs of its faults are read
    sources: tuple[str, ...] = ()  # where a cluster says so: "devices: 8 x H100: allocatable nvidia.com/gpu"


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
class LinkMeasured:
    """95 % intervals of what a probe measured of a link, in the units of :class:`Link`, and the part of segments lost."""

    bandwidth_bps: tuple[int, int]
    latency_ns: tuple[int, int]
    flow_bps: tuple[int, int]
    loss_ppm: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two vertices of the tree, or one from each vertex of a kind to the vertex above.

    In the second form ``tier`` is the kind (``node`` and ``device`` too), and ``a`` and ``b`` are empty.
    The bandwidth is that of one direction, in bit/s; ``flow_bps`` is the most that one TCP flow carries of it, 0 where
    that is not known. The latency is that of one direction, too.
    """

    a: str
    b: str
    bandwidth_bps: int
    latency_ns: int = 0
    fabric: LinkClass | None = None
    tier: str = ""
    flow_bps: int = 0
    measured: LinkMeasured | None = None


HOSTS: Final = "hosts"
"""Source of a fleet whose nodes join, whichever file has the rest."""


@dataclass(frozen=True, slots=True)
class HostDevices:
    """How devices of hosts that join are cut: those of a kind, on hosts that have all of ``labels``.

    ``sharing`` has the modes that are allowed; each host has those of them that it offers.
    """

    kind: Literal["gpu", "cpu"]
    labels: dict[str, str] = field(default_factory=dict)
    slices_ppm: tuple[int, ...] = (WHOLE_PPM,)
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """A snapshot. Node and device order is the order of declaration, which first fit follows."""

    tiers: tuple[Tier, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    prices_per_device_hour: dict[str, float] = field(default_factory=dict)
    currency: str = "USD"
    source: str = "discovered"  # HOSTS, or the file that declares it
    queues: tuple[QueueSpec, ...] = ()
    zone: Zone = UTC  # of the queues' time windows
    migration: Migration | None = None  # None: no running job is moved
    gpu_links: dict[str, GpuLinks] = field(default_factory=dict)
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    guard: GuardPolicy = field(default_factory=GuardPolicy)
    history: UsageDecay = DAILY
    profile: ProfilePolicy = field(default_factory=ProfilePolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    host_devices: tuple[HostDevices, ...] = ()  # of hosts that join; the first that fits a device counts
    sources: tuple[str, ...] = ()  # of a cluster, what is declared where: "queues: 3 objects"
    peak_tflops: dict[str, float] = field(default_factory=dict)  # by model; of others, the data sheets'
    order: QueueOrder = USUAL_ORDER
    filler_price: float | None = None  # of a device-hour of filler jobs; None: as of other jobs

    def devices(self) -> list[Device]:
        return [d for n in self.nodes for d in n.devices]

    def slices(self) -> list[Slice]:
        return [s for d in self.devices() for s in slices_of(d)]


def slices_of(device: Device) -> list[Slice]:
    """The slices of one device, in order; one that was never cut is a slice with the device's own name."""
    if device.cut is not None:
        return [Slice(f"{device.id}#{part.name}", device.id, part.share_ppm) for part in device.cut.parts]
    shares, generation = device.slices_ppm, device.generation
    if generation:
        return [Slice(f"{device.id}#{generation}.{k}", device.id, ppm) for k, ppm in enumerate(shares)]
    if len(shares) == 1:
        return [Slice(device.id, device.id, shares[0])]
    return [Slice(f"{device.id}#{k}", device.id, ppm) for k, ppm in enumerate(shares)]


def is_cuttable(device: Device) -> bool:
    """Whether a rank may get less than all of it, or something else in its place."""
    return len(device.slices_ppm) > 1 or (device.sharing is not None and "mig" in device.sharing.modes)


def device_of(slice_id: str) -> str:
    """The id of the device that a slice is of."""
    return slice_id.partition("#")[0]


def models_of(fleet: Fleet) -> tuple[str, ...]:
    """The models of devices that a fleet has, in order."""
    return tuple(sorted({device.model for node in fleet.nodes for device in node.devices if device.model}))


def declared_ppm(device: Device, slice_id: str) -> int:
    """The share of a slice of a device that is cut as declared, whatever its generation."""
    number = slice_id.partition("#")[2].rpartition(".")[2]
    return device.slices_ppm[int(number) if number else 0]


def as_declared(fleet: Fleet) -> Fleet:
    """The fleet without what became of its devices since: cuts and generations."""
    nodes = tuple(map(declared_node, fleet.nodes))
    return fleet if nodes == fleet.nodes else replace(fleet, nodes=nodes)


def declared_node(node: Node) -> Node:
    """The node without what became of its devices since."""
    if not any(device.generation for device in node.devices):
        return node
    return replace(node, devices=tuple(replace(d, generation=0, cut=None) for d in node.devices))


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """``number`` is its number in the vendor's visible-devices variable, ``bus_id`` its PCI address."""

    number: int
    model: str
    uuid: str = ""
    memory_bytes: int = 0
    bus_id: str = ""
