"""Queries of one node's watch to NVIDIA's driver. Any of its calls may hang in the kernel without end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from unidle.fleet import Device
from unidle.fleet.nvml import Nvml
from unidle.fleet.pci import read_text
from unidle.guard.counters import GpuReading
from unidle.guard.driver_state import WELL, DriverLook, DriverState, died, driver_state
from unidle.probe.check.gpu import throttle_reasons
from unidle.probe.check.gpu_memory import dram_errors, sram_errors
from unidle.probe.check.nvml import Missing, NvmlGpu, ask, constant, gpus, opened
from unidle.probe.device_names import DeviceNames

_TRY_AGAIN_NS: Final = 60_000_000_000
_MOST_EVENTS: Final = 256
_NVIDIA: Final = "0x10de"
_GPU_CLASSES: Final = ("0x0300", "0x0302")  # VGA and 3D controllers (pci.ids)


@dataclass(frozen=True, slots=True)
class DriverReading:
    """One look: the readings by device, Xid events (address, code) in their order, and what is wrong with the driver."""

    state: DriverState
    why: str = ""
    readings: dict[str, GpuReading] = field(default_factory=dict)
    xids: tuple[tuple[str, int], ...] = ()


class GpuDriver:
    """Queries NVML about ``devices``. Use it from one thread only, except :attr:`calling`."""

    def __init__(self, devices: Sequence[Device], names: DeviceNames, given: Nvml | None, root: Path) -> None:
        self._devices, self._names, self._given, self._root = devices, names, given, root
        self._stack = ExitStack()
        self._nvml: Nvml | None = None
        self._named = _Named(None)
        self._events: Any = None
        self._buses: dict[str, str] = {}  # the address that NVML knows a device by
        self._try_ns = 0
        self._state = WELL

    @property
    def calling(self) -> str:
        """The function of NVML that was called last."""
        return self._named.calling

    def look(self, now_ns: int) -> DriverReading:
        """The current state and readings of the driver. May never return."""
        if self._nvml is None:
            if now_ns >= self._try_ns:
                self._open(now_ns)
            if self._nvml is None:
                return DriverReading(self._state)
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetCount()
            found, why = self._listed(nvml)
        except nvml.NVMLError as error:
            self._state = died(str(error))
            self.close()
            self._try_ns = now_ns + _TRY_AGAIN_NS
            return DriverReading(self._state)
        lost = GpuReading(lost=True)  # NVML has listed it before
        readings = {device: _read(nvml, found[device]) if device in found else lost for device in self._buses}
        return DriverReading(WELL, why, readings, tuple(self._xids(nvml)))

    def close(self) -> None:
        """Let go of NVML. May never return."""
        if self._nvml is not None and self._events is not None:
            ask(self._nvml, "nvmlEventSetFree", self._events)
        self._nvml, self._events = None, None
        self._stack.close()

    def _open(self, now_ns: int) -> None:
        self._named.calling = "nvmlInit"
        try:
            nvml = self._stack.enter_context(opened(self._given))
        except Missing as error:
            self._state = driver_state(_look_of(self._root, str(error), error.code))
            self._try_ns = now_ns + _TRY_AGAIN_NS
            return
        self._named = _Named(nvml)
        self._nvml, self._state = cast("Nvml", self._named), WELL
        self._register(self._nvml)

    def _listed(self, nvml: Nvml) -> tuple[dict[str, NvmlGpu], str]:
        """The fleet's devices that NVML lists now, and which it does not."""
        listed = list(gpus(nvml))
        found = {}
        for device in self._devices:
            gpu = next((g for g in listed if self._is(nvml, device, g)), None)
            if gpu is not None:
                self._buses[device.id] = gpu.bus_id
                self._names.tell(device.id, (gpu.bus_id,))
                found[device.id] = gpu
        unseen = [device.id for device in self._devices if device.id not in self._buses]
        return found, f"NVML does not list {', '.join(unseen[:4])}" if unseen else ""

    def _is(self, nvml: Nvml, device: Device, gpu: NvmlGpu) -> bool:
        if device.id in self._buses:
            return gpu.bus_id == self._buses[device.id]
        if device.uuid:
            uuid = ask(nvml, "nvmlDeviceGetUUID", gpu.handle)
            return bool(uuid) and (uuid.decode() if isinstance(uuid, bytes) else uuid) == device.uuid
        return gpu.index == (device.index if device.number is None else device.number)

    # -- Xid events ------------------------------------------------------------------------------

    def _register(self, nvml: Nvml) -> None:
        """Have the driver tell Xids, also where the kernel log cannot be read. Old drivers and containers may refuse."""
        kind = constant(nvml, "nvmlEventTypeXidCriticalError")
        self._events = ask(nvml, "nvmlEventSetCreate")
        if self._events is None or kind is None:
            return
        for gpu in gpus(nvml):
            ask(nvml, "nvmlDeviceRegisterEvents", gpu.handle, kind, self._events)

    def _xids(self, nvml: Nvml) -> Iterator[tuple[str, int]]:
        if self._events is None:
            return
        for _ in range(_MOST_EVENTS):
            event = ask(nvml, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                return  # none is left
            pci = ask(nvml, "nvmlDeviceGetPciInfo", event.device)
            bus = pci.busId if pci is not None else ""
            yield bus.decode() if isinstance(bus, bytes) else bus, int(event.eventData)


class _Named:
    """NVML, and which of its functions was called last."""

    def __init__(self, nvml: Nvml | None) -> None:
        self._nvml = nvml
        self.calling = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calling = name
        return getattr(self._nvml, name)


def _read(nvml: Nvml, gpu: NvmlGpu) -> GpuReading:
    try:
        nvml.nvmlDeviceGetMemoryInfo(gpu.handle)  # type: ignore[attr-defined]  # it needs the GPU itself
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == constant(nvml, "NVML_ERROR_GPU_IS_LOST"):
            return GpuReading(lost=True)
    rows = ask(nvml, "nvmlDeviceGetRemappedRows", gpu.handle)
    return GpuReading(
        False, sram_errors(nvml, gpu), dram_errors(nvml, gpu), None if rows is None else bool(rows[2]),
        None if rows is None else bool(rows[3]), throttle_reasons(nvml, gpu) or 0,
    )  # fmt: skip


def _look_of(root: Path, error: str, code: int | None) -> DriverLook:
    """What the machine shows of the driver next to NVML."""
    module = root / "sys/module/nvidia"
    found = read_text(module / "version")
    return DriverLook(
        error, code, found if module.is_dir() else None, _library(root), sum(1 for _ in _gpus_on_pci(root)),
        (root / "dev/nvidiactl").exists(),
    )  # fmt: skip


def _library(root: Path) -> str:
    """The version of the library that this process has opened: it is in the name of its file."""
    name = "libnvidia-ml.so."
    versions = {
        line.rpartition(name)[2] for line in read_text(root / "proc/self/maps").splitlines() if name in line
    }
    return max(versions, default="")


def _gpus_on_pci(root: Path) -> Iterator[Path]:
    """NVIDIA's GPUs that are bound to its driver or to none (those passed to a virtual machine are left out)."""
    for path in (root / "sys/bus/pci/devices").glob("*"):
        if read_text(path / "vendor") == _NVIDIA and read_text(path / "class").startswith(_GPU_CLASSES):
            driver = path / "driver"
            if not driver.exists() or driver.resolve().name == "nvidia":
                yield path
