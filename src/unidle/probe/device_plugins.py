"""Device plugins of Kubernetes: whether those that the kubelet of this machine had still answer on their sockets.

(Kubernetes' device plugin interface: each serves a socket next to ``kubelet.sock``; a kubelet that starts removes them all,
and each live plugin makes its own again.)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.guard.counters import Missed
from unidle.guard.log.model import Finding

_PLACE: Final = "var/lib/kubelet/device-plugins"
_KUBELET: Final = "kubelet.sock"
_PREFIX: Final = "device plugin "
_PATIENCE_S: Final = 1.0


class DevicePlugins:
    """Plugins of the machine whose files are under ``root``. ``missed``: the counts of an earlier instance, by service."""

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
            yield _finding(name)


def _finding(name: str) -> Finding:
    text = f"the device plugin {name} does not answer any more: the kubelet gives its devices to no new pod"
    return Finding(0, "service", None, name, "culprit", "restart_service", text, "warning", 30)
