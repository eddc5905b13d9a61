"""NVML as its reference describes it, over answers in a file: for machines without a GPU.

It keeps the rules that the driver keeps (places, no overlap, nothing destroyed that is in use), and knows
pynvml's own structures and errors.
"""

# ruff: noqa: N802 - the names are those of NVML
from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

RECORDED = Path(__file__).parent / "recorded"


@dataclass
class Made:
    """One GPU instance."""

    id: int
    profile_id: int
    start: int
    size: int
    compute: dict[int, int] = field(default_factory=dict)  # compute instance -> its profile
    processes: int = 0


class RecordedNvml:
    """Answers like the module ``pynvml`` on a machine with one GPU in MIG mode."""

    def __init__(self, name: str = "nvml_h100_mig") -> None:
        self.told = json.loads((RECORDED / f"{name}.json").read_text())
        self.made: dict[int, Made] = {}
        self.fails: dict[str, int] = {}  # function -> error that it returns
        self.log: list[str] = []
        self._next = 1

    def __getattr__(self, name: str) -> Any:
        """Structures, constants and errors are pynvml's own."""
        if name.startswith("nvml"):
            raise AssertionError(f"{name} is not recorded")
        return getattr(pynvml, name)

    # -- as documented ---------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        self._may("nvmlInit")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.told["uuid"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._may("nvmlDeviceGetMigMode")
        return list(self.told["mig_mode"])

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: str, profile: int) -> Any:
        entry = self.told["profiles"].get(str(profile))
        if entry is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount = (
            entry["id"],
            entry["sliceCount"],
            entry["instanceCount"],
        )
        info.memorySizeMB = entry["memorySizeMB"]
        return info

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, handle: str, profile_id: int, array: Any, count: Any
    ) -> None:
        entry = self._profile(profile_id)
        for k, start in enumerate(entry["starts"]):
            array[k].start, array[k].size = start, entry["size"]
        count._obj.value = len(entry["starts"])

    def nvmlDeviceGetGpuInstances(self, handle: str, profile_id: int, array: Any, count: Any) -> None:
        self._list(array, count, [m.id for m in self.made.values() if m.profile_id == profile_id])

    def nvmlDeviceGetGpuInstanceById(self, handle: str, instance_id: int) -> Any:
        return self._pointer(pynvml.c_nvmlGpuInstance_t, self._found(instance_id).id)

    def nvmlGpuInstanceGetInfo(self, instance: Any) -> Any:
        made = self._found(self._number(instance))
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id, info.profileId = made.id, made.profile_id
        info.placement.start, info.placement.size = made.start, made.size
        return info

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle: str, profile_id: int, placement: Any) -> Any:
        self._may("nvmlDeviceCreateGpuInstanceWithPlacement")
        entry, start, size = self._profile(profile_id), placement._obj.start, placement._obj.size
        if start not in entry["starts"] or size != entry["size"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        covered = set(range(start, start + size))
        if any(covered & set(range(m.start, m.start + m.size)) for m in self.made.values()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        made = self.made[self._next] = Made(self._next, profile_id, start, size)
        self._next += 1
        self.log.append(f"create {profile_id} at {start}")
        return self._pointer(pynvml.c_nvmlGpuInstance_t, made.id)

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, instance: Any, profile: int, engines: int) -> Any:
        made = self._found(self._number(instance))
        slices = self.told["compute_profiles"].get(str(profile))
        if slices is None or slices > self._profile(made.profile_id)["sliceCount"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount = profile, slices, 7
        return info

    def nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile: int) -> Any:
        self._may("nvmlGpuInstanceCreateComputeInstance")
        made = self._found(self._number(instance))
        made.compute[0] = profile
        return self._pointer(pynvml.c_nvmlComputeInstance_t, made.id << 8)

    def nvmlGpuInstanceGetComputeInstances(self, instance: Any, profile: int, array: Any, count: Any) -> None:
        made = self._found(self._number(instance))
        numbers = [(made.id << 8) + number for number, kind in made.compute.items() if kind == profile]
        self._list(array, count, numbers)

    def nvmlComputeInstanceDestroy(self, compute: Any) -> None:
        made = self._found(self._number(compute) >> 8)
        self._unused(made)
        made.compute.clear()

    def nvmlGpuInstanceDestroy(self, instance: Any) -> None:
        made = self._found(self._number(instance))
        self._unused(made)
        if made.compute:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        del self.made[made.id]
        self.log.append(f"destroy {made.profile_id} at {made.start}")

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return int(self.told["max_mig_devices"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> int:
        whole = [m.id for m in self.made.values() if m.compute]
        if index >= len(whole):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return whole[index]

    def nvmlDeviceGetGpuInstanceId(self, mig: int) -> int:
        return mig

    def nvmlDeviceGetUUID(self, mig: int) -> str:
        return f"MIG-{mig:08d}-0000-0000-0000-000000000000"

    def nvmlDeviceGetComputeRunningProcesses(self, mig: int) -> list[None]:
        return [None] * self.made[mig].processes

    # -- inside ----------------------------------------------------------------------------------

    def by_others(self, profile_id: int, start: int, *, processes: int = 0, compute: bool = True) -> Made:
        """An instance that someone else made."""
        made = self.made[self._next] = Made(self._next, profile_id, start, self._profile(profile_id)["size"])
        made.processes = processes
        if compute:
            made.compute[0] = 0
        self._next += 1
        return made

    def standing(self) -> set[tuple[int, int]]:
        """Profile and start of each instance."""
        return {(m.profile_id, m.start) for m in self.made.values()}

    def _profile(self, profile_id: int) -> dict[str, Any]:
        found: Iterator[dict[str, Any]] = (p for p in self.told["profiles"].values() if p["id"] == profile_id)
        return next(found)

    def _found(self, number: int) -> Made:
        if number not in self.made:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.made[number]

    def _unused(self, made: Made) -> None:
        if made.processes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)

    def _may(self, function: str) -> None:
        if function in self.fails:
            raise pynvml.NVMLError(self.fails[function])

    def _list(self, array: Any, count: Any, numbers: list[int]) -> None:
        for k, number in enumerate(numbers):
            array[k] = self._pointer(array._type_, number)
        count._obj.value = len(numbers)

    def _pointer(self, kind: Any, number: int) -> Any:
        return ctypes.cast(ctypes.c_void_p(number), kind)

    def _number(self, pointer: Any) -> int:
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0
