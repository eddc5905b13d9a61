"""GPUs of AMD and their links, as the kernel's KFD driver lists them below ``/sys/class/kfd/kfd/topology/nodes``.

No library and no program is asked. Each node there is a CPU socket (``gpu_id`` 0) or a GPU; its ``properties`` are
lines of a name and a number, and so are those of its memory banks and links. Sources: the kernel's
``drivers/gpu/drm/amd/amdkfd`` (``kfd_topology.c``, ``kfd_crat.c``, ``kfd_crat.h``) and its amdgpu documentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.fleet.links import SELF, GpuLinks
from unidle.fleet.model import FoundGpu
from unidle.fleet.pci import cpus_beside, numa_node, pci_way, read_text

NODES: Final = "class/kfd/kfd/topology/nodes"
# Names of models by PCI device and revision, which libdrm brings.
NAMES: Final = (Path("/usr/share/libdrm/amdgpu.ids"), Path("/opt/amdgpu/share/libdrm/amdgpu.ids"))
_XGMI: Final = 11  # CRAT_IOLINK_TYPE_XGMI
_HOP: Final = 15  # the weight of one hop over xGMI; less inside one package
_VRAM: Final = (1, 2)  # heap_type of memory on the GPU, within reach of the CPU or not


@dataclass(frozen=True, slots=True)
class _Node:
    """A GPU's node: its number in the tree, its directory and its properties."""

    number: int
    path: Path
    properties: dict[str, int]


def gpus_by_kfd(
    sysfs: Path = Path("/sys"), names: Iterable[Path] = NAMES
) -> tuple[tuple[FoundGpu, ...], GpuLinks]:
    """The GPUs in the order in which ROCm counts them, and their links by that count.

    GPUs that this process may not open (a container's other ones) are not listed, as ROCm does not list them.
    """
    nodes = _gpu_nodes(sysfs)
    buses = [_bus_id(node.properties) for node in nodes]
    ids = [node.properties.get("unique_id", 0) for node in nodes]
    shared = Counter(ids)  # partitions of one GPU may have the same
    found = tuple(
        FoundGpu(
            k,
            _model(node, bus, sysfs, names),
            f"GPU-{unique:016x}" if unique and shared[unique] == 1 else "",
            _memory_bytes(node.path),
            bus,
        )
        for k, (node, bus, unique) in enumerate(zip(nodes, buses, ids, strict=True))
    )
    return found, _links(nodes, buses, sysfs)


def _gpu_nodes(sysfs: Path) -> list[_Node]:
    found = []
    try:
        paths = list((sysfs / NODES).iterdir())
    except OSError:
        return []
    for path in paths:
        gpu_id = read_text(path / "gpu_id")
        if path.name.isdecimal() and gpu_id.isdecimal() and int(gpu_id):
            properties = _properties(path / "properties")
            if properties:
                found.append(_Node(int(path.name), path, properties))
    return sorted(found, key=lambda node: node.number)


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _bus_id(properties: dict[str, int]) -> str:
    """``location_id`` has the bus in its second byte, device and function in the first."""
    at = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"


def _memory_bytes(node: Path) -> int:
    banks = [_properties(bank / "properties") for bank in sorted((node / "mem_banks").glob("*"))]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _VRAM)


def _model(node: _Node, bus: str, sysfs: Path, names: Iterable[Path]) -> str:
    """The name from the card, else from libdrm's table, else the instruction set (``gfx942``)."""
    device = sysfs / "bus/pci/devices" / bus
    name = read_text(device / "product_name")
    if not name:
        revision = read_text(device / "revision").removeprefix("0x") or "0"
        key = (f"{node.properties.get('device_id', 0):X}", revision.upper().lstrip("0"))
        name = next((name for path in names if (name := _named(path, *key))), "")
    return name or _instruction_set(node.properties.get("gfx_target_version", 0))


def _named(table: Path, device: str, revision: str) -> str:
    """Lines are ``device,<tab>revision,<tab>name``, both numbers in hexadecimal."""
    for line in read_text(table).splitlines():
        cells = [cell.strip() for cell in line.split(",", 2)]
        if len(cells) == 3 and cells[0].upper() == device and cells[1].upper().lstrip("0") == revision:
            return cells[2]
    return ""


def _instruction_set(version: int) -> str:
    """90402 is ``gfx942``, 90010 ``gfx90a``."""
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}" if version else "AMD GPU"


def _links(nodes: Sequence[_Node], buses: Sequence[str], sysfs: Path) -> GpuLinks:
    direct: dict[tuple[int, int], str] = {}
    for node in nodes:
        for link in sorted((node.path / "io_links").glob("*")):
            properties = _properties(link / "properties")
            if properties.get("type") == _XGMI:
                direct[node.number, properties.get("node_to", -1)] = _xgmi(properties)
    ways = [[SELF] * len(nodes) for _ in nodes]
    for i, a in enumerate(nodes):
        for k, b in enumerate(nodes[:i]):
            way = direct.get((a.number, b.number)) or direct.get((b.number, a.number))
            ways[i][k] = ways[k][i] = way or pci_way(buses[i], buses[k], sysfs)
    numa = tuple(numa_node(bus, sysfs) for bus in buses)
    cpus = tuple(cpus_beside(node, sysfs) for node in numa)
    return GpuLinks(tuple(range(len(nodes))), tuple(map(tuple, ways)), numa, cpus)


def _xgmi(link: dict[str, int]) -> str:
    """The number of links is the largest over the smallest bandwidth, which is that of one."""
    if link.get("weight", 0) > _HOP:
        return "XGMI"  # over other GPUs
    one, all_of_them = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    return f"XGMI{min(max(all_of_them // one, 1), 99)}" if one else "XGMI"


def ras_errors(sysfs: Path = Path("/sys")) -> dict[str, int]:
    """By card, the sum of ``ue: N`` in its ``ras/*_err_count`` files (the kernel's amdgpu documentation)."""
    counts: dict[str, int] = {}
    for file in sorted((sysfs / "class/drm").glob("card[0-9]*/device/ras/*_err_count")):
        for line in read_text(file).splitlines():
            name, _, number = line.partition(":")
            if name.strip() == "ue" and number.strip().isdecimal():
                card = file.parts[-4]
                counts[card] = counts.get(card, 0) + int(number)
    return counts
