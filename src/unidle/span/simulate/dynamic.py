"""The order found while it runs: each device does whatever is ready, with the memory that the plan had there.

A backward comes before a forward, a forward before a gradient of weights that was put off, and where nothing else is
ready activations are made again ahead of their gradient. Nothing lasts as planned, transfers neither.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program
from unidle.span.simulate.routes import Routes, routes_of


@dataclass(frozen=True, slots=True)
class Luck:
    """How long everything lasts in one try, in nanoseconds.

    ``compute``: F, B, W and R of each device (pipeline by pipeline) and unit; ``factor``: of each device's transfers by
    code; ``reduce``: of each stage's all-reduce.
    """

    compute: dict[str, list[list[int]]]
    factor: list[list[float]]
    reduce: list[int]


class SentPiece(NamedTuple):
    """A transfer over a wire of the device's own, or a piece of one in turns: begin and end of each part, in nanoseconds.

    ``link``: the shared link, -1 for an own wire, which has no scatter and gather.
    """

    device: int
    code: int
    to: int
    link: int
    piece: int
    scatter: tuple[int, int]
    send: tuple[int, int]
    gather: tuple[int, int]


@dataclass(slots=True)
class Wires:
    """The transfers of all devices: when they arrive. In turns they pass in the planned order, or as they come.

    ``sent``: takes all transfers, if they are to be kept.
    """

    setting: Setting
    program: Program
    routes: Routes
    luck: Luck
    planned: bool
    lanes: dict[tuple[int, int], int] = field(default_factory=dict)
    taken: dict[tuple[int, int, int], int] = field(default_factory=dict)
    queues: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    waiting: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    sent: list[SentPiece] | None = None

    def leave(self, device: int, code: int, now: int) -> list[tuple[int, int, int]]:
        """What arrives because this was made: ``(device, code there, when)``."""
        stages, each = len(self.setting.stages), self.setting.microbatches
        stage, group = device % stages, code // each
        to = int(self.routes.to[stage, group])
        if to < 0:
            return []
        link = int(self.routes.shared[stage, group])
        target = (device - stage + to, code + int(self.routes.code[stage, group]))
        if link >= 0:
            return self._in_turn(device // stages, link, code, now)
        if to == stage:
            return [(*target, now)]
        factor = self.luck.factor[device][code]
        wire, late = self.routes.wire_ns[stage, group] * factor, self.routes.latency_ns[stage, group] * factor
        lane = (device, int(self.routes.lane[stage, group]))
        end = max(now, self.lanes.get(lane, 0)) + round(float(wire))
        self.lanes[lane] = end
        if self.sent is not None and (wire or late):
            none = (end, end)
            self.sent.append(
                SentPiece(device, code, target[0], -1, 0, none, (end - round(float(wire)), end), none)
            )
        return [(*target, end + round(float(late)))]

    def _in_turn(self, pipeline: int, link: int, code: int, now: int) -> list[tuple[int, int, int]]:
        cell = pipeline // self.setting.cell
        if not self.planned:
            return [self._pass(pipeline, link, code, now)]
        key = (cell, link)
        if key not in self.queues:
            self.queues[key] = self._turns(cell, link)[::-1]
            self.waiting[key] = {}
        queue, waiting = self.queues[key], self.waiting[key]
        width = self.program.order.shape[1]
        waiting[pipeline * width + code] = now
        found = []
        while queue and queue[-1] in waiting:
            turn = queue.pop()
            found.append(self._pass(turn // width, link, turn % width, waiting.pop(turn)))
        return found

    def _turns(self, cell: int, link: int) -> list[int]:
        turn, order = self.routes.turns[link], self.program.order[self.routes.turns[link].stage].tolist()
        width, units, first = len(order), self.program.units, cell * self.setting.cell
        codes = [code for code in order if (code < units) == turn.forward]
        return [p * width + code for code in codes for p in range(first, first + self.setting.cell)]

    def _pass(self, pipeline: int, link: int, code: int, now: int) -> tuple[int, int, int]:
        turn, stages, taken = self.routes.turns[link], len(self.setting.stages), self.taken
        factor = self.luck.factor[pipeline * stages + turn.stage][code]
        out, middle = (0, link, pipeline), (1, link, pipeline // self.setting.cell)
        entry, arrives = (2, link, pipeline), now
        for k, (scatter, send, gather) in enumerate(
            zip(turn.scatter_ns, turn.send_ns, turn.gather_ns, strict=True)
        ):
            spread = max(now, taken.get(out, 0))
            taken[out] = spread + round(scatter * factor)
            leaves = max(taken[out], taken.get(middle, 0))
            taken[middle] = leaves + round(send * factor)
            there = max(taken[middle] + round(turn.latency_ns * factor), taken.get(entry, 0))
            arrives = taken[entry] = there + round(gather * factor)
            if self.sent is not None:
                device = pipeline * stages + turn.stage
                times = ((spread, taken[out]), (leaves, taken[middle]), (there, arrives))
                self.sent.append(SentPiece(device, code, device - turn.stage + turn.to, link, k, *times))
        return pipeline * stages + turn.to, code, arrives


def ended_ns(setting: Setting, free: list[int], given: Luck) -> int:
    """When the last all-reduce ends; ``free``: of each device, when it has done everything."""
    stages = len(setting.stages)
    return max(max(free[s::stages]) + given.reduce[s] for s in range(stages))


@dataclass(slots=True)
class _Device:
    """Units by what can be done with them. ``held``: bytes in addition to what is always there."""

    stage: int
    room: int
    forwards: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    flying: set[int] = field(default_factory=set)  # forward done or under way, backward not begun
    again: set[int] = field(default_factory=set)  # of those the ones whose activations are not there
    ahead: int | None = None  # the one that was made again before its gradient came
    put_off: list[int] = field(default_factory=list)
    held: int = 0
    busy: bool = False


class Done(NamedTuple):
    """``started``: operations of each device with their units and starts; a backward has its recompute within."""

    iteration_ns: int
    started: list[list[tuple[str, int, int]]]


def online(setting: Setting, program: Program, peaks: tuple[int, ...], given: Luck) -> Done:
    """An iteration; ``peaks``: the most that each stage may hold, in bytes. For programs of one chunk."""
    return _Online(setting, program, peaks, given).run()


class _Online:
    def __init__(self, setting: Setting, program: Program, peaks: tuple[int, ...], given: Luck) -> None:
        self._setting, self._program, self._luck = setting, program, given
        self._wires = Wires(setting, program, routes_of(setting, program), given, planned=False)
        stages = len(setting.stages)
        self._devices = [
            _Device(d % stages, peaks[d % stages] - setting.held_bytes(d % stages))
            for d in range(setting.devices)
        ]
        for first in range(0, setting.devices, stages):
            self._devices[first].forwards = list(range(setting.microbatches))
        self._free = [0] * setting.devices
        self._started: list[list[tuple[str, int, int]]] = [[] for _ in range(setting.devices)]
        # (when, turn, device, what): "" arrives with its code, an operation ends with its unit
        self._events: list[tuple[int, int, int, str, int]] = []
        self._turn = 0

    def run(self) -> Done:
        for device in range(len(self._devices)):
            self._next(device, 0)
        while self._events:
            now, _, device, op, which = heapq.heappop(self._events)
            if op:
                self._end(device, op, which, now)
            else:
                self._arrive(device, which)
            self._next(device, now)
        return Done(ended_ns(self._setting, self._free, self._luck), self._started)

    def _arrive(self, device: int, code: int) -> None:
        units, here = self._program.units, self._devices[device]
        heapq.heappush(here.forwards if code < units else here.backwards, code % units)

    def _push(self, when: int, device: int, op: str, which: int) -> None:
        self._turn += 1
        heapq.heappush(self._events, (when, self._turn, device, op, which))

    def _end(self, device: int, op: str, unit: int, now: int) -> None:
        here, stage = self._devices[device], self._setting.stages[self._devices[device].stage]
        here.busy, self._free[device] = False, now
        joined = self._program.joined
        if op == "W" or (op == "B" and joined):
            here.held -= self._setting.entering_bytes(here.stage) + stage.kept_bytes
        elif op == "B":
            here.put_off.append(unit)
        if op in "FB":
            code = unit if op == "F" else self._program.units + unit
            for there, what, when in self._wires.leave(device, code, now):
                if there == device:
                    self._arrive(there, what)
                else:
                    self._push(when, there, "", what)

    def _next(self, device: int, now: int) -> None:
        """Begin the best of what can be begun."""
        here = self._devices[device]
        if here.busy:
            return
        kept = self._setting.stages[here.stage].kept_bytes
        if here.backwards:
            unit = here.ahead if here.ahead in here.backwards else here.backwards[0]
            if unit not in here.again or here.held + kept <= here.room:
                self._backward(device, unit, now)
                return
        elif here.forwards and self._forward(device, now):
            return
        if here.put_off:
            unit = here.put_off.pop(0)
            self._begin(device, "W", unit, now, self._luck.compute["W"][device][unit])
            return
        ready = self._program.early and not here.backwards and here.ahead is None
        if ready and here.again and here.held + kept <= here.room:
            unit = min(here.again)
            if unit == min(here.flying) and self._setting.stages[here.stage].recompute_ns:
                here.ahead = unit
                here.again.remove(unit)
                here.held += kept
                self._begin(device, "R", unit, now, self._luck.compute["R"][device][unit])

    def _forward(self, device: int, now: int) -> bool:
        """Begin the next forward where memory holds it, and after it what any backward needs."""
        here, stage = self._devices[device], self._setting.stages[self._devices[device].stage]
        unit = here.forwards[0]
        again = bool(self._program.again[here.stage, unit]) or not stage.recompute_ns
        takes = self._setting.entering_bytes(here.stage) + (0 if again else stage.kept_bytes)
        # One that was made again ahead of its gradient gives its place to the next when it is done.
        spare = stage.kept_bytes if (again or here.again) and here.ahead is None else 0
        if here.held + takes + spare > here.room:
            return False
        heapq.heappop(here.forwards)
        here.held += takes
        here.flying.add(unit)
        if again:
            here.again.add(unit)
        self._begin(device, "F", unit, now, self._luck.compute["F"][device][unit])
        return True

    def _backward(self, device: int, unit: int, now: int) -> None:
        here, stage = self._devices[device], self._setting.stages[self._devices[device].stage]
        here.backwards.remove(unit)
        heapq.heapify(here.backwards)
        here.flying.remove(unit)
        lasts = self._luck.compute["B"][device][unit]
        if unit in here.again:
            here.again.remove(unit)
            here.held += stage.kept_bytes
            if stage.recompute_ns:
                lasts += self._luck.compute["R"][device][unit]
        elif here.ahead == unit:
            here.ahead = None
        if self._program.joined:
            lasts += self._luck.compute["W"][device][unit]
        self._begin(device, "B", unit, now, lasts)

    def _begin(self, device: int, op: str, unit: int, now: int, lasts: int) -> None:
        self._devices[device].busy = True
        self._started[device].append((op, unit, now))
        self._push(now + lasts, device, op, unit)
