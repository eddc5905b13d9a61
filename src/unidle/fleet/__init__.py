"""Nouns of hardware: an immutable snapshot of sites, network tiers, nodes, devices and slices."""

from unidle.fleet.links import GpuLinks
from unidle.fleet.model import (
    WHOLE_PPM,
    Device,
    Fleet,
    Health,
    Link,
    LinkClass,
    Node,
    Slice,
    Tier,
    Vendor,
    slices_of,
)

__all__ = [
    "WHOLE_PPM",
    "Device",
    "Fleet",
    "GpuLinks",
    "Health",
    "Link",
    "LinkClass",
    "Node",
    "Slice",
    "Tier",
    "Vendor",
    "slices_of",
]
