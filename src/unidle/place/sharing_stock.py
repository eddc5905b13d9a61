"""Which devices may be cut on demand, grouped so that a decision checks only a few of them.

Empty devices that differ only in their names are one group. Of each group a decision needs as many as a gang
has ranks. Devices that are in parts already are all checked. Groups are made once, from the fleet as declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from unidle.fleet import Device, Fleet, Node
from unidle.view.occupancy import Occupancy


@dataclass(slots=True)
class Group:
    """Devices with the same traits. ``at`` has their positions, by the place of their node among those of the kind."""

    sample: Device
    count: int = 0
    at: dict[int, tuple[int, list[int]]] = field(
        default_factory=dict
    )  # place of the node in the fleet, of devices in it


@dataclass(slots=True)
class Stock:
    """All devices that may be cut on demand, by group in the order of the fleet."""

    groups: list[Group]

    @classmethod
    def of(cls, fleet: Fleet) -> Stock:
        found: dict[object, Group] = {}
        places: dict[str, int] = {}  # by kind: nodes so far that have such devices
        for order, node in enumerate(fleet.nodes):
            mine: dict[str, int] = {}
            for number, device in enumerate(node.devices):
                if device.kind not in mine:
                    mine[device.kind] = places.get(device.kind, 0)
                    places[device.kind] = mine[device.kind] + 1
                sharing = device.sharing
                if sharing is None:
                    continue
                traits = (
                    device.kind, device.model, device.memory_bytes, device.vendor,
                    sharing.modes, sharing.compute_ppm, sharing.memory_ppm,
                )  # fmt: skip
                group = found.setdefault(traits, Group(device))
                group.count += 1
                group.at.setdefault(mine[device.kind], (order, []))[1].append(number)
        return cls(list(found.values()))

    def of_kind(self, kind: str) -> int:
        """How many devices of this kind there are."""
        return sum(group.count for group in self.groups if group.sample.kind == kind)

    def empty(
        self,
        kind: str,
        nodes: tuple[Node, ...],
        occupancy: Occupancy | None,
        usable: Callable[[Node], bool],
        is_free: Callable[[Device], bool],
        most: int | None,
    ) -> Iterator[Device]:
        """Empty devices of the kind on nodes that are usable, of each group at most ``most``.

        With ``occupancy`` only nodes with something free are checked.
        """
        for group in self.groups:
            if group.sample.kind != kind:
                continue
            found = 0
            for place in group.at if occupancy is None else occupancy.open.get(kind, ()):
                here = group.at.get(place)
                if here is None or not usable(nodes[here[0]]):
                    continue
                for number in here[1]:
                    device = nodes[here[0]].devices[number]
                    if is_free(device):
                        yield device
                        found += 1
                        if found == most:
                            break
                if found == most:
                    break
