"""What logs and drivers call a node's devices, and what the fleet calls them."""

from __future__ import annotations

from collections.abc import Iterable

from unidle.fleet import Node
from unidle.fleet.pci import short_bus_id


class DeviceNames:
    """PCI addresses and identities of one node's devices, from the fleet file and, if it responds, the driver."""

    def __init__(self, node: Node) -> None:
        self._devices = {d.uuid.lower(): d.id for d in node.devices if d.uuid}
        self._hardware: dict[str, str] = {}
        for device, address in zip(
            node.devices, node.watch.pci if node.watch is not None else (), strict=False
        ):
            self.tell(device.id, (address,))

    def tell(self, device: str, hardware: Iterable[str]) -> None:
        """The fleet's ``device`` goes by these names, the PCI address first."""
        for name in hardware:
            if name:
                self._devices[_normal(name)] = device
                self._hardware.setdefault(device, _normal(name))

    def device(self, hardware: str) -> str:
        """The fleet's device; empty where no declared device has that name: then it concerns the node."""
        return self._devices.get(_normal(hardware), "") if hardware else ""

    def hardware(self, device: str) -> str:
        """What logs call a device, its own id where that is not known."""
        return self._hardware.get(device, device)


def _normal(name: str) -> str:
    text = name.strip().removeprefix("PCI:").lower()
    return short_bus_id(text if "." in text else f"{text}.0") if text.count(":") == 2 else text
