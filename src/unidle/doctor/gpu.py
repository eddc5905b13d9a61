"""GPUs and their driver: NVIDIA's asked through NVML, AMD's and Ascend's found as the local engine finds them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unidle.doctor.check import DoctorCheck
from unidle.fleet.links import describe
from unidle.nvml import load

_GPU_USE = "training on GPUs; without one, CPU devices stand in"
_DRIVER_USE = "CUDA programs"
_SEE_LOG = "check `nvidia-smi` and `dmesg`"
_NO_DRIVER = "install NVIDIA's driver if this machine has a GPU"


def gpus(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[DoctorCheck]:
    """One check of NVIDIA's GPUs and one of their driver's CUDA version, and one of each other vendor that is there.

    NVIDIA is passed over where it has nothing and another vendor has something. ``root`` is where ``sys`` and ``dev`` are.
    """
    others = _others(root, environ)
    nvidia = _nvidia()
    if others and nvidia[0].state == "missing":
        return others
    return nvidia + others


def _nvidia() -> list[DoctorCheck]:
    try:
        nvml = load(driver_first=False)
    except ImportError:
        remedy = "pip install nvidia-ml-py"
        return [
            DoctorCheck("GPU", "missing", "NVML's Python module is not installed", _GPU_USE, remedy),
            DoctorCheck("CUDA driver", "missing", "not asked", _DRIVER_USE, remedy),
        ]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [
            DoctorCheck("GPU", "missing", f"NVML: {error}", _GPU_USE, _NO_DRIVER),
            DoctorCheck("CUDA driver", "missing", f"NVML: {error}", _DRIVER_USE, _NO_DRIVER),
        ]
    try:
        return [_devices(nvml), _driver(nvml)]
    except nvml.NVMLError as error:
        return [DoctorCheck("GPU", "limited", f"NVML: {error}", _GPU_USE, _SEE_LOG)]
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any) -> DoctorCheck:
    from unidle.fleet.nvml import answering, links_by_nvml

    found, silent = answering(nvml)
    lost = "; ".join(f"GPU {index} does not answer: {why}" for index, why in silent.items())
    if not found:
        detail = lost or "the driver runs, but finds no GPU"
        return DoctorCheck("GPU", "limited" if lost else "missing", detail, _GPU_USE, _SEE_LOG)
    handles = found.values()
    detail = _in_words((nvml.nvmlDeviceGetName(h), nvml.nvmlDeviceGetMemoryInfo(h).total) for h in handles)
    if len(found) > 1:
        detail += f"; {describe(links_by_nvml(nvml))}"
    if lost:
        return DoctorCheck("GPU", "limited", f"{detail}; {lost}", _GPU_USE, _SEE_LOG)
    return DoctorCheck("GPU", "ok", detail, _GPU_USE)


def _in_words(gpus: Iterable[tuple[str, int]]) -> str:
    """Counts of models, and the memory of all; each GPU as its model and bytes."""
    models, memory = Counter[str](), 0
    for model, size in gpus:
        models[model] += 1
        memory += size
    return ", ".join(f"{n} x {model}" for model, n in models.items()) + f", {memory / 2**30:,.0f} GiB in all"


def _others(root: Path, environ: Mapping[str, str]) -> list[DoctorCheck]:
    from unidle.engine.local.devices.discovery import FoundDevices, find_amd, find_ascend

    def check(name: str, found: FoundDevices) -> DoctorCheck:
        if not found.gpus:
            return DoctorCheck(name, "limited", found.says, _GPU_USE, "check `npu-smi info` and `dmesg`")
        detail = _in_words((gpu.model, gpu.memory_bytes) for gpu in found.gpus)
        if found.links is not None and len(found.gpus) > 1:
            detail += f"; {describe(found.links)}"
        return DoctorCheck(name, "ok", f"{detail} ({found.says})", _GPU_USE)

    amd, ascend = find_amd(root, environ), find_ascend(root, environ)
    checks = [check("Ascend NPU", ascend)] if ascend.says else []
    if not amd.says:
        return checks
    found, kfd = check("AMD GPU", amd), root / "dev/kfd"
    if not os.access(kfd, os.R_OK | os.W_OK):
        remedy = "add the user to the groups render and video"
        found = DoctorCheck(
            found.name, "limited", f"{found.detail}; {kfd} may not be opened", _GPU_USE, remedy
        )
    return [found, *checks]


def _driver(nvml: Any) -> DoctorCheck:
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    detail = f"driver {nvml.nvmlSystemGetDriverVersion()}, CUDA {version // 1000}.{version % 1000 // 10}"
    if version < 12_000:
        return DoctorCheck(
            "CUDA driver", "limited", detail, _DRIVER_USE, "the wheels of PyTorch need CUDA 12 or later"
        )
    return DoctorCheck("CUDA driver", "ok", detail, _DRIVER_USE)
