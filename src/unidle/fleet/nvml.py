"""The links of one node's GPUs as reported by NVML and sysfs.

NVML comes in as an argument (the module ``pynvml`` fits), so that recorded answers read the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from unidle.fleet.links import SELF, GpuLinks
from unidle.fleet.pci import cpus_beside, numa_node, pci_way, short_bus_id

# nvmlGpuTopologyLevel_t, by the NVML API reference; nvidia-smi prints the same levels as these words.
_LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH


class Nvml(Protocol):
    """What unidle calls of ``pynvml`` by its own name; what old drivers lack is looked up."""

    NVMLError: type[Exception]
    NVML_GPU_UTILIZATION_SAMPLES: int
    NVML_NVLINK_MAX_LINKS: int

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetPciInfo(self, handle: Any, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetSamples(self, device: Any, kind: int, since_us: int, /) -> tuple[int, Any]: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetProcessUtilization(self, handle: Any, since_us: int, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetNvLinkState(self, device: Any, link: int, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Any, link: int, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Any, device2: Any, /) -> int: ...  # noqa: N802


def answering(nvml: Nvml) -> tuple[dict[int, Any], dict[int, str]]:
    """Handles of the GPUs that answer, and why each of the others does not, by number.

    One that fell off the bus is still counted, and may not keep the others from being used. Errors: NVML's own,
    from a driver that does not answer at all.
    """
    handles: dict[int, Any] = {}
    silent: dict[int, str] = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            nvml.nvmlDeviceGetPciInfo(handle)
        except nvml.NVMLError as error:
            silent[number] = str(error)
        else:
            handles[number] = handle
    return handles, silent


def links_by_nvml(nvml: Nvml, sysfs: Path = Path("/sys")) -> GpuLinks:
    """The links of this machine's GPUs, of those that answer. NUMA nodes come from ``sysfs``.

    Two GPUs on NVSwitches have as many links as the one with fewer of them has to switches; others as
    many as go from one to the other. Errors: NVML's own, from a driver that does not answer at all.
    """
    found, _ = answering(nvml)
    handles = list(found.values())
    buses = [_bus(nvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
    reach = [_reach(nvml, handle, set(buses)) for handle in handles]
    ways = tuple(
        tuple(
            SELF if i == k else _way(nvml, handles, buses, reach, min(i, k), max(i, k), sysfs)
            for k in range(len(handles))
        )
        for i in range(len(handles))
    )
    numa = tuple(numa_node(bus, sysfs) for bus in buses)
    return GpuLinks(tuple(found), ways, numa, tuple(cpus_beside(node, sysfs) for node in numa))


def _reach(nvml: Nvml, handle: Any, buses: set[str]) -> dict[str, int]:
    """Active NVLinks by the PCI address at their other end; ``""`` denotes switches."""
    found: dict[str, int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            far = _bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
        except nvml.NVMLError:
            continue  # there is no such link, or it is down
        if far not in buses:
            far = "" if _is_switch(nvml, handle, link) else far
        found[far] = found.get(far, 0) + 1
    return found


def _is_switch(nvml: Nvml, handle: Any, link: int) -> bool:
    try:
        return nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH
    except nvml.NVMLError:
        return True  # drivers that cannot say it know GPUs and switches only


def _way(
    nvml: Nvml,
    handles: list[Any],
    buses: list[str],
    reach: list[dict[str, int]],
    i: int,
    k: int,
    sysfs: Path,
) -> str:
    links = reach[i].get(buses[k], 0) + min(reach[i].get("", 0), reach[k].get("", 0))
    if links:
        return f"NV{links}"
    try:
        return _LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(handles[i], handles[k]), "SYS")
    except nvml.NVMLError:
        return pci_way(buses[i], buses[k], sysfs)  # virtual machines and old drivers do not answer


def _bus(pci: Any) -> str:
    name = pci.busId
    return short_bus_id(name.decode() if isinstance(name, bytes) else str(name))
