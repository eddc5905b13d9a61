"""GPUs and their driver, asked through NVML."""

from __future__ import annotations

from collections import Counter
from typing import Any

from unidle.doctor.check import Check

_GPU_USE = "training on GPUs; without one, CPU devices stand in"
_DRIVER_USE = "CUDA programs"
_NO_DRIVER = "install NVIDIA's driver if this machine has a GPU"


def gpus() -> list[Check]:
    """One check of the GPUs and one of the driver's CUDA version."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        remedy = "pip install nvidia-ml-py"
        return [
            Check("GPU", "missing", "NVML's Python module is not installed", _GPU_USE, remedy),
            Check("CUDA driver", "missing", "not asked", _DRIVER_USE, remedy),
        ]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [
            Check("GPU", "missing", f"NVML: {error}", _GPU_USE, _NO_DRIVER),
            Check("CUDA driver", "missing", f"NVML: {error}", _DRIVER_USE, _NO_DRIVER),
        ]
    try:
        return [_devices(pynvml), _driver(pynvml)]
    except pynvml.NVMLError as error:
        remedy = "see nvidia-smi and the kernel's log"
        return [Check("GPU", "limited", f"NVML: {error}", _GPU_USE, remedy)]
    finally:
        pynvml.nvmlShutdown()


def _devices(nvml: Any) -> Check:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    models = Counter(nvml.nvmlDeviceGetName(h) for h in handles)
    if not models:
        return Check("GPU", "missing", "the driver runs, but sees no GPU", _GPU_USE, "see nvidia-smi")
    memory = sum(nvml.nvmlDeviceGetMemoryInfo(h).total for h in handles)
    detail = ", ".join(f"{n} x {model}" for model, n in models.items())
    return Check("GPU", "ok", f"{detail}, {memory / 2**30:,.0f} GiB in all", _GPU_USE)


def _driver(nvml: Any) -> Check:
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    detail = f"driver {nvml.nvmlSystemGetDriverVersion()}, CUDA {version // 1000}.{version % 1000 // 10}"
    if version < 12_000:
        return Check("CUDA driver", "limited", detail, _DRIVER_USE, "PyTorch's wheels want CUDA 12 or later")
    return Check("CUDA driver", "ok", detail, _DRIVER_USE)
