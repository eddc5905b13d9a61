"""How gangs slow each other down: those that share an uplink, and those that have parts of one device. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from unidle.engine.protocol import PartOf, StartGang
from unidle.fleet import WHOLE_PPM, Fleet
from unidle.share.interference import Interference, Tenant, known_loads
from unidle.share.mig_models import model_of

WHOLE: Final = 1_000_000
DEFAULT_UPLINK_BPS: Final = 100_000_000_000
"""Of an uplink whose bandwidth the fleet does not declare: modelled, like all of this."""

Key = tuple[str, int]


@dataclass(slots=True)
class _Flow:
    comm_ppm: int
    weights: dict[str, int]  # crossed uplink (named by its lower end) -> w in ppm


class UplinkContention:
    """Who crosses which uplink now, and what that does to everyone's steps."""

    def __init__(self, fleet: Fleet) -> None:
        self._parent: dict[str, str | None] = {t.id: t.parent for t in fleet.tiers}
        self._parent.update({n.id: n.parent or None for n in fleet.nodes})
        declared = {frozenset((k.a, k.b)): k.bandwidth_bps for k in fleet.links}
        self._bps = {
            v: declared.get(frozenset((v, parent)), DEFAULT_UPLINK_BPS)
            for v, parent in self._parent.items()
            if parent is not None
        }
        self._flows: dict[Key, _Flow] = {}
        self._on: dict[str, dict[Key, int]] = {}  # uplink -> gangs on it and how busy each keeps it, in ppm
        self._load: dict[str, int] = {}

    def join(self, gang: Key, nodes: Iterable[str], comm_ppm: int) -> list[Key]:
        """A gang begins to run on ``nodes``. Returns the gangs whose steps may take another time now."""
        crossed = self._crossed(list(dict.fromkeys(nodes)))
        if not crossed or not comm_ppm:
            return []
        slowest = min(self._bps.get(v, DEFAULT_UPLINK_BPS) for v in crossed)
        flow = _Flow(comm_ppm, {v: slowest * WHOLE // self._bps.get(v, DEFAULT_UPLINK_BPS) for v in crossed})
        self._flows[gang] = flow
        met: dict[Key, None] = {}
        for uplink, weight in flow.weights.items():
            on = self._on.setdefault(uplink, {})
            on[gang] = weight * comm_ppm // WHOLE
            self._load[uplink] = self._load.get(uplink, 0) + on[gang]
            met.update(dict.fromkeys(on))
        return list(met)

    def leave(self, gang: Key) -> list[Key]:
        """The gang sends nothing any more. Returns those who shared an uplink with it."""
        flow = self._flows.pop(gang, None)
        met: dict[Key, None] = {}
        for uplink in flow.weights if flow else ():
            on = self._on[uplink]
            self._load[uplink] -= on.pop(gang)
            met.update(dict.fromkeys(on))
        return list(met)

    def stretch_ppm(self, gang: Key) -> int:
        """How much longer a step of the gang takes now than alone; 1,000,000 is as long."""
        flow = self._flows.get(gang)
        if flow is None:
            return WHOLE
        worst, load, on = WHOLE, self._load, self._on
        for uplink, weight in flow.weights.items():
            others = load[uplink] - on[uplink][gang]
            if others and weight * (WHOLE + others) // WHOLE > worst:
                worst = weight * (WHOLE + others) // WHOLE
        return WHOLE + flow.comm_ppm * (worst - WHOLE) // WHOLE

    def _crossed(self, nodes: list[str]) -> list[str]:
        """Vertices that hold some, and not all, of the nodes."""
        if len(nodes) < 2:
            return []
        counts: dict[str, int] = {}
        for node in nodes:
            vertex: str | None = node
            while vertex is not None:
                counts[vertex] = counts.get(vertex, 0) + 1
                vertex = self._parent.get(vertex)
        return [vertex for vertex, count in counts.items() if count < len(nodes)]


class DeviceContention:
    """Who has which parts of which device now."""

    def __init__(self, fleet: Fleet, table: Interference | None = None) -> None:
        self._devices = {device.id: device for device in fleet.devices() if device.sharing is not None}
        self._table = table
        self._on: dict[str, dict[tuple[Key, str], tuple[PartOf, Tenant]]] = {}  # by device
        self._of: dict[Key, Mapping[str, PartOf]] = {}

    def join(self, key: Key, command: StartGang) -> list[Key]:
        """A gang begins to run. Returns the gangs whose steps may take another time now."""
        if not command.parts:
            return []
        self._table = self._table or known_loads()
        self._of[key] = command.parts
        for name, given in command.parts.items():
            load = self._table.load_of_part(command.spec.name, given.part.compute_ppm)
            tenant = Tenant(load, given.part.compute_ppm, self._memory_ppm(given))
            self._on.setdefault(given.device, {})[key, name] = (given, tenant)
        return self._met(key)

    def leave(self, key: Key) -> list[Key]:
        """The gang works no more. Returns those who shared a device with it."""
        met = [other for other in self._met(key) if other != key]
        for name, given in self._of.pop(key, {}).items():
            del self._on[given.device][key, name]
        return met

    def slowdown_ppm(self, key: Key) -> int:
        """How much longer a step of the gang takes than alone, for those it shares devices with."""
        table, worst = self._table, WHOLE
        for name, given in self._of.get(key, {}).items():
            on = self._on[given.device]
            others = [tenant for at, (_, tenant) in on.items() if at != (key, name)]
            if table is not None:
                worst = max(worst, table.slowdown(given.mode, on[key, name][1], others).ppm)
        return worst

    def _memory_ppm(self, given: PartOf) -> int:
        """The part's share of the device's memory; of a MIG instance by its slices, as its bandwidth is."""
        device, part = self._devices.get(given.device), given.part
        if device is None or not device.memory_bytes:
            return WHOLE_PPM
        model = model_of(device.model, device.memory_bytes) if part.profile else None
        if model is not None:
            return model.profile(part.profile).memory * WHOLE_PPM // model.memory
        return part.memory_bytes * WHOLE_PPM // device.memory_bytes

    def _met(self, key: Key) -> list[Key]:
        devices = dict.fromkeys(given.device for given in self._of.get(key, {}).values())
        return list(dict.fromkeys(other for device in devices for other, _ in self._on[device]))
