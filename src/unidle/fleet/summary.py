"""Free capacity of a cluster in few numbers: small enough to send to a process that dispatches jobs to several
clusters.

Equal nodes are counted, not listed, and so are network domains with the same content: the size of a summary
depends on how many kinds of them there are, not on how many nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from unidle.fleet.model import WHOLE_PPM, CutMode, LinkClass, Vendor

FLEET_KIND: Final = "fleet"


@dataclass(frozen=True, slots=True)
class MayCut:
    """In which ways, and how much of one device may be promised; ``factor_ppm`` is how often a device as a whole may."""

    modes: tuple[CutMode, ...]
    compute_ppm: int
    memory_bytes: int
    factor_ppm: int = WHOLE_PPM


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Devices of one kind on nodes that a job cannot tell apart; ``share_ppm`` of each is one slice.

    ``cut`` is there where they may be cut on demand. With ``rest`` they are what is left of such devices in parts.
    """

    kind: Literal["gpu", "cpu"]
    vendor: Vendor
    model: str
    memory_bytes: int
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    share_ppm: int = WHOLE_PPM
    cut: MayCut | None = None
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Stock:
    """``nodes`` nodes with ``slices`` slices of class ``of`` (an index) each, of which ``free`` are free."""

    of: int
    slices: int
    free: int
    nodes: int


@dataclass(frozen=True, slots=True)
class DomainStock:
    """``count`` domains of which each holds this."""

    count: int
    stock: tuple[Stock, ...]


@dataclass(frozen=True, slots=True)
class TierStock:
    """The domains of one kind of tier; the last one of a summary is the whole fleet."""

    kind: str
    domains: tuple[DomainStock, ...]


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """What a leaf queue may still use, in thousandths of a device by resource, and who waits in it."""

    queue: str
    free_milli: dict[str, int]
    bound_milli: dict[str, int]
    waiting_jobs: int


@dataclass(frozen=True, slots=True)
class Release:
    """Slices of one kind that are expected to be given back ``in_ns`` after the summary was made."""

    in_ns: int
    kind: str
    slices: int


@dataclass(frozen=True, slots=True)
class CapacitySummary:
    """One cluster at ``time_ns``. ``waiting`` and ``pending`` are devices by kind that waiting jobs need: jobs
    that the scheduler has evaluated, and those that it has not. ``hidden`` are keys of labels with so many values
    that they are left out.
    """

    time_ns: int
    classes: tuple[NodeClass, ...]
    tiers: tuple[TierStock, ...]
    queues: tuple[QueueRoom, ...] = ()
    releases: tuple[Release, ...] = ()
    waiting: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    fabrics: tuple[LinkClass, ...] = ()
    hidden: tuple[str, ...] = ()
    prices_per_device_hour: dict[str, float] = field(default_factory=dict)
    currency: str = "USD"
