"""A node of eight H100 as NVML tells of it, from a file that says where its values come from."""

# ruff: noqa: N802 - the names are those of NVML
from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

RECORDED = Path(__file__).parent / "recorded" / "nvml_h100_node.json"


class RecordedNode:
    """Answers like the module ``pynvml``; ``gpus[k]`` may be changed, and ``lost`` GPUs do not answer."""

    def __init__(self) -> None:
        told = json.loads(RECORDED.read_text())
        self.driver = told["driver"]
        self.gpus: list[dict[str, Any]] = [copy.deepcopy(told["gpu"]) for _ in range(told["count"])]
        self.lost: set[int] = set()
        self.silent: set[str] = set()  # functions that this driver does not have
        self.hangs_in = ""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in self.silent:
                raise AttributeError(name)
            if name == self.hangs_in:
                time.sleep(3600)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        """Constants, structures and errors are pynvml's own."""
        if name in self.silent:
            raise AttributeError(name)
        if name.startswith("nvml"):
            raise AssertionError(f"{name} is not recorded")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self.driver)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return str(self.gpus[gpu]["name"])

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x10 + gpu:02X}:00.0")

    def nvmlDeviceGetPersistenceMode(self, gpu: int) -> int:
        return int(self.gpus[gpu]["persistence"])

    def nvmlDeviceGetGpuFabricInfo(self, gpu: int, info: Any) -> int:
        info._obj.state, info._obj.status = (
            self.gpus[gpu]["fabric"]["state"],
            self.gpus[gpu]["fabric"]["status"],
        )
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> int:
        return int(self.gpus[gpu]["reasons"])

    def nvmlDeviceGetApplicationsClock(self, gpu: int, kind: int) -> int:
        return self._clock(gpu, kind, "clock_sm")

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, kind: int) -> int:
        return self._clock(gpu, kind, "clock_sm_max")

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(self.gpus[gpu]["temperature"])

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[tuple[int, int]]) -> list[Any]:
        value = pynvml.c_nvmlValue_t()
        known = {pynvml.NVML_FI_DEV_MEMORY_TEMP: "memory_temperature"}
        name = known.get(fields[0][0])
        if name is None:
            return [SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)]
        value.uiVal = self.gpus[gpu][name]
        return [SimpleNamespace(nvmlReturn=0, valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, value=value)]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return int(self.gpus[gpu]["power_limit"])

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: int) -> int:
        return int(self.gpus[gpu]["power_default"])

    def nvmlDeviceGetEccMode(self, gpu: int) -> list[int]:
        return list(self.gpus[gpu]["ecc"])

    def nvmlDeviceGetSramEccErrorStatus(self, gpu: int, status: Any) -> int:
        if status._obj.version != pynvml.nvmlEccSramErrorStatus_v1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        for name, count in self.gpus[gpu]["sram"].items():
            assert hasattr(status._obj, name)
            setattr(status._obj, name, count)
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetMemoryErrorCounter(self, gpu: int, kind: int, since: int, where: int) -> int:
        wanted = (
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
            pynvml.NVML_MEMORY_LOCATION_DRAM,
        )
        assert (kind, since, where) == wanted
        return int(self.gpus[gpu]["dram_uncorrected"])

    def nvmlDeviceGetRemappedRows(self, gpu: int) -> tuple[int, ...]:
        return tuple(self.gpus[gpu]["remapped"])

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return int(self.gpus[gpu]["pcie_width"])

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:
        return int(self.gpus[gpu]["pcie_width_max"])

    def nvmlDeviceGetPowerState(self, gpu: int) -> int:
        return int(self.gpus[gpu]["pstate"])

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: int) -> int:
        return int(self.gpus[gpu]["pcie_generation"])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:
        return int(self.gpus[gpu].get("pcie_generation_max", 5))

    def nvmlDeviceGetPcieReplayCounter(self, gpu: int) -> int:
        return int(self.gpus[gpu]["pcie_replays"])

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if link >= self.gpus[gpu]["nvlinks"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link not in self.gpus[gpu]["nvlinks_down"])

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: int, link: int, kind: int) -> int:
        return int(self.gpus[gpu]["nvlink_errors"].get(f"{link}.{kind}", 0))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.gpus[gpu]["processes"]]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(used=self.gpus[gpu]["memory_used"], total=80 << 30)

    def _clock(self, gpu: int, kind: int, name: str) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return int(self.gpus[gpu][name])
