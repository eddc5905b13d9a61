"""What this machine has: GPUs as NVML lists them, else CPU devices."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
from dataclasses import replace
from typing import Any

from unidle.fleet import Device, Fleet, Node, Tier

CPU_DEVICES = 8
SITE = "local"


def discover(cpu_devices: int = CPU_DEVICES) -> Fleet:
    """One node with its GPUs; ``cpu_devices`` CPU devices ``local/0``, ... where it has none.

    ``source`` of the fleet says how it was found, and why no GPU was where there is none. GPUs that
    CUDA_VISIBLE_DEVICES hides from this process are left out.
    """
    name = socket.gethostname() or SITE
    node = Node(
        id=name,
        parent=SITE,
        devices=(),
        cpus=float(len(os.sched_getaffinity(0))),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        labels={"arch": platform.machine(), "kernel": platform.release()},
    )
    gpus, labels, found = _gpus(name)
    if gpus:
        node = replace(node, devices=gpus, labels=node.labels | labels)
    else:
        cpus = (Device(f"{SITE}/{k}", name, k, "cpu", model="cpu") for k in range(cpu_devices))
        node = replace(node, devices=tuple(cpus))
    return Fleet(tiers=(Tier(SITE, "site"),), nodes=(node,), source=f"discovered: {found}")


def _gpus(node: str) -> tuple[tuple[Device, ...], dict[str, str], str]:
    """GPUs, labels of their node, and how they were found or why not."""
    try:
        # first, because importing pynvml takes as long as starting Python
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
    except Exception as error:  # a broken driver shows in many ways, and none may stop a CPU run
        return (), {}, f"no GPU (NVML: {error})"
    try:
        return _list_gpus(pynvml, node)
    except pynvml.NVMLError as error:
        return (), {}, f"no GPU (NVML failed: {error})"
    finally:
        pynvml.nvmlShutdown()


def _list_gpus(nvml: Any, node: str) -> tuple[tuple[Device, ...], dict[str, str], str]:
    labels = {"driver": str(nvml.nvmlSystemGetDriverVersion())}
    devices = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        if not is_visible(index, uuid, visible):
            continue
        model = str(nvml.nvmlDeviceGetName(handle))
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        devices.append(Device(f"{SITE}/{index}", node, index, "gpu", model, uuid, memory_bytes))
        labels[f"gpu{index}.pci"] = str(nvml.nvmlDeviceGetPciInfo(handle).busId)
        labels[f"gpu{index}.nvlinks"] = str(_nvlinks(nvml, handle))
    found = f"{len(devices)} of {count} GPUs by NVML" if count else "no GPU (NVML lists none)"
    return tuple(devices), labels, found


def _nvlinks(nvml: Any, handle: Any) -> int:
    """How many NVLinks of the GPU are up."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            up += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            break  # the GPU has no such link, or none at all
    return up


def is_visible(index: int, uuid: str, visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES (None: unset) leaves the GPU visible; names may be cut short."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return any(name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)
