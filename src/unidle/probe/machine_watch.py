"""Watches a machine's parts through the kernel: network links, InfiniBand ports, memory controllers, AMD's GPUs,
sensors of power and cooling.

For a node that is a network namespace of this machine, only the namespace and the interface with its address are watched.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import msgspec

from unidle.fleet.amd import ras_errors
from unidle.fleet.pci import read_text
from unidle.guard.counters import (
    LASTS,
    MachineReading,
    counted_alarms,
    counted_down,
    counted_up,
    machine_faults,
)
from unidle.guard.log.model import Finding
from unidle.probe.detector import Detection
from unidle.probe.link_counters import carrier_losses, carrier_losses_here, port_errors

MACHINE: Final = "machine"
SPACES: Final = Path("/run/netns")
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFADDR: Final = 0x8915
_IFF_RUNNING: Final = 0x40
_IFF_UP: Final = 0x1
_PHYSICAL: Final = ("", "1", "32")  # ARPHRD_ETHER, ARPHRD_INFINIBAND
_NO_ALARMS: Final = ("cap_alarm", "intrusion")  # power at its cap is as it should be; an open lid is no fault
_KEPT_TO_NS: Final = 600_000_000_000  # so often at most what is kept of a quiet machine changes
# a port's error counter is a command to its firmware, a disk's alarm one to the disk
_ERRORS_EVERY_NS: Final = 30_000_000_000
_ALARMS_EVERY_NS: Final = 10_000_000_000


class _Parts:
    """The parts of one node: the last reading, and what is wrong by the next one. ``model``: of its devices."""

    def __init__(self, node: str, kept: str, model: str) -> None:
        self._node, self._model = node, model
        self._before = _kept(kept)

    def detections(
        self, now_ns: int, source: str, links: Mapping[str, bool], counts: Mapping[str, int],
        errors: Mapping[str, int] | None = None, alarms: Collection[str] | None = None,
    ) -> list[Detection]:  # fmt: skip
        before = self._before
        now = MachineReading(
            links, counted_down(before, links), errors or {}, counted_up(before, counts, now_ns),
            counted_alarms(before, alarms),
        )  # fmt: skip
        limits = self._limits() if any(one.steps for one in now.growths.values()) else {}
        self._before = now
        return [self.of(finding, now_ns, source) for finding in machine_faults(before, now, limits)]

    def of(self, finding: Finding, now_ns: int, source: str) -> Detection:
        return Detection(self._node, MACHINE, "", finding, now_ns, now_ns, source)

    def _limits(self) -> dict[str, float | None]:
        from unidle.probe.check.thresholds import shipped  # most machines never need them

        return asdict(shipped().of(self._model))

    def keep(self) -> str:
        if self._before is None:
            return ""
        growths = {
            name: replace(one, at_ns=one.at_ns - one.at_ns % _KEPT_TO_NS)
            for name, one in self._before.growths.items()
        }
        return msgspec.json.encode(replace(self._before, down_times={}, growths=growths)).decode()


class MachineWatch:
    """A :class:`~unidle.probe.detector.FaultDetector` on ``/sys`` (``sysfs``) of the machine that is the node."""

    def __init__(self, node: str, kept: str, sysfs: Path = Path("/sys"), model: str = "") -> None:
        self._sysfs = sysfs
        self._parts = _Parts(node, kept, model)
        self._read_ns: dict[str, int] = {}

    def look(self, now_ns: int) -> list[Detection]:
        if self.seeing()[0]:
            return []
        interfaces, ports = _interfaces(self._sysfs), _ports(self._sysfs)
        links, counts = links_of(interfaces, ports), losses_of(interfaces, ports)
        if self._due("errors", _ERRORS_EVERY_NS, now_ns):
            counts |= port_errors_of(ports)
        alarms = alarms_of(self._sysfs) if self._due("alarms", _ALARMS_EVERY_NS, now_ns) else None
        return self._parts.detections(now_ns, "/sys", links, counts, errors_of(self._sysfs), alarms)

    def _due(self, what: str, every_ns: int, now_ns: int) -> bool:
        """Whether what is costly is to be read now."""
        last_ns = self._read_ns.get(what)
        if last_ns is not None and 0 <= now_ns - last_ns < every_ns:
            return False
        self._read_ns[what] = now_ns
        return True

    def seeing(self) -> tuple[str, int]:
        why = "" if (self._sysfs / "class").is_dir() else f"{self._sysfs}: there is no sysfs here"
        return why, 0

    def keep(self) -> str:
        return self._parts.keep()

    def news_fd(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is open."""


class SpaceWatch:
    """A :class:`~unidle.probe.detector.FaultDetector` on a network namespace; ``enter`` moves the calling thread into one."""

    def __init__(
        self, node: str, space: str, address: str, kept: str, enter: Callable[[str], None], model: str = ""
    ) -> None:
        self._space, self._address, self._enter = space, address, enter
        self._parts = _Parts(node, kept, model)
        self._inside = self._was_there = False
        self._silent_times = 0
        self._why = ""

    def look(self, now_ns: int) -> list[Detection]:
        if not (SPACES / self._space).exists():
            return self._gone(now_ns)
        self._silent_times = 0
        try:
            if not self._inside:
                self._enter(self._space)
            links = _links_here(self._address)
            losses = carrier_losses_here() if links else {}
        except OSError as error:
            self._why = f"{error}; run as root" if not self._inside else f"{self._space}: {error}"
            return []
        self._inside = self._was_there = True
        self._why = "" if links else f"no interface of {self._space} has the address {self._address}"
        counts = {f"{name} carrier": losses[name] for name in links if name in losses}
        return self._parts.detections(now_ns, self._space, links, counts)

    def _gone(self, now_ns: int) -> list[Detection]:
        self._silent_times += 1
        self._inside = False
        if not self._was_there:
            self._why = f"there is no network namespace {self._space}"
        if not self._was_there or self._silent_times != LASTS:
            return []
        text = f"its network namespace {self._space} is gone: the node has no network any more"
        finding = Finding(0, "silent", None, "", "culprit", "reboot_node", text, "fatal", 80)
        return [self._parts.of(finding, now_ns, self._space)]

    def seeing(self) -> tuple[str, int]:
        return self._why, 0

    def keep(self) -> str:
        return self._parts.keep()

    def news_fd(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is open."""


def links_of(interfaces: Iterable[Path], ports: Iterable[Path]) -> dict[str, bool]:
    """Network interfaces of the hardware and InfiniBand ports, each with whether it has a carrier.

    (The kernel's ``sysfs-class-net`` and ``sysfs-class-infiniband``.) An interface that was switched off is left out.
    """
    found: dict[str, bool] = {}
    for path in interfaces:
        flags = read_text(path / "flags")
        if flags.startswith("0x") and int(flags, 16) & _IFF_UP:
            found[path.name] = read_text(path / "carrier") == "1"
    for path in ports:
        state = read_text(path / "state")  # "4: ACTIVE"
        if state:
            found[_port_name(path)] = state.startswith("4")
    return found


def losses_of(interfaces: Iterable[Path], ports: Iterable[Path]) -> dict[str, int]:
    """How often the links of :func:`links_of` went down, by ``LINK COUNTER``."""
    found: dict[str, int] = {}
    for path in interfaces:
        losses = carrier_losses(path)
        if losses is not None:
            found[f"{path.name} carrier"] = losses
    for path in ports:
        downed = read_text(path / "counters/link_downed")
        if downed.isdecimal():
            found[f"{_port_name(path)} link_downed"] = int(downed)
    return found


def port_errors_of(ports: Iterable[Path]) -> dict[str, int]:
    """The error counters of InfiniBand and RoCE ports, by ``LINK COUNTER``."""
    return {
        f"{_port_name(path)} {counter}": count
        for path in ports
        for counter, count in port_errors(path).items()
    }


def errors_of(sysfs: Path) -> dict[str, int]:
    """What memory controllers (EDAC, ``mc0``) and AMD's GPUs (``card0``) could not correct."""
    found = ras_errors(sysfs)
    for path in sorted((sysfs / "devices/system/edac/mc").glob("mc[0-9]*")):
        count = read_text(path / "ue_count")
        if count.isdecimal():
            found[path.name] = int(count)
    return found


def alarms_of(sysfs: Path) -> list[str]:
    """The alarms that sensors of power and cooling raise now, as ``CHIP ALARM`` (the kernel's hwmon interface)."""
    found: list[str] = []
    for chip in sorted((sysfs / "class/hwmon").glob("hwmon*")):
        # numbers change from boot to boot, the device behind them does not
        device = (chip / "device").resolve().name if (chip / "device").exists() else chip.name
        name = f"{read_text(chip / 'name') or 'sensor'} {device}"
        paths = sorted([*chip.glob("*_alarm"), *chip.glob("fan*_fault")])
        raised = [path.name for path in paths if read_text(path) == "1"]
        found += [f"{name} {alarm}" for alarm in raised if not any(word in alarm for word in _NO_ALARMS)]
    return found


def _interfaces(sysfs: Path) -> list[Path]:
    """Those of the hardware."""
    return [
        path
        for path in sorted((sysfs / "class/net").glob("*"))
        if read_text(path / "type") in _PHYSICAL and (path / "device").exists()
    ]


def _ports(sysfs: Path) -> list[Path]:
    return sorted((sysfs / "class/infiniband").glob("*/ports/*"))


def _port_name(port: Path) -> str:
    return f"{port.parts[-3]} port {port.name}"


def _links_here(address: str) -> dict[str, bool]:
    """The interfaces with this IPv4 address in the thread's network namespace, and whether each is running."""
    found: dict[str, bool] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) != address:
                    continue
                flags = struct.unpack_from("H", fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request), 16)[0]
            except OSError:
                continue  # it has no address
            found[name] = bool(flags & _IFF_UP and flags & _IFF_RUNNING)
    return found


def _kept(text: str) -> MachineReading | None:
    try:
        return msgspec.json.decode(text, type=MachineReading) if text else None
    except msgspec.DecodeError:
        return None
