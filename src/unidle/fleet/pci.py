"""PCI devices and NUMA nodes as the kernel lists them; ``sysfs`` comes in as an argument, so that tests bring a
tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_BUS_ID: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ONE_SWITCH: Final = 2  # below what is shared: a port of the switch, and the device


def numa_node(bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """The NUMA node of the PCI device ``bus_id``; None if the kernel reports none."""
    node = _number(read_text(sysfs / "bus/pci/devices" / short_bus_id(bus_id) / "numa_node"))
    return node if node is not None and node >= 0 else None


def short_bus_id(bus_id: str) -> str:
    """NVML's ``00000000:0F:00.0`` as sysfs names it: ``0000:0f:00.0``."""
    found = _BUS_ID.fullmatch(bus_id.strip().lower())
    if found is None:
        return bus_id.strip().lower()
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def pci_way(a: str, b: str, sysfs: Path = Path("/sys")) -> str:
    """The word for the way over PCIe between two devices, by their PCI addresses; ``SYS`` where one is not known.

    Each bridge on the way is a directory in the path of the device: who share a switch share its ports' upstream
    side. (The words are those of ``nvidia-smi topo -m``.)
    """
    paths = [(sysfs / "bus/pci/devices" / short_bus_id(bus)).resolve().parts for bus in (a, b)]
    ways = [_bridges(path) for path in paths]
    if not all(ways):
        return "SYS"
    if ways[0][0] != ways[1][0]:
        nodes = [numa_node(bus, sysfs) for bus in (a, b)]
        return "NODE" if nodes[0] is not None and nodes[0] == nodes[1] else "SYS"
    shared = sum(1 for _ in _common(*ways))
    if shared == 1:
        return "PHB"
    return "PIX" if max(len(way) for way in ways) - shared <= _ONE_SWITCH else "PXB"


def _bridges(path: Sequence[str]) -> Sequence[str]:
    """From the root complex (``pci0000:00``) down to the device."""
    root = next((k for k, part in enumerate(path) if part.startswith("pci") and ":" in part), None)
    return () if root is None else path[root:]


def _common(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def cpus_beside(node: int | None, sysfs: Path = Path("/sys")) -> str:
    """The CPUs of a NUMA node as the kernel lists them; empty if unknown."""
    return read_text(sysfs / f"devices/system/node/node{node}/cpulist") if node is not None else ""


def read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
