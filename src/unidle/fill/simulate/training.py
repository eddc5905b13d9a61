"""Training as it happens: every iteration in its planned order, with jitter, and with whatever holds up a device that waits.

The same rules as :func:`unidle.span.simulate.jitter.fixed_ns`, in the order of time. All devices begin an iteration together, when
the all-reduce of every stage has ended.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from unidle.fill.simulate.accounts import DeviceAccounts
from unidle.fill.simulate.events import Events
from unidle.span.simulate.dynamic import Luck, SentPiece, Wires
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.jitter import luck, steps_of
from unidle.span.simulate.routes import routes_of


class WaitHost(Protocol):
    """What may use the waits of devices. ``position``: which wait of the step it is."""

    def begins(self, iteration: int, now_ns: int) -> None:
        """An iteration begins."""

    def opened(self, device: int, position: int, now_ns: int) -> None:
        """The device waits from now on."""

    def closed(self, device: int, position: int, opened_ns: int, now_ns: int) -> int:
        """Training needs the device from now on; when it gets it."""


class Unfilled:
    """Nothing uses the waits."""

    def begins(self, iteration: int, now_ns: int) -> None:
        pass

    def opened(self, device: int, position: int, now_ns: int) -> None:
        pass

    def closed(self, device: int, position: int, opened_ns: int, now_ns: int) -> int:  # noqa: ARG002
        return now_ns


class TrainingRun:
    """Iterations of a simulated schedule. ``jitter``: the coefficient of variation of every operation and transfer.

    Iteration k has the same luck in every run of the same ``seed``. A wait before operation k of a device has position k; after
    the last one it has the number of operations; after an all-reduce, up to the next iteration, 0.
    """

    def __init__(
        self, simulation: Simulation, jitter: float, seed: int, events: Events, accounts: DeviceAccounts, host: WaitHost
    ) -> None:  # fmt: skip
        self._simulation, self._jitter, self._seed = simulation, jitter, seed
        self._events, self._accounts, self._host = events, accounts, host
        setting, program = simulation.setting, simulation.program
        self._steps = steps_of(setting, program, simulation.run)
        self._routes = routes_of(setting, program)
        self._stages, self._units = len(setting.stages), program.units
        self.devices = setting.devices
        self.begins_ns = list[int]()
        self.sent: list[SentPiece] | None = None if accounts.rows is None else []
        self._at = [0] * self.devices
        self._ready: list[set[int]] = [set() for _ in range(self.devices)]
        self._open: list[tuple[int, int] | None] = [None] * self.devices
        self._running = [False] * self.devices
        self._done = [0] * self._stages
        self._reduced = 0
        self._luck: Luck
        self._wires: Wires

    def start(self) -> None:
        """Enter the first iteration."""
        for device in range(self.devices):
            self._wait(device, 0, self._events.now_ns)
        self._begin()

    def _given(self, iteration: int) -> Luck:
        chance = np.random.default_rng((self._seed, iteration))
        return luck(self._simulation.setting, self._simulation.program, self._jitter, chance)

    def _begin(self) -> None:
        now, setting = self._events.now_ns, self._simulation.setting
        iteration = len(self.begins_ns)
        self.begins_ns.append(now)
        if self._jitter or not iteration:
            self._luck = self._given(iteration)
        self._wires = Wires(
            setting, self._simulation.program, self._routes, self._luck, planned=True, sent=self.sent
        )
        self._at = [0] * self.devices
        self._done, self._reduced = [0] * self._stages, 0
        for device, ready in enumerate(self._ready):
            ready.clear()
            if not device % self._stages:
                ready.update(range(setting.microbatches))
        self._host.begins(iteration, now)
        for device in range(self.devices):
            self._next(device)

    def _wait(self, device: int, position: int, now: int) -> None:
        self._open[device] = (position, now)
        self._host.opened(device, position, now)

    def _taken(self, device: int) -> int:
        """Training needs the device now; when it gets it."""
        now, waits = self._events.now_ns, self._open[device]
        if waits is None:
            return now
        self._open[device] = None
        position, since = waits
        begin = self._host.closed(device, position, since, now)
        if begin > self._accounts.marks[device]:
            self._accounts.spend(device, begin, "waits")
        return begin

    def _next(self, device: int) -> None:
        """Begin the next operation if its input is there."""
        if self._running[device]:
            return
        at, steps, program = self._at[device], self._steps[device], self._simulation.program
        if at == len(steps):
            return
        op, unit = steps[at]
        code = unit if op == "F" else self._units + unit
        if (op in "FB" or (op == "R" and not program.early)) and code not in self._ready[device]:
            if self._open[device] is None:
                self._wait(device, at, self._events.now_ns)
            return
        self._running[device] = True
        begin = self._taken(device)
        self._events.at(begin + self._luck.compute[op][device][unit], partial(self._ended, device, op, unit))

    def _ended(self, device: int, op: str, unit: int) -> None:
        now, each = self._events.now_ns, self._simulation.setting.microbatches
        self._accounts.spend(
            device, now, "recompute" if op == "R" else "computation", (op, unit % each, unit // each)
        )
        self._running[device] = False
        self._at[device] += 1
        if op == "F" or op == ("W" if self._simulation.program.joined else "B"):
            for there, what, when in self._wires.leave(
                device, unit if op == "F" else self._units + unit, now
            ):
                self._events.at(when, partial(self._arrived, there, what, len(self.begins_ns)))
        if self._at[device] < len(self._steps[device]):
            self._next(device)
            return
        self._wait(device, self._at[device], now)
        stage = device % self._stages
        self._done[stage] += 1
        if self._done[stage] == self._simulation.setting.pipelines:
            self._reduce(stage)

    def _arrived(self, device: int, code: int, iteration: int) -> None:
        if iteration == len(self.begins_ns):
            self._ready[device].add(code)
            self._next(device)

    def _reduce(self, stage: int) -> None:
        """All pipelines have the gradients of the stage. Its devices compute while they reduce, so that nothing else does."""
        length, now = self._luck.reduce[stage], self._events.now_ns
        members = range(stage, self.devices, self._stages)
        begin = now
        if length:
            begin = max(self._taken(device) for device in members)
        self._events.at(begin + length, partial(self._reduce_ended, stage, begin))

    def _reduce_ended(self, stage: int, begin: int) -> None:
        now = self._events.now_ns
        if now > begin:
            for device in range(stage, self.devices, self._stages):
                if begin > self._accounts.marks[device]:  # it gave way sooner than another one
                    self._accounts.spend(device, begin, "waits")
                self._accounts.spend(device, now, "all-reduce", ("allreduce", -1, 0))
                self._wait(device, 0, now)
        self._reduced += 1
        if self._reduced == self._stages:
            self._events.at(now, self._begin)
