"""What NVML answers on this machine, as a file that the tests' library plays (tests/nvml/played.c has the form)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

Values = Callable[[Any], str]


def _plain(answer: Any) -> str:
    values = answer if isinstance(answer, list | tuple) else [answer]
    return " ".join(one.decode() if isinstance(one, bytes) else str(one) for one in values)


def _pci(answer: Any) -> str:
    return f"{_plain(answer.busId)} 0x{answer.pciDeviceId:08x} 0x{answer.pciSubSystemId:08x}"


def _processes(answer: Any) -> str:
    held = [(p.pid, -1 if p.usedGpuMemory is None else p.usedGpuMemory) for p in answer]
    return " ".join(f"{pid}:{used}" for pid, used in held)


_SYSTEM: Final = {
    "nvmlSystemGetDriverVersion": "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion": "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion": "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount",
}
# name in the file -> the numbers that it is asked with, and how the answer is written
_OF_GPU: Final[dict[str, tuple[tuple[tuple[int, ...], ...], Values]]] = {
    "nvmlDeviceGetName": (((),), _plain),
    "nvmlDeviceGetUUID": (((),), _plain),
    "nvmlDeviceGetPciInfo": (((),), _pci),
    "nvmlDeviceGetMemoryInfo": (((),), lambda a: f"{a.total} {a.free} {a.used}"),
    "nvmlDeviceGetCudaComputeCapability": (((),), _plain),
    "nvmlDeviceGetPersistenceMode": (((),), _plain),
    "nvmlDeviceGetComputeMode": (((),), _plain),
    "nvmlDeviceGetPowerState": (((),), _plain),
    "nvmlDeviceGetPowerUsage": (((),), _plain),
    "nvmlDeviceGetEnforcedPowerLimit": (((),), _plain),
    "nvmlDeviceGetPowerManagementLimit": (((),), _plain),
    "nvmlDeviceGetPowerManagementDefaultLimit": (((),), _plain),
    "nvmlDeviceGetTemperature": (((0,),), _plain),
    "nvmlDeviceGetClockInfo": (((0,), (1,), (2,)), _plain),
    "nvmlDeviceGetMaxClockInfo": (((0,), (1,), (2,)), _plain),
    "nvmlDeviceGetApplicationsClock": (((0,), (1,), (2,)), _plain),
    "nvmlDeviceGetCurrentClocksEventReasons": (((),), _plain),
    "nvmlDeviceGetUtilizationRates": (((),), lambda a: f"{a.gpu} {a.memory}"),
    "nvmlDeviceGetSamples": (((1,),), lambda a: " ".join(str(s.sampleValue.uiVal) for s in a[1])),
    "nvmlDeviceGetProcessUtilization": (((),), lambda a: " ".join(f"{s.pid} {s.smUtil}" for s in a)),
    "nvmlDeviceGetComputeRunningProcesses": (((),), _processes),
    "nvmlDeviceGetGraphicsRunningProcesses": (((),), _processes),
    "nvmlDeviceGetMPSComputeRunningProcesses": (((),), _processes),
    "nvmlDeviceGetCurrPcieLinkWidth": (((),), _plain),
    "nvmlDeviceGetMaxPcieLinkWidth": (((),), _plain),
    "nvmlDeviceGetCurrPcieLinkGeneration": (((),), _plain),
    "nvmlDeviceGetMaxPcieLinkGeneration": (((),), _plain),
    "nvmlDeviceGetPcieReplayCounter": (((),), _plain),
    "nvmlDeviceGetEccMode": (((),), _plain),
    "nvmlDeviceGetTotalEccErrors": (tuple((k, c) for k in (0, 1) for c in (0, 1)), _plain),
    "nvmlDeviceGetMemoryErrorCounter": (tuple((1, c, w) for c in (0, 1) for w in (0, 1, 2, 3, 7)), _plain),
    "nvmlDeviceGetRemappedRows": (((),), _plain),
    "nvmlDeviceGetRetiredPages": (((0,), (1,)), _plain),
    "nvmlDeviceGetRetiredPagesPendingStatus": (((),), _plain),
    "nvmlDeviceGetMigMode": (((),), _plain),
    "nvmlDeviceGetMaxMigDeviceCount": (((),), _plain),
    "nvmlDeviceGetGpuInstanceProfileInfo": (
        tuple((k,) for k in range(18)), lambda a: f"{a.id} {a.sliceCount} {a.instanceCount} {a.memorySizeMB}",
    ),
    "nvmlDeviceGetNvLinkState": (tuple((k,) for k in range(18)), _plain),
}  # fmt: skip
_OF_LINK: Final[dict[str, tuple[tuple[tuple[int, ...], ...], Values]]] = {
    "nvmlDeviceGetNvLinkRemotePciInfo": (((),), _pci),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (((),), _plain),
    "nvmlDeviceGetNvLinkErrorCounter": (tuple((k,) for k in range(4)), _plain),
}
_FIELDS: Final = ("NVML_FI_DEV_MEMORY_TEMP",)


def record(file: Path) -> str:
    """Write the file; what it holds, in words. Nothing of the machine is changed by it."""
    from unidle.nvml import load

    nvml = load()
    nvml.nvmlInit()
    try:
        lines = list(_lines(nvml))
    finally:
        nvml.nvmlShutdown()
    head = "# Recorded on a machine by `make test-gpu ARGS=--record`: what NVML answered."
    file.write_text("\n".join([head, *lines, ""]))
    return f"{len(lines)} answers of NVML in {file}"


def _lines(nvml: Any) -> Iterator[str]:
    for name, function in _SYSTEM.items():
        yield _line(nvml, name, (), getattr(nvml, function), _plain)
    handles: dict[int, Any] = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        line = _line(
            nvml,
            "nvmlDeviceGetHandleByIndex",
            (number,),
            partial(nvml.nvmlDeviceGetHandleByIndex, number),
            lambda _: "",
        )
        yield line
        if " ! " not in line:
            handles[number] = nvml.nvmlDeviceGetHandleByIndex(number)
    for number, handle in handles.items():
        yield from _of_gpu(nvml, number, handle)
        for other, far in handles.items():
            if other != number:
                yield _line(
                    nvml, "nvmlDeviceGetTopologyCommonAncestor", (number, other),
                    partial(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, far), _plain,
                )  # fmt: skip


def _of_gpu(nvml: Any, number: int, handle: Any) -> Iterator[str]:
    for name, (asked, values) in _OF_GPU.items():
        for more in asked:
            yield _line(nvml, name, (number, *more), partial(_call, nvml, name, handle, more), values)
    for link in range(18):
        if _works(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)):
            for name, (asked, values) in _OF_LINK.items():
                for more in asked:
                    call = partial(_call, nvml, name, handle, (link, *more))
                    yield _line(nvml, name, (number, link, *more), call, values)
    yield from _structures(nvml, number, handle)


def _structures(nvml: Any, number: int, handle: Any) -> Iterator[str]:
    """Answers that come in structures of a version, and field values."""

    def fabric() -> Any:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info.state, info.status

    def sram() -> Any:
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
        kinds = ("UncParity", "UncSecDed", "Cor")
        return [getattr(status, since + kind) for since in ("aggregate", "volatile") for kind in kinds]

    yield _line(nvml, "nvmlDeviceGetGpuFabricInfo", (number,), fabric, _plain)
    yield _line(nvml, "nvmlDeviceGetSramEccErrorStatus", (number,), sram, _plain)
    for field in _FIELDS:
        code = getattr(nvml, field)

        def value(code: int = code) -> Any:
            (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [(code, 0)])
            if answer.nvmlReturn:
                raise nvml.NVMLError(answer.nvmlReturn)
            return answer.valueType, answer.value.uiVal if answer.valueType == 1 else answer.value.ullVal

        yield _line(nvml, "nvmlDeviceGetFieldValues", (number, code, 0), value, _plain)
    for profile in range(18):
        if info := _works(nvml, partial(nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, profile)):

            def places(of: int = info.id) -> Any:
                array, count = (nvml.c_nvmlGpuInstancePlacement_t * 32)(), ctypes.c_uint(32)
                nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, of, array, ctypes.byref(count))
                starts = [place.start for place in array[: count.value]]
                return [array[0].size, *starts] if starts else []

            yield _line(nvml, "nvmlDeviceGetGpuInstancePossiblePlacements", (number, info.id), places, _plain)


_SINCE: Final = frozenset(
    {"nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization"}
)  # also asked: since when


def _call(nvml: Any, name: str, handle: Any, more: tuple[int, ...]) -> Any:
    return getattr(nvml, name)(handle, *more, *((0,) if name in _SINCE else ()))


def _works(nvml: Any, call: Callable[[], Any]) -> Any:
    try:
        return call() or True
    except (nvml.NVMLError, AttributeError):
        return None


def _line(nvml: Any, name: str, numbers: tuple[int, ...], call: Callable[[], Any], values: Values) -> str:
    start = " ".join([name, *map(str, numbers)])
    try:
        return f"{start} = {values(call())}".rstrip()
    except nvml.NVMLError as error:
        return f"{start} ! {error.value}"
    except AttributeError:
        return f"{start} ! {nvml.NVML_ERROR_FUNCTION_NOT_FOUND}"
