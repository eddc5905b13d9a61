"""Watches what the kernel tells of a machine's parts: network links, InfiniBand ports, memory controllers, AMD's GPUs.

For a node that is a network namespace of this machine it is the namespace itself, and the interface with its address.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from unidle.fleet.pci import read_text
from unidle.fleet.ras import ras_errors
from unidle.guard.counters import LASTS, MachineReading, counted_down, machine_faults
from unidle.guard.log.model import Finding
from unidle.probe.heard import Heard

MACHINE: Final = "machine"
SPACES: Final = Path("/run/netns")
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFADDR: Final = 0x8915
_IFF_RUNNING: Final = 0x40
_IFF_UP: Final = 0x1
_PHYSICAL: Final = ("", "1", "32")  # ARPHRD_ETHER, ARPHRD_INFINIBAND


class MachineWatch:
    """A :class:`~unidle.probe.heard.Detector` on ``/sys`` (``sysfs``) of the machine that is the node."""

    def __init__(self, node: str, kept: str, sysfs: Path = Path("/sys")) -> None:
        self._node, self._sysfs = node, sysfs
        self._before = _kept(kept)

    def look(self, now_ns: int) -> list[Heard]:
        links = links_of(self._sysfs)
        now = MachineReading(links, counted_down(self._before, links), errors_of(self._sysfs))
        heard = [_heard(self._node, f, now_ns, "/sys") for f in machine_faults(self._before, now)]
        self._before = now
        return heard

    def seeing(self) -> tuple[str, int]:
        why = "" if (self._sysfs / "class").is_dir() else f"{self._sysfs}: the kernel's tree is not there"
        return why, 0

    def keep(self) -> str:
        return "" if self._before is None else json.dumps(asdict(self._before))

    def close(self) -> None:
        """Nothing is open."""


class SpaceWatch:
    """A :class:`~unidle.probe.heard.Detector` on a network namespace; ``enter`` moves the calling thread into one."""

    def __init__(self, node: str, space: str, address: str, kept: str, enter: Callable[[str], None]) -> None:
        self._node, self._space, self._address, self._enter = node, space, address, enter
        self._before = _kept(kept)
        self._inside = self._was_there = False
        self._silent_times = 0
        self._why = ""

    def look(self, now_ns: int) -> list[Heard]:
        if not (SPACES / self._space).exists():
            return self._gone(now_ns)
        self._silent_times = 0
        if not self._inside:
            try:
                self._enter(self._space)
            except OSError as error:
                self._why = f"{error}; run as root"
                return []
            self._inside, self._why = True, ""
        self._was_there = True
        links = _links_here(self._address)
        now = MachineReading(links, counted_down(self._before, links))
        heard = [_heard(self._node, f, now_ns, self._space) for f in machine_faults(self._before, now)]
        self._before = now
        return heard

    def _gone(self, now_ns: int) -> list[Heard]:
        self._silent_times += 1
        self._inside = False
        if not self._was_there:
            self._why = f"there is no network namespace {self._space}"
        if not self._was_there or self._silent_times != LASTS:
            return []
        text = f"its network namespace {self._space} is gone: nothing reaches the node any more"
        finding = Finding(0, "silent", None, "", "culprit", "reboot_node", text, "fatal", 80)
        return [_heard(self._node, finding, now_ns, self._space)]

    def seeing(self) -> tuple[str, int]:
        return self._why, 0

    def keep(self) -> str:
        return "" if self._before is None else json.dumps(asdict(self._before))

    def close(self) -> None:
        """Nothing is open."""


def links_of(sysfs: Path) -> dict[str, bool]:
    """Network interfaces of the hardware and InfiniBand ports, each with whether it has a carrier.

    (The kernel's ``sysfs-class-net`` and ``sysfs-class-infiniband``.) An interface that was switched off is left out.
    """
    found: dict[str, bool] = {}
    for path in sorted((sysfs / "class/net").glob("*")):
        flags = read_text(path / "flags")
        hardware = (path / "device").exists() and read_text(path / "type") in _PHYSICAL
        if hardware and flags.startswith("0x") and int(flags, 16) & _IFF_UP:
            found[path.name] = read_text(path / "carrier") == "1"
    for path in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        state = read_text(path / "state")  # "4: ACTIVE"
        if state:
            found[f"{path.parts[-3]} port {path.name}"] = state.startswith("4")
    return found


def errors_of(sysfs: Path) -> dict[str, int]:
    """What memory controllers (EDAC, ``mc0``) and AMD's GPUs (``card0``) could not correct."""
    found = ras_errors(sysfs)
    for path in sorted((sysfs / "devices/system/edac/mc").glob("mc[0-9]*")):
        count = read_text(path / "ue_count")
        if count.isdecimal():
            found[path.name] = int(count)
    return found


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


def _heard(node: str, finding: Finding, now_ns: int, source: str) -> Heard:
    return Heard(node, MACHINE, "", finding, now_ns, now_ns, source)


def _kept(text: str) -> MachineReading | None:
    try:
        told = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(told, Mapping) or set(told) != {"links", "down_times", "errors"}:
        return None
    return MachineReading(dict(told["links"]), {}, dict(told["errors"]))
