"""What this machine has: GPUs of NVIDIA, AMD and Ascend, else CPU devices.

A vendor that left no trace on the machine (library, driver, device file) is not asked, and costs no time.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from unidle.engine.local.devices.visible import hidden_amd, is_visible
from unidle.errors import BadInput, CannotRun
from unidle.fleet import Device, Fleet, GpuLinks, Node, Tier, Vendor
from unidle.fleet.links import SELF, UNKNOWN, beside, parse_topo
from unidle.fleet.model import FoundGpu
from unidle.nvml import load

SITE = "local"
T = TypeVar("T")
_ASK_S: Final = 30.0  # npu-smi takes seconds on a busy machine


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """The GPUs of one vendor that this process may use. ``links`` are by their numbers; None: unknown.

    ``says`` describes how they were found, or why none was. It is empty if there is no trace of the vendor.
    """

    vendor: Vendor
    gpus: tuple[FoundGpu, ...] = ()
    links: GpuLinks | None = None
    says: str = ""
    labels: dict[str, str] = field(default_factory=dict)


def discover(
    cpu_devices: int | None = None, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> Fleet:
    """One node with its GPUs; without GPUs, CPU devices ``local/0``, ...: ``cpu_devices`` of them, else one per core.

    ``source`` of the fleet describes how it was found and, without GPUs, why none was found. GPUs that
    CUDA_VISIBLE_DEVICES and similar variables hide from this process are left out. ``root`` holds ``sys`` and ``dev``.
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
    found = find_gpus(root, environ)
    links: GpuLinks | None = None
    if any(one.gpus for one in found):
        node, links = _with_gpus(node, [one for one in found if one.gpus])
    else:
        cpus = (
            Device(f"{SITE}/{k}", name, k, "cpu", model="cpu") for k in range(cpu_devices or int(node.cpus))
        )
        node = replace(node, devices=tuple(cpus))
    some = [one for one in found if one.gpus or (one.says and one.vendor != "nvidia")]
    says = "; ".join(one.says for one in some or found if one.says)
    known = {node.gpu_links: links} if links is not None else {}
    return Fleet(tiers=(Tier(SITE, "site"),), nodes=(node,), source=f"discovered: {says}", gpu_links=known)


def find_gpus(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[FoundDevices]:
    """The GPUs of each vendor, in a fixed order; see :class:`FoundDevices`."""
    return [find_nvidia(root, environ), find_amd(root, environ), find_ascend(root, environ)]


def _with_gpus(node: Node, found: list[FoundDevices]) -> tuple[Node, GpuLinks | None]:
    """The node with the GPUs of all vendors, one vendor's after the other's."""
    devices: list[Device] = []
    labels: dict[str, str] = {}
    parts: list[GpuLinks] = []
    for one in found:
        first = max((device.index for device in devices), default=-1) + 1
        for gpu in one.gpus:
            index = first + gpu.number
            number = gpu.number if first else None
            devices.append(
                Device(
                    f"{SITE}/{index}", node.id, index, "gpu", gpu.model, gpu.uuid, gpu.memory_bytes,
                    vendor=one.vendor, number=number,
                )
            )  # fmt: skip
            if gpu.bus_id:
                labels[f"gpu{index}.pci"] = gpu.bus_id
        labels |= one.labels
        numbers = {gpu.number: first + gpu.number for gpu in one.gpus}
        whole = one.links is not None and numbers.keys() <= set(one.links.gpus)
        parts.append((one.links if one.links and whole else _unknown(one.gpus)).of(numbers))
    node = replace(node, devices=tuple(devices), labels=node.labels | labels)
    if len(devices) < 2 or all(one.links is None for one in found):
        return node, None
    return replace(node, gpu_links=SITE), beside(parts)


def _unknown(gpus: tuple[FoundGpu, ...]) -> GpuLinks:
    numbers = tuple(gpu.number for gpu in gpus)
    return GpuLinks(numbers, tuple(tuple(SELF if a == b else UNKNOWN for b in numbers) for a in numbers))


# -- NVIDIA ------------------------------------------------------------------------------------------


def find_nvidia(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> FoundDevices:
    """By NVML, if its library is there."""
    try:
        nvml = load()
        nvml.nvmlInit()
    except Exception as error:  # a broken driver shows in many ways, and none may stop a CPU run
        return FoundDevices("nvidia", says=f"no GPU (NVML: {error})")
    try:
        return list_nvidia(nvml, root / "sys", environ)
    except nvml.NVMLError as error:
        return FoundDevices("nvidia", says=f"no GPU (NVML failed: {error})")
    finally:
        nvml.nvmlShutdown()


def list_nvidia(nvml: Any, sysfs: Path, environ: Mapping[str, str]) -> FoundDevices:
    """What NVML (the module ``pynvml`` after ``nvmlInit``) lists; GPUs that do not answer are named and left out.

    Errors: NVML's own.
    """
    from unidle.fleet.nvml import answering

    labels = {"driver": str(nvml.nvmlSystemGetDriverVersion())}
    gpus = []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    handles, silent = answering(nvml)
    count = len(handles) + len(silent)
    for index, handle in handles.items():
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        if not is_visible(index, uuid, visible):
            continue
        model, bus = str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetPciInfo(handle).busId)
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        gpus.append(FoundGpu(index, model, uuid, memory_bytes, bus))
        labels[f"gpu{index}.nvlinks"] = str(_nvlinks(nvml, handle))
    says = f"{len(gpus)} of {count} GPUs by NVML" if count else "no GPU (NVML lists none)"
    says += "".join(f", GPU {index} does not answer: {why}" for index, why in silent.items())
    links, problem = _nvidia_links(nvml, sysfs, environ) if len(gpus) > 1 else (None, "")
    return FoundDevices("nvidia", tuple(gpus), links, says + problem, labels)


def _nvidia_links(nvml: Any, sysfs: Path, environ: Mapping[str, str]) -> tuple[GpuLinks | None, str]:
    """By NVML, else by ``nvidia-smi``; None and the reason if neither reports them."""
    from unidle.fleet.nvml import links_by_nvml

    try:
        return links_by_nvml(nvml, sysfs), ""
    except (nvml.NVMLError, AttributeError) as error:  # an old driver or module has not all of its functions
        why = f"NVML: {error}"
    try:
        return _answer(("nvidia-smi", "topo", "-m"), environ, parse_topo), ""
    except CannotRun as error:
        return None, f", links not known ({why}; {error})"


def _nvlinks(nvml: Any, handle: Any) -> int:
    """How many NVLinks of the GPU are up."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            up += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            break  # the GPU has no such link, or none at all
    return up


# -- AMD ---------------------------------------------------------------------------------------------


def find_amd(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> FoundDevices:
    """By the kernel's KFD driver, if it is loaded."""
    sysfs = root / "sys"
    if not (sysfs / "class/kfd").is_dir():
        return FoundDevices("amd")
    from unidle.fleet.amd import gpus_by_kfd

    gpus, links = gpus_by_kfd(sysfs)
    if not gpus:
        return FoundDevices("amd")  # the driver is there for CPUs too
    hidden = hidden_amd([gpu.uuid for gpu in gpus], environ)
    shown = tuple(gpu for gpu in gpus if gpu.number not in hidden)
    return FoundDevices("amd", shown, links, f"{len(shown)} of {len(gpus)} AMD GPUs by KFD")


# -- Ascend ------------------------------------------------------------------------------------------


def find_ascend(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> FoundDevices:
    """By npu-smi, if there is a device file of an NPU."""
    if not any((root / "dev").glob("davinci[0-9]*")):
        return FoundDevices("ascend")
    from unidle.fleet.npu_smi import INFO, TOPO, parse_info, parse_npu_topo

    try:
        gpus, shown_as = _answer(INFO, environ, parse_info)
    except CannotRun as error:
        return FoundDevices("ascend", says=f"no Ascend NPU ({error})")
    visible = environ.get("ASCEND_RT_VISIBLE_DEVICES") or None
    shown = tuple(gpu for gpu in gpus if is_visible(gpu.number, "", visible))
    says, links = f"{len(shown)} of {len(gpus)} Ascend NPUs by npu-smi", None
    if len(shown) > 1:
        try:
            sysfs = root / "sys"
            links = _answer(TOPO, environ, lambda text: parse_npu_topo(text, gpus, shown_as, sysfs))
        except CannotRun as error:
            says += f", links not known ({error})"
    return FoundDevices("ascend", shown, links, says)


def _answer(command: tuple[str, ...], environ: Mapping[str, str], parse: Callable[[str], T]) -> T:
    """What a vendor's program prints, parsed. :class:`CannotRun` in one line where it fails."""
    import shutil
    import subprocess

    program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if program is None:
        raise CannotRun(f"there is no {command[0]} on the search path")
    line = " ".join(command)
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{line} failed: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise CannotRun(f"{line} exited with {done.returncode}: {said[-1] if said else 'no message'}")
    try:
        return parse(done.stdout)
    except BadInput as error:
        raise CannotRun(error.line()) from None
