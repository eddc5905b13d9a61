"""The windows of a planned schedule: one undisturbed iteration after the other, as it is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unidle.fill.policy.pipelines import FillDevice
from unidle.fill.policy.windows import UNLIMITED
from unidle.fill.simulate.accounts import DeviceAccounts, SpentRow
from unidle.fill.simulate.events import Events
from unidle.fill.simulate.training import TrainingRun
from unidle.span.model.setting import Setting
from unidle.span.simulate.iteration import Simulation


class PlannedWait(NamedTuple):
    """A wait of a device in every iteration but the first: nanoseconds from the begin of the iteration in which it begins.

    ``free_bytes``: memory of the device that training leaves while it lasts.
    """

    device: int
    position: int
    offset_ns: int
    length_ns: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedWaits:
    """All waits of all devices; ``first``: those before the first operation of the whole run."""

    iteration_ns: int
    waits: tuple[PlannedWait, ...]
    first: tuple[PlannedWait, ...]


class _Recorder:
    def __init__(self) -> None:
        self.found = list[tuple[int, int, int, int]]()

    def begins(self, iteration: int, now_ns: int) -> None:
        pass

    def opened(self, device: int, position: int, now_ns: int) -> None:
        pass

    def closed(self, device: int, position: int, opened_ns: int, now_ns: int) -> int:
        self.found.append((device, position, opened_ns, now_ns))
        return now_ns


def planned_waits(simulation: Simulation) -> PlannedWaits:
    """The waits of a schedule. Waits for transfers between sites and inside one count like any other; an all-reduce is none."""
    events, recorder = Events(), _Recorder()
    accounts = DeviceAccounts(simulation.setting.devices, rows=True)
    run = TrainingRun(simulation, 0.0, 0, events, accounts, recorder)
    run.start()
    events.run(lambda: len(run.begins_ns) < 3 or events.now_ns == run.begins_ns[2])
    # The third iteration begins; waits that go over its begin end in it.
    events.run(lambda: len(run.begins_ns) < 4)
    period = run.begins_ns[1]
    free = _free_bytes(simulation, accounts.rows or [])
    first, waits = list[PlannedWait](), list[PlannedWait]()
    for device, position, since, until in recorder.found:
        if until == since:
            continue
        size = free(device, since % period)
        found = PlannedWait(device, position, since % period if since else 0, until - since, size)
        if since == 0:
            first.append(found)
        elif period <= since < 2 * period:
            waits.append(found._replace(offset_ns=since - period))
    waits.sort(key=lambda each: (each.device, each.offset_ns))
    return PlannedWaits(period, tuple(waits), tuple(first))


class _free_bytes:  # noqa: N801  # called like a function
    """Memory that training leaves on a device at a time of the iteration, from the operations of the first one.

    As in :func:`unidle.span.simulate.program.peak_bytes`: the input of a stage from the start of its forward to the end of its last
    backward part; what the backward needs from the start of the forward where it is kept, else from the recompute.
    """

    def __init__(self, simulation: Simulation, rows: Sequence[SpentRow]) -> None:
        setting = simulation.setting
        self._cap = setting.memory_cap_bytes
        self._steps: list[list[tuple[int, int]]] = [[] for _ in range(setting.devices)]
        if self._cap is None:
            return
        again = {(row.device, row.unit, row.chunk) for row in rows if row.op == "R"}
        chunks = simulation.program.chunks
        limit = simulation.result.iteration_ns
        for row in rows:
            if row.op in "FBWR" and row.end_ns <= limit:
                stage = row.device % len(setting.stages)
                kept = setting.stages[stage].kept_bytes // chunks
                size = setting.entering_bytes(stage, row.chunk)
                made = (row.device, row.unit, row.chunk) in again
                costless = not setting.stages[stage].recompute_ns
                if row.op == "F":
                    self._steps[row.device].append((row.start_ns, size + (0 if made or costless else kept)))
                elif (row.op == "R") or (row.op == "B" and costless):
                    self._steps[row.device].append((row.start_ns, kept))
                elif row.op == "W":
                    self._steps[row.device].append((row.end_ns, -size - kept))
        for device, steps in enumerate(self._steps):
            steps.sort()
            steps.insert(0, (-1, setting.held_bytes(device % len(setting.stages))))

    def __call__(self, device: int, at_ns: int) -> int:
        if self._cap is None:
            return UNLIMITED
        return self._cap - sum(size for when, size in self._steps[device] if when <= at_ns)


def fill_devices(simulation: Simulation) -> tuple[FillDevice, ...]:
    """The devices of training with the memory that it leaves at its fullest moment."""
    setting: Setting = simulation.setting
    peaks, cap = simulation.result.peak_memory_by_stage, setting.memory_cap_bytes
    return tuple(
        FillDevice(
            number, setting.site_of[number % len(setting.stages)], number % len(setting.stages),
            UNLIMITED if cap is None else cap - peaks[number % len(setting.stages)],
        )
        for number in range(setting.devices)
    )  # fmt: skip
