"""Trees of sysfs as the kernel's KFD driver makes them, written from the documented format: no machine had them.

Sources: the kernel's ``kfd_topology.c`` and ``kfd_crat.c`` for names and units of properties, AMD's data sheets for
how GPUs are linked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
PCIE, XGMI = 2, 11


def pci_device(sysfs: Path, bus: str, below: str, numa: int = -1, **files: str) -> None:
    """A PCI device below a root complex and bridges, linked from the bus's list as the kernel does."""
    device = sysfs / "devices" / below / bus
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{numa}\n")
    for name, text in files.items():
        (device / name).write_text(text + "\n")
    listed = sysfs / "bus/pci/devices"
    listed.mkdir(parents=True, exist_ok=True)
    (listed / bus).symlink_to(device)


def lines(properties: Mapping[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in properties.items())


def node(
    sysfs: Path, number: int, gpu_id: int, properties: Mapping[str, int], banks: Mapping[int, int]
) -> Path:
    """One node; ``banks`` are sizes in bytes by heap type (0: of the host, 1 and 2: on the GPU)."""
    path = sysfs / f"class/kfd/kfd/topology/nodes/{number}"
    path.mkdir(parents=True)
    (path / "gpu_id").write_text(f"{gpu_id}\n")
    (path / "name").write_text("ip discovery\n" if gpu_id else "\n")
    (path / "properties").write_text(lines(properties))
    for k, (heap_type, size) in enumerate(banks.items()):
        bank = path / f"mem_banks/{k}"
        bank.mkdir(parents=True)
        (bank / "properties").write_text(
            lines({"heap_type": heap_type, "size_in_bytes": size, "flags": 0, "width": 8192})
        )
    return path


def link(path: Path, kind: int, here: int, there: int, weight: int, one: int = 0, every: int = 0) -> None:
    """A link of a node; bandwidths in MB/s: that of one physical link, and that of all between the two."""
    links = path / "io_links"
    at = links / str(len(list(links.glob("*"))))
    at.mkdir(parents=True)
    said = {
        "type": kind, "version_major": 0, "version_minor": 0, "node_from": here, "node_to": there, "weight": weight,
        "min_latency": 0, "max_latency": 0, "min_bandwidth": one, "max_bandwidth": every,
        "recommended_transfer_size": 0, "recommended_sdma_engine_id_mask": 0, "flags": 1,
    }  # fmt: skip
    (at / "properties").write_text(lines(said))


def cpus(sysfs: Path, sockets: int) -> None:
    for k in range(sockets):
        node(
            sysfs,
            k,
            0,
            {"cpu_cores_count": 96, "simd_count": 0, "mem_banks_count": 1, "io_links_count": 1},
            {0: 768 * GIB},
        )
        numa = sysfs / f"devices/system/node/node{k}"
        numa.mkdir(parents=True)
        (numa / "cpulist").write_text(f"{k * 96}-{k * 96 + 95}\n")


def gpu(
    sysfs: Path,
    number: int,
    bus: int,
    device_id: int,
    gfx: int,
    memory: int,
    unique: int,
    numa: int,
    **files: str,
) -> Path:
    """A GPU on a port of its own of its socket's root complex."""
    properties = {
        "cpu_cores_count": 0, "simd_count": 1216, "mem_banks_count": 1, "caches_count": 500, "io_links_count": 8,
        "p2p_links_count": 0, "gfx_target_version": gfx, "vendor_id": 4098, "device_id": device_id,
        "location_id": bus << 8, "domain": 0, "drm_render_minor": 128 + number, "hive_id": 1, "unique_id": unique, "num_xcc": 8,
    }  # fmt: skip
    below = f"pci0000:{numa * 8:x}0/0000:{numa * 8:x}0:{number:02x}.0"
    pci_device(sysfs, f"0000:{bus:02x}:00.0", below, numa, **files)
    return node(sysfs, number, 30_000 + number, properties, {1: memory})


def mi300x(sysfs: Path) -> None:
    """Eight MI300X, each with one xGMI link to each other one; two sockets."""
    cpus(sysfs, 2)
    for k in range(8):
        path = gpu(
            sysfs, 2 + k, 0x05 + 0x10 * k, 0x74A1, 90402, 192 * GIB, 0x5EED_0000_0000_0000 + k, k // 4,
            product_name="AMD Instinct MI300X OAM",
        )  # fmt: skip
        link(path, PCIE, 2 + k, k // 4, 20, 312, 64_000)
        for other in range(8):
            if other != k:
                link(path, XGMI, 2 + k, 2 + other, 15, 64_000, 64_000)


def mi250x(sysfs: Path) -> None:
    """Four packages of two dies: four links inside, one or two to the next package, none to the opposite one."""
    cpus(sysfs, 1)
    for k in range(8):
        path = gpu(sysfs, 1 + k, 0xC0 + k, 0x7408, 90010, 64 * GIB, 0xABC0 + k, 0, revision="0x01")
        for other in range(8):
            if other == k:
                continue
            apart = abs(other // 2 - k // 2)
            if not apart:
                link(path, XGMI, 1 + k, 1 + other, 15, 50_000, 200_000)
            elif apart in (1, 3):
                link(path, XGMI, 1 + k, 1 + other, 15, 50_000, 50_000 * (1 + (other + k) % 2))
            else:
                link(path, XGMI, 1 + k, 1 + other, 30, 50_000, 50_000)


def mi210_pair(sysfs: Path) -> None:
    """Two cards without a bridge between them, on two sockets, and one more that this process may not open."""
    cpus(sysfs, 2)
    for k in range(2):
        path = gpu(sysfs, 2 + k, 0x23 + 0x60 * k, 0x740F, 90010, 64 * GIB, 0, k, revision="0x02")
        link(path, PCIE, 2 + k, k, 20, 312, 32_000)
    hidden = sysfs / "class/kfd/kfd/topology/nodes/4"
    hidden.mkdir()
    for name in ("gpu_id", "properties"):  # the kernel refuses to read them
        (hidden / name).write_text("")
