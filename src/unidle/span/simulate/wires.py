"""Transfers of an iteration in which nothing lasts as planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program
from unidle.span.simulate.routes import Routes


@dataclass(frozen=True, slots=True)
class Luck:
    """How long everything lasts in one try, in nanoseconds.

    ``compute``: F, B, W and R of each device (pipeline by pipeline) and unit; ``factor``: of each device's transfers by
    code; ``reduce``: of each stage's all-reduce.
    """

    compute: dict[str, list[list[int]]]
    factor: list[list[float]]
    reduce: list[int]


@dataclass(slots=True)
class Wires:
    """The transfers of all devices: when they arrive. In turns they pass in the planned order, or as they come."""

    setting: Setting
    program: Program
    routes: Routes
    luck: Luck
    planned: bool
    lanes: dict[tuple[int, int], int] = field(default_factory=dict)
    taken: dict[tuple[int, int, int], int] = field(default_factory=dict)
    queues: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    waiting: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

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
        for scatter, send, gather in zip(turn.scatter_ns, turn.send_ns, turn.gather_ns, strict=True):
            taken[out] = max(now, taken.get(out, 0)) + round(scatter * factor)
            taken[middle] = max(taken[out], taken.get(middle, 0)) + round(send * factor)
            there = taken[middle] + round(turn.latency_ns * factor)
            arrives = taken[entry] = max(there, taken.get(entry, 0)) + round(gather * factor)
        return pipeline * stages + turn.to, code, arrives


def ended_ns(setting: Setting, free: list[int], given: Luck) -> int:
    """When the last all-reduce ends; ``free``: of each device, when it has done everything."""
    stages = len(setting.stages)
    return max(max(free[s::stages]) + given.reduce[s] for s in range(stages))
