"""The fleet file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.fleet_guard import GuardPart
from unidle.files.fleet_hosts import HostDevicesPart
from unidle.files.fleet_idle import IdlePart
from unidle.files.fleet_links import GpuLinksPart
from unidle.files.fleet_notices import NoticePart
from unidle.files.fleet_profile import ProfilePart
from unidle.files.fleet_queues import HistoryPart, MigrationPart, OrderPart, QueuePart
from unidle.files.fleet_retention import RetentionPart
from unidle.files.fleet_share import SharingPart
from unidle.files.fleet_watch import WatchPart
from unidle.files.values import (
    END,
    MEMORY_LIMIT_BYTES,
    MEMORY_SAYS,
    PRINTABLE_PATTERN,
    PRINTABLE_SAYS,
    MemoryText,
)
from unidle.fleet import WHOLE_PPM

ID_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?" + END
ID_LENGTH: Final = 253
ID_SAYS: Final = "letters, digits, '-', '.' and '_', with a letter or digit at both ends"

Id = Annotated[str, Meta(pattern=ID_PATTERN, min_length=1, max_length=ID_LENGTH, extra={"says": ID_SAYS})]
# What the names look like once the ranges are expanded is checked then.
Ids = Annotated[
    str,
    Meta(
        pattern=r"^[-A-Za-z0-9._\[\], ]+" + END,
        max_length=ID_LENGTH,
        extra={"says": f"{ID_SAYS}; [1-4] for a range"},
    ),
]
Text = Annotated[
    str,
    Meta(
        pattern=PRINTABLE_PATTERN,
        max_length=256,
        extra={"says": PRINTABLE_SAYS, "remedy": "put it in quotes"},
    ),
]
Memory = Annotated[
    Annotated[int, Meta(ge=0, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
    Meta(extra={"says": f"{MEMORY_SAYS}, at most 1 PiB"}),
]

Fabric = Annotated[
    Literal["infiniband", "roce", "ethernet", "nvlink"] | None,
    Meta(extra={"says": "infiniband, roce, ethernet or nvlink"}, examples=["infiniband"]),
]
LabelKey = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._/]*[A-Za-z0-9])?" + END,
        max_length=317,
        extra={"says": "letters, digits, '-', '.', '_' and '/', with a letter or digit at both ends"},
    ),
]


class TierPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One vertex of the network tree, or several equal ones with a range in ``id``."""

    id: Annotated[Ids, Meta(description="Name, unique among tiers and nodes.", examples=["leaf-[1-4]"])]
    kind: Annotated[
        Text,
        Meta(
            min_length=1,
            description="Kind of tier: site, zone, spine, leaf, NVLink domain, ...",
            examples=["leaf"],
        ),
    ]
    parent: Annotated[
        Id | None, Meta(description="Parent tier. Default: none, for a root.", examples=["site-a"])
    ] = None
    fabric: Annotated[
        Fabric,
        Meta(description="Class of the links inside the tier. Default: the fabric of the parent tier."),
    ] = None


class DevicesPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``count`` equal devices."""

    count: Annotated[int, Meta(ge=1, le=100_000, description="Number of devices.", examples=[8])] = 1
    kind: Annotated[
        Literal["gpu", "cpu"],
        Meta(description="Kind of device: a GPU, or a share of the CPUs.", examples=["gpu"]),
    ]
    model: Annotated[
        Text | None,
        Meta(
            description="Device model, as in prices. Default: cpu for a CPU device, empty for a GPU.",
            examples=["H100"],
        ),
    ] = None
    memory: Annotated[Memory, Meta(description="Memory of each device.", examples=["80GiB"])] = 0
    slices_ppm: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=WHOLE_PPM)], ...],
        Meta(
            min_length=1,
            max_length=1024,
            description="Fixed slices of each device, in millionths of it. Their sum must be 1,000,000.",
            examples=[[500_000, 250_000, 250_000]],
        ),
    ] = (WHOLE_PPM,)
    index: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Index of the first device on the node. Default: the next free index.", examples=[0]
        ),
    ] = None
    uuid: Annotated[
        Text, Meta(description="UUID of the device. Only with count 1.", examples=["GPU-6b1e"])
    ] = ""
    vendor: Annotated[
        Literal["nvidia", "amd", "ascend"], Meta(description="Vendor of the GPU.", examples=["amd"])
    ] = "nvidia"
    share: Annotated[
        SharingPart | None,
        Meta(
            description="Methods to divide the device for jobs that request a part of it. Default: it is not divided.",
            examples=[{"modes": ["mig", "mps"], "oversubscribe": {"compute": 1.5}}],
        ),
    ] = None
    number: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Number of the first device in the vendor's tools. Default: its index; on a node with GPUs of "
            "several vendors, the next number of this vendor.",
            examples=[0],
        ),
    ] = None


class NodePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, or several equal nodes with a range in ``id``."""

    id: Annotated[
        Ids,
        Meta(
            description="Name, unique among tiers and nodes. A range declares several nodes.",
            examples=["n[1-4]"],
        ),
    ]
    parent: Annotated[
        Id | None,
        Meta(
            description="Tier that contains the node. Optional if there is only one.",
            examples=["leaf-1"],
        ),
    ] = None
    devices: Annotated[
        DevicesPart | Annotated[tuple[DevicesPart, ...], Meta(max_length=1024)],
        Meta(
            description="One group of devices, or a list of groups.",
            examples=[{"count": 8, "kind": "gpu", "model": "H100", "memory": "80GiB"}],
            extra={"says": "a mapping, or a list of mappings"},
        ),
    ] = ()
    cpus: Annotated[
        float, Meta(ge=0, le=100_000, description="Number of CPU cores; 0: unknown.", examples=[64])
    ] = 0.0
    memory: Annotated[Memory, Meta(description="Host memory; 0: unknown.", examples=["2TiB"])] = 0
    labels: Annotated[
        dict[LabelKey, Text],
        Meta(max_length=256, description="Labels of the node, with their values.", examples=[{"zone": "a"}]),
    ] = {}
    address: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^[-A-Za-z0-9.:_%\[\], ]+" + END,
                max_length=ID_LENGTH,
                extra={"says": "a host name or an IP address"},
            ),
        ],
        Meta(
            description="Address at which other nodes reach the ranks of this node. A range is expanded in parallel with "
            "the range in id.",
            examples=["10.0.0.[1-4]"],
        ),
    ] = "127.0.0.1"
    netns: Annotated[
        Annotated[str, Meta(pattern=r"^[-A-Za-z0-9._\[\], ]+" + END, max_length=ID_LENGTH)] | None,
        Meta(
            description="Network namespace of this machine (`ip netns`) that its ranks run in, which has the node's "
            "address. For local runs only. A range is expanded in parallel with the range in id. Default: "
            "none.",
            examples=["lab-n[1-4]"],
        ),
    ] = None
    fabric: Annotated[
        Fabric, Meta(description="Class of its link to its tier. Default: the fabric of the tier.")
    ] = None
    taints: Annotated[
        tuple[LabelKey, ...],
        Meta(
            max_length=256,
            description="Taints of the node. Only jobs that tolerate all of them are placed on it.",
            examples=[["maintenance"]],
        ),
    ] = ()
    gpu_links: Annotated[
        Id | None,
        Meta(
            description="Name in gpu_links of the links between its GPUs. Default: unknown.",
            examples=["hgx"],
        ),
    ] = None
    watch: Annotated[
        WatchPart | None,
        Meta(
            description="Sources that are monitored for signs of faults.",
            examples=[{"kernel_log": "/var/log/remote/n[1-4].log"}],
        ),
    ] = None


_Gbps = Annotated[float, Meta(gt=0, le=1_000_000)]
_Us = Annotated[float, Meta(ge=0, le=1e9)]


class MeasuredPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measurement of a link by `unidle span probe`: 95 % intervals, as [low, high]."""

    gbps: Annotated[
        tuple[_Gbps, ...],
        Meta(min_length=2, max_length=2, description="Bandwidth, in 10^9 bit/s.", examples=[[0.9, 1.1]]),
    ]
    latency_us: Annotated[
        tuple[_Us, ...],
        Meta(
            min_length=2, max_length=2, description="Latency, in microseconds.", examples=[[20_000, 20_400]]
        ),
    ]
    flow_gbps: Annotated[
        tuple[_Gbps, ...],
        Meta(
            min_length=2,
            max_length=2,
            description="Rate of one TCP flow, in 10^9 bit/s.",
            examples=[[0.5, 0.6]],
        ),
    ]
    loss_ppm: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="Retransmitted segments, in parts per million.", examples=[12]),
    ] = 0


class LinkPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A link between two tiers or nodes, or the uplink of every vertex of one kind."""

    a: Annotated[Id | None, Meta(description="One end: the id of a tier or node.", examples=["leaf-1"])] = (
        None
    )
    b: Annotated[Id | None, Meta(description="Other end: the id of a tier or node.", examples=["leaf-2"])] = (
        None
    )
    tier: Annotated[
        Text | None,
        Meta(
            description="Kind of tier, node or device, instead of a and b. The entry describes the uplink of each of "
            "them; for device, the links to the other devices of its node.",
            examples=["leaf"],
        ),
    ] = None
    fabric: Annotated[Fabric, Meta(description="Class of the link. Default: the fabric of its tier.")] = None
    gbps: Annotated[
        float,
        Meta(gt=0, le=1_000_000, description="Bandwidth in each direction, in 10^9 bit/s.", examples=[100]),
    ]
    latency_us: Annotated[float, Meta(ge=0, le=1e9, description="Latency in microseconds.", examples=[5])] = (
        0.0
    )
    flow_gbps: Annotated[
        _Gbps | None,
        Meta(description="Maximum rate of one TCP flow, in 10^9 bit/s. Default: unknown.", examples=[0.6]),
    ] = None
    measured: Annotated[
        MeasuredPart | None,
        Meta(
            description="Measured intervals, written by `unidle span probe --write`. Default: not measured.",
            examples=[{"gbps": [0.9, 1.1], "latency_us": [20_000, 20_400], "flow_gbps": [0.5, 0.6]}],
        ),
    ] = None


class TopologyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Source of the network tree if no tiers are declared."""

    labels: Annotated[
        Annotated[tuple[LabelKey, ...], Meta(max_length=32)] | None,
        Meta(
            description="Node labels that name the tiers, from the node upwards. Default: the well-known labels that the "
            "nodes have. An empty list: no labels.",
            examples=[["aiops.io/switch", "topology.kubernetes.io/zone"]],
        ),
    ] = None


class FleetFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sites, network, nodes and devices that jobs are placed on."""

    nodes: Annotated[
        tuple[NodePart, ...],
        Meta(
            min_length=1,
            max_length=200_000,
            description="Nodes, in the order in which they are filled.",
            examples=[[{"id": "n[1-2]", "devices": {"count": 4, "kind": "cpu"}}]],
        ),
    ]
    tiers: Annotated[
        tuple[TierPart, ...],
        Meta(
            max_length=100_000,
            description="Tiers of the network tree, in any order. Default: derived from node labels (see topology), or "
            "one site named site that contains all nodes.",
            examples=[
                [{"id": "site-a", "kind": "site"}, {"id": "leaf-1", "kind": "leaf", "parent": "site-a"}]
            ],
        ),
    ] = ()
    topology: Annotated[
        TopologyPart,
        Meta(
            description="Node labels that define the network tree if no tiers are declared.",
            examples=[{"labels": ["aiops.io/switch"]}],
        ),
    ] = TopologyPart()
    links: Annotated[
        tuple[LinkPart, ...],
        Meta(
            max_length=200_000,
            description="Links between tiers or nodes whose bandwidth is known.",
            examples=[[{"a": "site-a", "b": "site-b", "gbps": 10, "latency_us": 12000}]],
        ),
    ] = ()
    gpu_links: Annotated[
        dict[Id, GpuLinksPart],
        Meta(
            max_length=1000,
            description="Links between the GPUs of one node, by a name that nodes refer to.",
            examples=[{"pairs": {"islands": [[0, 1], [2, 3]], "link": "NV4", "between": "SYS"}}],
        ),
    ] = {}
    prices: Annotated[
        dict[Text, Annotated[float, Meta(ge=0, le=1_000_000)]],
        Meta(
            max_length=10_000,
            description="Price of one device for an hour, by model.",
            examples=[{"H100": 2.5}],
        ),
    ] = {}
    peak_tflops: Annotated[
        dict[Text, Annotated[float, Meta(gt=0, le=1_000_000_000)]],
        Meta(
            max_length=10_000,
            description="Peak speed of one device in TFLOP/s, by model, for MFU: of the type of number that jobs train with. Default: that of "
            "the vendor's data sheet for dense 16-bit numbers, where the model is known.",
            examples=[{"cpu": 0.08}],
        ),
    ] = {}
    filler_price: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Price of one device for an hour of filler jobs (`class: filler`), whatever its model. Default: "
            "as for other jobs.",
            examples=[0.5],
        ),
    ] = None
    queues: Annotated[
        tuple[QueuePart, ...],
        Meta(
            max_length=10_000,
            description="Queues, with the devices that each may use. Default: one queue without a quota.",
            examples=[
                [
                    {"name": "research", "weight": 2},
                    {"name": "nlp", "parent": "research", "limit": {"gpu": 8}},
                ]
            ],
        ),
    ] = ()
    migration: Annotated[
        MigrationPart | None,
        Meta(
            description="Conditions for moving running jobs that can checkpoint, to make room for a gang. Default: no job "
            "is moved.",
            examples=[{"moves_most": 4, "gain_least": 2}],
        ),
    ] = None
    history: Annotated[
        HistoryPart,
        Meta(
            description="Weight of past use in the comparison of queues.",
            examples=[{"half_life_days": 7, "weight": 0.5}],
        ),
    ] = HistoryPart()
    order: Annotated[
        OrderPart,
        Meta(
            description="Order of the jobs inside each queue, and how far a job may fall behind its turn.",
            examples=[{"by": "attained", "bound": "12h"}],
        ),
    ] = OrderPart()
    idle: Annotated[
        IdlePart,
        Meta(
            description="Policy for jobs that hold idle devices.",
            examples=[{"after": "30m", "notice": "15m", "release": True, "exempt": ["interactive"]}],
        ),
    ] = IdlePart()
    guard: Annotated[
        GuardPart | None,
        Meta(
            description="Policy for sick nodes. Default: nodes are neither checked before a gang starts nor repaired.",
            examples=[{"preflight": "quick", "remedy": {"reboot": {"command": ["ipmi-cycle", "{node}"]}}}],
        ),
    ] = None
    profile: Annotated[
        ProfilePart,
        Meta(
            description="Continuous profiles of running jobs, in short sample periods. Default: off.",
            examples=[{"on": True, "every_s": 60, "keep": "24h"}],
        ),
    ] = ProfilePart()
    retention: Annotated[
        RetentionPart | None,
        Meta(
            description="Limits on the files of ended jobs. Default: nothing is removed or compressed.",
            examples=[{"age": "30d", "size": "20GB", "jobs": 10_000}],
        ),
    ] = None
    notices: Annotated[
        tuple[NoticePart, ...],
        Meta(
            max_length=32,
            description="Channels that receive notices of jobs and nodes. Default: none.",
            examples=[[{"webhook": "https://hooks.example.org/unidle", "secret_env": "NOTICE_SECRET"}]],
        ),
    ] = ()
    hosts: Annotated[
        tuple[HostDevicesPart, ...],
        Meta(
            max_length=1000,
            description="How devices of hosts that join are cut (`unidle up --listen`). The first entry that fits a device counts. "
            "Default: they are whole.",
            examples=[[{"kind": "gpu", "share": {"modes": ["mig", "mps"]}}]],
        ),
    ] = ()
    timezone: Annotated[
        str, Meta(max_length=64, description="Time zone of the hours in queues.", examples=["Europe/Berlin"])
    ] = "UTC"
    currency: Annotated[
        str,
        Meta(
            pattern="^[A-Z]{3}" + END,
            description="Currency of the prices (ISO 4217).",
            examples=["EUR"],
            extra={"says": "three capital letters"},
        ),
    ] = "USD"


class HostsFleetFile(FleetFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet whose nodes are the hosts that join it."""

    nodes: tuple[NodePart, ...] = ()
