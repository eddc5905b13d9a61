"""Daemons that NVIDIA's driver cannot do without, as ``/proc`` shows them, and Kubernetes' device plugins."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.fleet.pci import read_text
from unidle.guard.counters import Missed
from unidle.guard.log.model import Action, Finding

_PLACE: Final = "var/lib/kubelet/device-plugins"
_KUBELET: Final = "kubelet.sock"
_PREFIX: Final = "device plugin "
_PATIENCE_S: Final = 1.0


class DevicePlugins:
    """Device plugins of Kubernetes: whether those that the kubelet of this machine had still answer on their sockets.

    By Kubernetes' device plugin interface each serves a socket next to ``kubelet.sock``; a kubelet that starts removes
    them all, and each live plugin makes its own again. The machine's files are under ``root``. ``missed``: the counts of an earlier instance, by service."""

    def __init__(self, root: Path, missed: dict[str, Missed]) -> None:
        self._place = root / _PLACE
        self._missed = missed
        self.why_not = ""

    def look(self) -> Iterator[Finding]:
        """Plugins that have just been missed for the third time. While no kubelet runs none is."""
        self.why_not = ""
        try:
            place = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError as error:
            self.why_not = f"{self._place}: {error.strerror}: device plugins are not watched; run as root"
            return
        except OSError:
            return  # no node of Kubernetes
        names = [path.name for path in self._place.glob("*.sock")]
        try:
            found = {name: self._answers(place, name) for name in names}
        finally:
            os.close(place)
        if not found.pop(_KUBELET, False):
            return
        known = {name.removeprefix(_PREFIX) for name in self._missed if name.startswith(_PREFIX)}
        for name in sorted(found.keys() | known):
            yield from self._miss(name, found.get(name, False))

    def _answers(self, place: int, name: str) -> bool | None:
        """Whether a process listens on the socket; None if that cannot be determined."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_PATIENCE_S)
            try:
                link.connect(f"/proc/self/fd/{place}/{name}")  # the path itself may be too long for a socket
            except PermissionError as error:
                self.why_not = (
                    f"{self._place / name}: {error.strerror}: device plugins are not watched; run as root"
                )
                return None
            except OSError:
                return False
        return True

    def _miss(self, name: str, answers: bool | None) -> Iterator[Finding]:
        before = self._missed.get(_PREFIX + name, Missed())
        if answers is None or not (answers or before.known):
            return
        now = self._missed[_PREFIX + name] = before.after(answers)
        if now.is_news:
            yield _plugin_finding(name)


def _plugin_finding(name: str) -> Finding:
    text = f"the device plugin {name} does not answer any more: the kubelet gives its devices to no new pod"
    return Finding(0, "service", None, name, "culprit", "restart_service", text, "warning", 30)


FABRIC, PERSISTENCE = "nvidia-fabricmanager", "nvidia-persistenced"
_EVERY_NS: Final = 10_000_000_000
_COMM: Final = 15  # the kernel keeps so much of a process's name
_NAMES: Final = {FABRIC: "nv-fabricmanager"[:_COMM], PERSISTENCE: PERSISTENCE[:_COMM]}
_NVSWITCH: Final = ("0x10de", "0x0680")  # NVIDIA, bridge (pci.ids)
_INITS: Final = ("systemd", "init")


class Services:
    """Daemons of the machine with ``/proc`` and ``/sys`` under ``root``. ``missed``: counts of an earlier instance."""

    def __init__(self, root: Path, missed: dict[str, Missed]) -> None:
        self._root = root
        self.missed = missed
        self._pids: dict[str, Path] = {}
        self._next_ns = 0
        self._switches: bool | None = None
        self._sees_all = False
        self._plugins = DevicePlugins(root, missed)

    def look(self, now_ns: int) -> list[Finding]:
        """Daemons that have just been missed for the third time. A machine with NVSwitches needs the fabric manager; the
        other ones are missed only where they have been."""
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + _EVERY_NS
        if self._switches is None:
            self._switches = self._has_switches()
            self._sees_all = read_text(self._root / "proc/1/comm") in _INITS
        self._find()
        found = [finding for name in _NAMES if (finding := self._miss(name)) is not None]
        return [*found, *self._plugins.look()]

    def why_not(self) -> str:
        """Why the fabric manager, where there has to be one, or a device plugin cannot be seen; empty where they can."""
        if not self._switches or self._sees_all or FABRIC in self._pids:
            return self._plugins.why_not
        return "the machine's processes cannot be seen from here, nor whether the fabric manager runs; run outside the container"

    def _has_switches(self) -> bool:
        for path in (self._root / "sys/bus/pci/devices").glob("*"):
            vendor, kind = read_text(path / "vendor"), read_text(path / "class")
            if vendor == _NVSWITCH[0] and kind.startswith(_NVSWITCH[1]):
                return True
        return False

    def _find(self) -> None:
        """Where each daemon is; all processes are looked through only while one is missed."""
        self._pids = {n: path for n, path in self._pids.items() if read_text(path / "comm") == _NAMES[n]}
        if len(self._pids) == len(_NAMES):
            return
        for path in (self._root / "proc").glob("[0-9]*"):
            comm = read_text(path / "comm")
            for name, short in _NAMES.items():
                if comm == short:
                    self._pids.setdefault(name, path)

    def _miss(self, name: str) -> Finding | None:
        before, runs = self.missed.get(name, Missed()), name in self._pids
        if not runs and (not self._sees_all or not (before.known or (name == FABRIC and self._switches))):
            return None
        now = self.missed[name] = before.after(runs)
        return _finding(name) if now.is_news else None


def _finding(name: str) -> Finding:
    action: Action = "restart_service" if name == FABRIC else "watch"
    text = (
        "the fabric manager does not run: no new process can use the GPUs behind the NVSwitches (CUDA error 802)"
        if name == FABRIC
        else f"{name} has ended: the driver releases GPUs between jobs, and the next one waits for them"
    )
    severity, rank = ("error", 50) if name == FABRIC else ("warning", 20)
    return Finding(0, "service", None, name, "culprit", action, text, severity, rank)  # type: ignore[arg-type]
