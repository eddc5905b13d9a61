"""The devices of a node: what its device plugins offer (allocatable), or what its drivers list (ResourceSlices)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet import WHOLE_PPM, Device, Vendor
from unidle.kube.objects import ClusterDevice, KubeNode, ResourceSlice
from unidle.kube.quantity import quantity, whole

NVIDIA: Final = "nvidia.com/gpu"
AMD: Final = "amd.com/gpu"
_MIG: Final = re.compile(r"nvidia\.com/mig-([0-9]+g\.([0-9]+)gb(?:[.+][-.+\w]*)?)")
_ASCEND: Final = re.compile(r"huawei\.com/(Ascend[0-9A-Za-z]+)")
_DRIVERS: Final[dict[str, Vendor]] = {
    "gpu.nvidia.com": "nvidia", "gpu.amd.com": "amd", "npu.huawei.com": "ascend",
}  # fmt: skip
_AMD_LABELS: Final = ("amd.com/gpu.", "beta.amd.com/gpu.")
_MOST: Final = 1024  # of one node: more is a mistake of its plugin


def is_device(resource: str) -> bool:
    """Whether pods get GPUs by requesting ``resource``."""
    return resource in (NVIDIA, f"{NVIDIA}.shared", AMD) or bool(
        _MIG.fullmatch(resource) or _ASCEND.fullmatch(resource)
    )


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """``resources`` has for each device the resource that a pod requests to get it. ``sources``: where all that is from.

    ``names`` has for each device ``DRIVER/NAME`` of its ResourceSlice; empty where it has none.
    """

    devices: tuple[Device, ...]
    resources: tuple[str, ...]
    sources: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """``count`` devices of one kind. ``shares``: parts that each of them is offered in."""

    resource: str
    count: int
    vendor: Vendor
    model: str
    memory_bytes: int
    source: str
    shares: int = 1


def devices_of(node: KubeNode, slices: Sequence[ResourceSlice], cpu_devices: int) -> NodeDevices:
    """The devices, with ids ``NODE/0``, ``NODE/1``, ...; ``cpu_devices`` of them where the node has no other.

    A vendor's devices are those of its ResourceSlices, where it has any: they have UUIDs and memory. Else allocatable
    counts them, and labels name their model.
    """
    listed, names, sources = _listed(node, slices)
    vendors = {device.vendor for device in listed}
    devices = listed
    resources = [_DEFAULT_RESOURCE[device.vendor] for device in listed]
    for kind in _counted(node):
        if kind.vendor in vendors:
            continue
        devices += _of_kind(node, kind, len(devices))
        resources += [kind.resource] * kind.count
        sources.append(kind.source)
    if not devices and cpu_devices:
        name = node.metadata.name
        devices = [Device(f"{name}/{k}", name, k, "cpu") for k in range(cpu_devices)]
        resources = ["cpu"] * cpu_devices
        sources.append(f"{cpu_devices} CPU devices: as configured for nodes without GPUs")
    names += [""] * (len(devices) - len(names))
    return NodeDevices(tuple(devices), tuple(resources), tuple(sources), tuple(names))


_DEFAULT_RESOURCE: Final[dict[Vendor, str]] = {"nvidia": NVIDIA, "amd": AMD, "ascend": "huawei.com/Ascend910"}


def _of_kind(node: KubeNode, kind: _Kind, first: int) -> list[Device]:
    name = node.metadata.name
    part, rest = divmod(WHOLE_PPM, kind.shares)
    shares = tuple(part + (k < rest) for k in range(kind.shares))
    return [
        Device(
            f"{name}/{k}",
            name,
            k,
            "gpu",
            kind.model,
            memory_bytes=kind.memory_bytes,
            slices_ppm=shares,
            vendor=kind.vendor,
        )
        for k in range(first, first + kind.count)
    ]


def _counted(node: KubeNode) -> Iterable[_Kind]:
    """What allocatable has, in the order of the resources' names."""
    for resource, text in sorted(node.status.allocatable.items()):
        count = _count(text)
        if not count:
            continue
        if resource in (NVIDIA, f"{NVIDIA}.shared"):
            yield _nvidia(node, resource, count)
        elif resource == AMD:
            yield _amd(node, count)
        elif mig := _MIG.fullmatch(resource):
            labels = node.metadata.labels
            model = _product(labels.get(f"{NVIDIA}.product", "NVIDIA"))
            text = f"{count} MIG instances {mig[1]}: allocatable {resource}"
            yield _Kind(resource, count, "nvidia", f"{model} MIG {mig[1]}", int(mig[2]) << 30, text)
        elif ascend := _ASCEND.fullmatch(resource):
            yield _Kind(
                resource, count, "ascend", ascend[1], 0, f"{count} x {ascend[1]}: allocatable {resource}"
            )


def _count(text: str) -> int:
    try:
        return min(_MOST, int(quantity(text)))
    except (ValueError, OverflowError):
        return 0


def _nvidia(node: KubeNode, resource: str, count: int) -> _Kind:
    labels = node.metadata.labels
    model = _product(labels.get(f"{NVIDIA}.product", "").removesuffix("-SHARED"))
    memory = labels.get(f"{NVIDIA}.memory", "")
    shares = _number(labels.get(f"{NVIDIA}.replicas", ""))
    shared = labels.get(f"{NVIDIA}.sharing-strategy", "none") != "none"
    shares = shares if shared and shares > 1 and count % shares == 0 else 1
    source = f"{count // shares} x {model or 'GPU'}: allocatable {resource}"
    if model:
        source += f", label {NVIDIA}.product"
    if shares > 1:
        source += f", {shares} parts each by label {NVIDIA}.replicas"
    return _Kind(resource, count // shares, "nvidia", model, _number(memory) << 20, source, shares)


def _amd(node: KubeNode, count: int) -> _Kind:
    labels = node.metadata.labels
    model, key = _label_of_amd(labels, "product-name")
    memory, _ = _label_of_amd(labels, "vram")
    source = f"{count} x {model or 'GPU'}: allocatable {AMD}" + (f", label {key}" if key else "")
    return _Kind(AMD, count, "amd", _product(model), _memory_of_amd(memory), source)


def _label_of_amd(labels: Mapping[str, str], what: str) -> tuple[str, str]:
    """The value of AMD's node labeller, and its label's key. Its former form has the value in the key."""
    for prefix in _AMD_LABELS:
        key = f"{prefix}{what}"
        if labels.get(key):
            return labels[key], key
        values = sorted(name.removeprefix(f"{key}.") for name in labels if name.startswith(f"{key}."))
        if values:
            return values[0], f"{key}.{values[0]}"
    return "", ""


def _memory_of_amd(text: str) -> int:
    """``64G`` are GiB there."""
    found = re.fullmatch(r"([0-9]+)([MGT]?)(?:i?B)?", text)
    return int(found[1]) << {"": 0, "M": 20, "G": 30, "T": 40}[found[2]] if found else 0


def _product(text: str) -> str:
    """``NVIDIA-H100-80GB-HBM3`` is how a label has to write ``NVIDIA H100 80GB HBM3``."""
    return (
        " ".join(text.replace("_", " ").split("-")) if text.startswith(("NVIDIA-", "AMD_", "AMD-")) else text
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else 0


def _listed(node: KubeNode, slices: Sequence[ResourceSlice]) -> tuple[list[Device], list[str], list[str]]:
    """The GPUs in the node's ResourceSlices, pool by pool; ``DRIVER/NAME`` of each, and where they were read."""
    name = node.metadata.name
    devices: list[Device] = []
    names: list[str] = []
    sources = []
    for driver, vendor in _DRIVERS.items():
        whole_gpus = sorted(
            (found for found in _newest(slices, driver) if _text(found, "type", driver) in ("", "gpu")),
            key=lambda found: _natural(found.name),
        )
        first = len(devices)
        devices += [_device(name, first + k, found, driver, vendor) for k, found in enumerate(whole_gpus)]
        names += [f"{driver}/{found.name}" for found in whole_gpus]
        if whole_gpus:
            model = devices[first].model or "GPU"
            sources.append(f"{len(whole_gpus)} x {model}: ResourceSlices of driver {driver}")
    return devices, names, sources


def _newest(slices: Sequence[ResourceSlice], driver: str) -> Iterable[ClusterDevice]:
    """The devices of each pool in its newest generation; a pool of which a slice is missing has none yet."""
    pools: dict[str, dict[int, list[ResourceSlice]]] = {}
    for found in slices:
        if found.spec.driver == driver:
            generations = pools.setdefault(found.spec.pool.name, {})
            generations.setdefault(found.spec.pool.generation, []).append(found)
    for _, generations in sorted(pools.items()):
        newest = generations[max(generations)]
        if len(newest) >= newest[0].spec.pool.resource_slice_count:
            for part in newest:
                yield from part.spec.devices


def _device(node: str, index: int, found: ClusterDevice, driver: str, vendor: Vendor) -> Device:
    memory = found.capacity.get("memory") or found.capacity.get(f"{driver}/memory")
    try:
        memory_bytes = whole(memory.value) if memory is not None else 0
    except ValueError:
        memory_bytes = 0
    number = _natural(found.name)[1] if re.fullmatch(r"gpu-[0-9]+", found.name) else index
    return Device(
        f"{node}/{index}",
        node,
        index,
        "gpu",
        _text(found, "productName", driver),
        _text(found, "uuid", driver),
        memory_bytes,
        vendor=vendor,
        number=number if number != index else None,
    )


def _text(found: ClusterDevice, name: str, driver: str) -> str:
    """An attribute that is text; the driver's own may have its name as a prefix or not."""
    value = found.attributes.get(name) or found.attributes.get(f"{driver}/{name}")
    return value.string or "" if value is not None else ""


def _natural(name: str) -> tuple[str, int, str]:
    """``gpu-10`` after ``gpu-9``."""
    found = re.fullmatch(r"(.*?)([0-9]+)", name)
    return (found[1], int(found[2]), name) if found else (name, -1, name)
