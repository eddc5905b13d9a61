"""Watches the GPUs of one node through NVML: errors, remapped rows, clocks, lost devices, and the driver's Xid events.

For drills, a JSON file can overlay NVML's readings: a mapping from device ids to readings, such as
``{"n1/0": {"dram_errors": 2, "xid": 79}}``. Counts are added, other values replace; an ``xid`` is reported once for each
``xid_number``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.fleet import Device, Node
from unidle.fleet.nvml import Nvml
from unidle.guard.counters import GpuReading, Missed, counted_slow, gpu_faults
from unidle.guard.log.model import Finding, LogLine
from unidle.probe.bounded_call import BoundedCall
from unidle.probe.detector import Detection
from unidle.probe.device_names import DeviceNames
from unidle.probe.gpu_driver import DriverReading, GpuDriver
from unidle.probe.services import Services

if TYPE_CHECKING:
    from unidle.guard.log.reader import Reader

GPUS: Final = "GPUs"
PATIENCE_S: Final = 10.0
"""A query of the driver that takes longer hangs: the watch continues without it, and reports that."""
_CLOSE_S: Final = 0.5


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
    """One device of the fleet: its last reading."""

    device: Device
    reading: GpuReading | None = None
    xid: tuple[int, int] | None = None  # what the overlay told last


class _Kept(msgspec.Struct, frozen=True):
    """The state for the next instance: readings and overlay Xids by device, driver state, missed daemons."""

    readings: dict[str, GpuReading] = {}
    xids: dict[str, tuple[int, int]] = {}
    driver: str = ""
    missed: dict[str, tuple[int, bool]] = {}


class GpuWatch:
    """A :class:`~unidle.probe.detector.FaultDetector` on NVML; ``nvml`` is the machine's where it is not given."""

    def __init__(
        self, node: Node, names: DeviceNames, kept: str, overlay: str = "", nvml: Nvml | None = None,
        *, root: Path = Path("/"), patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._node, self._names = node.id, names
        self._overlay = overlay
        real = [d for d in node.devices if d.kind == "gpu" and d.vendor == "nvidia"]
        self._known = {d.id: _Known(d) for d in (node.devices if overlay else real)}
        self._driver = GpuDriver(real, names, nvml, root) if real else None
        self._patient: BoundedCall[DriverReading] = BoundedCall(f"unidle-nvml-{node.id}", patience_s)
        self._reader: Reader | None = None
        self._number = 0
        self._why = self._overlay_why = ""
        last = _kept(kept)
        self._told = last.driver
        self._services = (
            Services(root, {name: Missed(*one) for name, one in last.missed.items()}) if real else None
        )
        for device, known in self._known.items():
            known.reading, known.xid = last.readings.get(device), last.xids.get(device)

    def look(self, now_ns: int) -> list[Detection]:
        seen = self._seen(now_ns)
        found: list[tuple[Finding, str]] = []
        if seen is not None:
            if seen.state.fault is not None and seen.state.key != self._told:
                found.append((seen.state.fault, ""))
            self._told = seen.state.key if seen.state.fault is not None else ""
            for bus, code in seen.xids:
                if (finding := self._xid(bus, code)) is not None:
                    found.append((finding, self._names.device(finding.device)))
        if self._services is not None:
            found += [(finding, "") for finding in self._services.look(now_ns)]
        overlays = self._laid_over()
        for device, known in self._known.items():
            reading = self._reading(known, seen, overlays.get(device))
            if reading is None:
                continue
            found += [(f, device) for f in gpu_faults(known.reading, reading, self._names.hardware(device))]
            known.reading = reading
            found += [(f, device) for f in self._xid_laid_over(known, overlays.get(device))]
        return [self._detection(finding, device, now_ns) for finding, device in found]

    def _seen(self, now_ns: int) -> DriverReading | None:
        """One look at the driver; None where there is nothing to ask, and while it hangs."""
        driver = self._driver
        if driver is None:
            return None
        answer = self._patient.ask(lambda: driver.look(now_ns))
        if answer is None:
            self._why = f"the driver hangs: {driver.calling} of NVML has not returned"
            return None
        self._why = answer[0].state.why or answer[0].why
        return answer[0]

    def _reading(self, known: _Known, seen: DriverReading | None, laid: Overlay | None) -> GpuReading | None:
        """What is reported about a device now; None where nothing is."""
        reading = seen.readings.get(known.device.id) if seen is not None else None
        if self._overlay and not self._patient.hangs:
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

    def _xid(self, bus: str, code: int) -> Finding | None:
        """The finding for an Xid. It is read as a line of the kernel log, so that one set of rules classifies both."""
        if self._reader is None:
            from unidle.guard.log.reader import Reader

            self._reader = Reader()
        self._number += 1
        return self._reader.read(LogLine(self._number, f"NVRM: Xid (PCI:{bus}): {code}, ".encode()))

    def _xid_laid_over(self, known: _Known, laid: Overlay | None) -> Iterator[Finding]:
        """The overlay's Xid, where it is another than before."""
        xid = (laid.xid, laid.xid_number) if laid is not None and laid.xid is not None else None
        if xid is not None and xid != known.xid:
            hardware = self._names.hardware(known.device.id)
            finding = self._xid(hardware if hardware.count(":") == 2 else "0000:00:00.0", xid[0])
            if finding is not None:
                yield replace(finding, device=hardware)
        known.xid = xid

    def _detection(self, finding: Finding, device: str, now_ns: int) -> Detection:
        return Detection(self._node, GPUS, device, finding, now_ns, now_ns, "NVML")

    # -- as a detector ---------------------------------------------------------------------------

    def seeing(self) -> tuple[str, int]:
        services = self._services.why_not() if self._services is not None else ""
        return "; ".join(why for why in (self._why, self._overlay_why, services) if why), 0

    def keep(self) -> str:
        known = [(d, k, k.reading) for d, k in self._known.items() if k.reading is not None]
        missed = self._services.missed if self._services is not None else {}
        kept = _Kept(
            {device: replace(reading, slowed_times={}) for device, _, reading in known},
            {device: one.xid for device, one, _ in known if one.xid is not None},
            self._told,
            {name: (one.times, one.known) for name, one in missed.items()},
        )
        return msgspec.json.encode(kept).decode()

    def news_fd(self) -> int:
        return -1

    def close(self) -> None:
        """Let go of the driver; one that hangs is left as it is."""
        if self._driver is not None and not self._patient.hangs:
            BoundedCall[None]("unidle-nvml-close", _CLOSE_S).ask(self._driver.close)


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


def _kept(text: str) -> _Kept:
    """What an earlier instance kept; of another form it is worth nothing."""
    try:
        return msgspec.json.decode(text, type=_Kept) if text else _Kept()
    except msgspec.DecodeError:
        return _Kept()
