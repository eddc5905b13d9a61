"""How gangs that have parts of one device slow each other down, by the table of ``share.interference``. Pure.

A gang is as slow as the slowest of its parts. What its work needs is looked up by the job's name, as in the
decision. A job whose name is not in the table needs what it requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from unidle.engine.protocol import PartOf, StartGang
from unidle.engine.sim.network import WHOLE, Key
from unidle.fleet import WHOLE_PPM, Fleet
from unidle.share.interference import Interference, Tenant, known_loads
from unidle.share.mig_models import model_of


class Parts:
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
