"""Objects as a cluster has them, made by hand; and as JSON, as its API server gives them."""

from __future__ import annotations

from typing import Any

import msgspec

from unidle.kube.objects import KubeNode, Pod, ResourceSlice
from unidle.kube.protocol import Put, Vanished

GIB = 1 << 30


def node(
    name: str = "n1", *, labels: dict[str, str] | None = None, spec: Any = None, **status: Any
) -> KubeNode:
    """A Ready node with 8 cores and 32 GiB."""
    allocatable = {"cpu": "7910m", "memory": "32Gi", "pods": "110", **status.pop("allocatable", {})}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting"}
    told = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": spec or {},
        "status": {
            "allocatable": allocatable,
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": "10.0.0.1"},
            ],
            "conditions": [{"type": "MemoryPressure", "status": "False"}, ready],
            **status,
        },
    }
    return msgspec.convert(told, KubeNode)


def pod(name: str, on: str = "n1", *, containers: Any = None, phase: str = "Running", **more: Any) -> Pod:
    labels = more.pop("labels", {})
    told = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": on, "containers": containers or [asks(cpu="500m", memory="1Gi")], **more},
        "status": {"phase": phase},
    }
    return msgspec.convert(told, Pod)


def asks(**requests: str) -> dict[str, Any]:
    """A container that requests this; ``gpu`` is that of NVIDIA."""
    if "gpu" in requests:
        requests["nvidia.com/gpu"] = requests.pop("gpu")
    return {"name": "main", "resources": {"requests": requests}}


def resource_slice(
    on: str, devices: list[dict[str, Any]], *, driver: str = "gpu.nvidia.com", generation: int = 1, of: int = 1,
    number: int = 0,
) -> ResourceSlice:  # fmt: skip
    told = {
        "metadata": {
            "name": f"{on}-{driver}-{generation}-{number}",
            "uid": f"uid-{on}-{driver}-{generation}-{number}",
        },
        "spec": {
            "driver": driver,
            "nodeName": on,
            "pool": {"name": on, "generation": generation, "resourceSliceCount": of},
            "devices": devices,
        },
    }
    return msgspec.convert(told, ResourceSlice)


def gpu(number: int, **attributes: Any) -> dict[str, Any]:
    """A GPU as NVIDIA's driver of ResourceSlices lists it."""
    found = {"type": "gpu", "uuid": f"GPU-{number}", "productName": "NVIDIA H100 80GB HBM3", **attributes}
    return {
        "name": f"gpu-{number}",
        "attributes": {key: {"string": value} for key, value in found.items()},
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def put(item: Any) -> Put[Any]:
    return Put(item)


def gone(item: Any) -> Vanished[Any]:
    return Vanished(item)
