"""Watches the GPUs of one node through NVML: errors, remapped rows, clocks, lost devices, and the driver's Xid events.

A JSON file may be laid over what NVML tells, for drills: a mapping from device ids to readings, such as
``{"n1/0": {"dram_errors": 2, "xid": 79}}``. Counts are added, other values replace; an ``xid`` is told once for each
``xid_number``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unidle.fleet import Device, Node
from unidle.guard.counters import GpuReading, counted_slow, gpu_faults
from unidle.guard.log.model import Finding, LogLine
from unidle.probe.check.gpu import throttle_reasons
from unidle.probe.check.gpu_memory import dram_errors, sram_errors
from unidle.probe.check.nvml import Gpu, Missing, Nvml, ask, constant, gpus, opened
from unidle.probe.heard import Heard
from unidle.probe.names import Names

if TYPE_CHECKING:
    from unidle.guard.log.reader import Reader

GPUS: Final = "GPUs"
_TRY_AGAIN_NS: Final = 60_000_000_000
_MOST_EVENTS: Final = 256


class Overlay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a drill makes a device tell."""

    lost: bool | None = None
    sram_errors: int = 0
    dram_errors: int = 0
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowed: int = 0
    xid: int | None = None
    xid_number: int = 0


_OVERLAYS: Final = msgspec.json.Decoder(dict[str, Overlay])


@dataclass(slots=True)
class _Known:
    """One device of the fleet: its last reading, and the address that NVML knows it by."""

    device: Device
    bus: str = ""
    reading: GpuReading | None = None
    xid: tuple[int, int] | None = None  # what the overlay told last


class GpuWatch:
    """A :class:`~unidle.probe.heard.Detector` on NVML; ``nvml`` is the machine's where it is not given."""

    def __init__(
        self, node: Node, names: Names, kept: str, overlay: str = "", nvml: Nvml | None = None
    ) -> None:
        self._node, self._names, self._given = node.id, names, nvml
        self._overlay = overlay
        real = [d for d in node.devices if d.kind == "gpu" and d.vendor == "nvidia"]
        self._asks = bool(real)
        self._known = {d.id: _Known(d) for d in (node.devices if overlay else real)}
        self._stack = ExitStack()
        self._nvml: Nvml | None = None
        self._events: Any = None
        self._reader: Reader | None = None
        self._try_ns, self._number = 0, 0
        self._why = self._overlay_why = ""
        for device, told in _kept(kept).items():
            if device in self._known:
                self._known[device].reading = GpuReading(**told["reading"])
                self._known[device].xid = tuple(told["xid"]) if told["xid"] else None

    def look(self, now_ns: int) -> list[Heard]:
        heard: list[Heard] = []
        if self._asks and self._nvml is None and now_ns >= self._try_ns:
            self._open(now_ns)
        found: dict[str, tuple[Nvml, Gpu]] = {}
        if self._nvml is not None:
            try:
                found = self._devices(self._nvml)
            except self._nvml.NVMLError as error:
                text = f"the driver does not answer any more: {error}"
                finding = Finding(0, "driver", None, "", "culprit", "reboot_node", text, "fatal", 70)
                heard.append(self._heard(finding, "", now_ns))
                self._shut(f"NVML: {error}")
                self._try_ns = now_ns + _TRY_AGAIN_NS
                return heard
            heard += [self._heard(f, self._names.device(f.device), now_ns) for f in self._xids()]
        overlays = self._laid_over()
        for device, known in self._known.items():
            reading = self._reading(known, found.get(device), overlays.get(device))
            if reading is None:
                continue
            hardware = self._names.hardware(device)
            for finding in gpu_faults(known.reading, reading, hardware):
                heard.append(self._heard(finding, device, now_ns))
            known.reading = reading
            heard += [self._heard(f, device, now_ns) for f in self._told(known, overlays.get(device))]
        return heard

    def _open(self, now_ns: int) -> None:
        try:
            self._nvml = self._stack.enter_context(opened(self._given))
        except Missing as error:
            self._why = f"{error}; install the driver, or run where it is"
            self._try_ns = now_ns + _TRY_AGAIN_NS
            return
        self._why = ""
        self._register(self._nvml)

    def _devices(self, nvml: Nvml) -> dict[str, tuple[Nvml, Gpu]]:
        """The fleet's devices that NVML lists now. Errors: NVML's own, where it answers nothing at all."""
        nvml.nvmlDeviceGetCount()
        listed = list(gpus(nvml))
        found = {}
        for known in self._known.values():
            gpu = next((g for g in listed if self._is(nvml, known, g)), None)
            if gpu is not None:
                known.bus = gpu.bus_id
                self._names.tell(known.device.id, (gpu.bus_id,))
                found[known.device.id] = (nvml, gpu)
        unseen = [k.device.id for k in self._known.values() if not k.bus and k.device.kind == "gpu"]
        self._why = f"NVML does not list {', '.join(unseen[:4])}" if unseen else ""
        return found

    def _is(self, nvml: Nvml, known: _Known, gpu: Gpu) -> bool:
        device = known.device
        if known.bus:
            return gpu.bus_id == known.bus
        if device.kind != "gpu" or device.vendor != "nvidia":
            return False
        if device.uuid:
            uuid = ask(nvml, "nvmlDeviceGetUUID", gpu.handle)
            return bool(uuid) and (uuid.decode() if isinstance(uuid, bytes) else uuid) == device.uuid
        return gpu.index == (device.index if device.number is None else device.number)

    def _reading(
        self, known: _Known, found: tuple[Nvml, Gpu] | None, laid: Overlay | None
    ) -> GpuReading | None:
        """What is told of a device now; None where nothing is."""
        reading: GpuReading | None = None
        if found is not None:
            reading = _read(*found)
        elif known.bus and self._nvml is not None:
            reading = GpuReading(lost=True)  # NVML has listed it before
        if self._overlay:
            reading = _laid(reading or GpuReading(), laid or Overlay())
        if reading is None:
            return None
        return replace(reading, slowed_times=counted_slow(known.reading, reading.slowed))

    def _laid_over(self) -> dict[str, Overlay]:
        self._overlay_why = ""
        if not self._overlay:
            return {}
        try:
            return _OVERLAYS.decode(Path(self._overlay).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            self._overlay_why = f"{self._overlay}: {error}"
            return {}

    # -- Xid events ------------------------------------------------------------------------------

    def _register(self, nvml: Nvml) -> None:
        """Have the driver tell Xids, also where the kernel log cannot be read. Old drivers and containers may refuse."""
        kind = constant(nvml, "nvmlEventTypeXidCriticalError")
        self._events = ask(nvml, "nvmlEventSetCreate")
        if self._events is None or kind is None:
            return
        for gpu in gpus(nvml):
            ask(nvml, "nvmlDeviceRegisterEvents", gpu.handle, kind, self._events)

    def _xids(self) -> Iterator[Finding]:
        nvml = self._nvml
        if nvml is None or self._events is None:
            return
        for _ in range(_MOST_EVENTS):
            event = ask(nvml, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                return  # none is left
            pci = ask(nvml, "nvmlDeviceGetPciInfo", event.device)
            bus = pci.busId if pci is not None else ""
            finding = self._xid(bus.decode() if isinstance(bus, bytes) else bus, int(event.eventData))
            if finding is not None:
                yield finding

    def _xid(self, bus: str, code: int) -> Finding | None:
        """An Xid as the kernel log would tell it, so that one set of rules says what it means."""
        if self._reader is None:
            from unidle.guard.log.reader import Reader

            self._reader = Reader()
        self._number += 1
        return self._reader.read(LogLine(self._number, f"NVRM: Xid (PCI:{bus}): {code}, ".encode()))

    def _told(self, known: _Known, laid: Overlay | None) -> Iterator[Finding]:
        """The overlay's Xid, where it is another than before."""
        xid = (laid.xid, laid.xid_number) if laid is not None and laid.xid is not None else None
        if xid is not None and xid != known.xid:
            hardware = self._names.hardware(known.device.id)
            finding = self._xid(hardware if hardware.count(":") == 2 else "0000:00:00.0", xid[0])
            if finding is not None:
                yield replace(finding, device=hardware)
        known.xid = xid

    def _heard(self, finding: Finding, device: str, now_ns: int) -> Heard:
        return Heard(self._node, GPUS, device, finding, now_ns, now_ns, "NVML")

    # -- as a detector ---------------------------------------------------------------------------

    def seeing(self) -> tuple[str, int]:
        return "; ".join(why for why in (self._why, self._overlay_why) if why), 0

    def keep(self) -> str:
        readings = {
            device: {"reading": asdict(replace(known.reading, slowed_times={})), "xid": known.xid}
            for device, known in self._known.items()
            if known.reading is not None
        }
        return json.dumps(readings)

    def close(self) -> None:
        self._shut("")

    def _shut(self, why: str) -> None:
        if self._nvml is not None and self._events is not None:
            ask(self._nvml, "nvmlEventSetFree", self._events)
        self._nvml, self._events, self._why = None, None, why
        self._stack.close()


def _read(nvml: Nvml, gpu: Gpu) -> GpuReading:
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


def _laid(reading: GpuReading, laid: Overlay) -> GpuReading:
    return replace(
        reading,
        lost=reading.lost if laid.lost is None else laid.lost,
        sram_errors=(reading.sram_errors or 0) + laid.sram_errors,
        dram_errors=(reading.dram_errors or 0) + laid.dram_errors,
        remap_pending=reading.remap_pending if laid.remap_pending is None else laid.remap_pending,
        remap_failed=reading.remap_failed if laid.remap_failed is None else laid.remap_failed,
        slowed=reading.slowed | laid.slowed,
    )


def _kept(text: str) -> dict[str, dict[str, Any]]:
    """Readings of an earlier instance; one of another form is worth nothing."""
    try:
        told = json.loads(text) if text else {}
        for one in told.values():
            GpuReading(**one["reading"])
            tuple(one["xid"] or ())
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
    return dict(told)
