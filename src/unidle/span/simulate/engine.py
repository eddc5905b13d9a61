"""When each operation of a program happens: exact, in integers.

The order of every device is given, so that the times are a longest path. It is walked in rounds: in each, every
device whose next operation has its input takes that step, as one NumPy operation over all of them. Where few devices
move at once, and where orders wait a lot, they are walked one by one, each as far as it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.bound import Foresight
from unidle.span.simulate.program import Ints, Program, Stuck
from unidle.span.simulate.routes import LANES, Routes, UnitTimes, routes_of, times_of
from unidle.span.simulate.walk import Passage, Walk

SMALL: Final = 25  # devices that are walked one by one from the start


@dataclass(frozen=True, slots=True)
class IterationRun:
    """The result for the ``pipelines`` of one cell (one if all pipelines are equal); devices pipeline by pipeline.

    ``starts``: of each operation in the device's order (its recompute is before, or within where it waits for the
    gradient), shape ``(devices, 2U)``. ``fills``: gradients of weights done before it, of the same shape, empty
    without a filler. ``ready``: when the input of each operation is there, by code, shape ``(devices, 2U)``; ``made``:
    when it left where it was made. ``ends``: when the device has done everything. ``exposed_ns``: how long it waited
    for transfers between sites alone.
    """

    pipelines: int
    starts: Ints
    fills: Ints
    ready: Ints
    made: Ints
    ends: Ints
    exposed_ns: Ints
    routes: Routes
    times: UnitTimes
    passages: tuple[Passage, ...] = ()


def run(
    setting: Setting,
    program: Program,
    *,
    trace: bool = False,
    by: Literal["rounds", "steps"] | None = None,
) -> IterationRun:
    """The times of a program. ``trace``: passages as well. ``by``: the way to walk, chosen by size otherwise.

    Errors: :class:`unidle.span.simulate.program.Stuck`.
    """
    (done,) = run_many(setting, (program,), trace=trace, by=by)
    if done is None:
        raise Stuck
    return done


def run_many(
    setting: Setting,
    programs: Sequence[Program],
    *,
    trace: bool = False,
    by: Literal["rounds", "steps"] | None = None,
    limit_ns: int | None = None,
) -> list[IterationRun | None]:
    """Programs that differ in their orders and fillers alone, side by side: that is much faster.

    None for one whose stages wait for each other, or that cannot end before ``limit_ns``.
    """
    first = programs[0]
    routes, times = routes_of(setting, first), times_of(setting, first.chunks)
    end = None if limit_ns is None or first.chunks > 1 else Foresight(setting, programs, times, limit_ns)
    walk = Walk(setting, tuple(programs), routes, times, trace, end)
    small = len(walk.at) <= SMALL if by is None else by == "steps"
    if small or not walk.all_rounds():
        one_by_one(walk)
    return [_result(walk, which) for which in range(len(programs))]


def _result(walk: Walk, which: int) -> IterationRun | None:
    count = walk.pipelines * len(walk.setting.stages)
    mine = slice(which * count, (which + 1) * count)
    whole = slice(mine.start * walk.width, mine.stop * walk.width)
    if which in walk.ended or int(walk.at[mine].min()) < walk.width:
        return None
    last = walk.times.weight[np.arange(count) % len(walk.setting.stages), 0]
    fills = walk.fills[whole] if len(walk.fills) else walk.fills
    return IterationRun(
        walk.pipelines,
        walk.starts[whole].reshape(count, -1),
        np.cumsum(fills.reshape(count, -1), axis=1),
        walk.ready[whole].reshape(count, -1),
        walk.made[whole].reshape(count, -1),
        walk.free[mine] + walk.waiting[mine] * last,
        walk.exposed[mine],
        walk.routes,
        walk.times,
        tuple(passage for link in walk.shared if link.program == which for passage in link.passages),
    )


def one_by_one(walk: Walk) -> None:
    """Walk to the end from wherever ``walk`` is; its arrays hold the outcome.

    A device that waits for an input that never comes is left where it is.
    """
    lists = _Lists(walk)
    stages = walk.pipelines * len(walk.setting.stages)
    todo = [device for device in range(len(walk.at)) if device // stages not in walk.ended]
    while True:
        while todo:
            lists.advance(todo.pop(), todo)
        for link in walk.shared:
            todo += link.advance(lists.made, lists.ready)
        if not todo:
            break
        if lists.give_up():
            todo = [device for device in todo if device // stages not in walk.ended]
    lists.give_back()


class _Lists:
    """The walk's arrays as lists, whose single elements Python reaches faster."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.ready, self.made = walk.ready.tolist(), walk.made.tolist()
        self.at, self._free = walk.at.tolist(), walk.free.tolist()
        self._waiting, self._exposed = walk.waiting.tolist(), walk.exposed.tolist()
        self._starts, self._fills, self._lanes = (
            walk.starts.tolist(),
            walk.fills.tolist(),
            walk.lanes.tolist(),
        )
        self._order, self._row = walk.order.ravel().tolist(), walk.row.tolist()
        parts = walk.parts
        self._lead, self._body, self._after = parts.lead.tolist(), parts.body.tolist(), parts.after.tolist()
        self._kinds = list(
            zip(
                *(
                    walk.tables[name].tolist()
                    for name in ("none", "jump", "own", "lane", "wire", "way", "waited")
                ),
                strict=True,
            )
        )
        self._most, self._slack = walk.most.tolist(), walk.slack.tolist()
        self._weight = walk.times.weight[:, 0].tolist()

    def give_back(self) -> None:
        """The outcome into the walk's arrays."""
        walk = self._walk
        for name, values in (
            ("ready", self.ready), ("made", self.made), ("at", self.at), ("free", self._free),
            ("waiting", self._waiting), ("exposed", self._exposed), ("starts", self._starts), ("fills", self._fills),
        ):  # fmt: skip
            setattr(walk, name, np.array(values, dtype=np.int64))

    def give_up(self) -> bool:
        """As the walk's."""
        walk = self._walk
        if walk.end is None:
            return False
        return walk.give_up(np.array(self.at), np.array(self._free), np.array(self._waiting))

    def advance(self, device: int, todo: list[int]) -> None:
        """Walk a device as far as it gets; add the devices that can continue because of it to ``todo``."""
        walk = self._walk
        width, units, each = walk.width, walk.width // 2, walk.setting.microbatches
        stage = device % len(walk.setting.stages)
        base, row, first = device * width, self._row[device] * width, stage * 2 * walk.programs[0].chunks
        filled, at, free = bool(self._most), self.at[device], self._free[device]
        while at < width:
            code = self._order[row + at]
            need = self.ready[base + code]
            if need < 0:
                break
            none, jump, own, lane, wire, way, waited = self._kinds[first + code // each]
            lead = self._lead[row + at]
            if filled:
                free = self._fill(device, stage, base + at, need - free - lead, free)
            prepared = free + lead
            start = max(prepared, need)
            self._starts[base + at] = start
            if waited:
                self._exposed[device] += start - max(prepared, self.made[base + code])
            leaves = start + self._body[row + at]
            free = leaves + self._after[row + at]
            if filled and code >= units:
                free += self._put_off(device, stage, base + at, at + 1 < width)
            at += 1
            if none:
                continue
            target = base + code + jump
            self.made[target] = leaves
            if own:
                wires = device * LANES + lane
                begin = max(leaves, self._lanes[wires])
                self._lanes[wires] = begin + wire
                self.ready[target] = begin + way
                if target // width != device:
                    todo.append(target // width)
        self.at[device], self._free[device] = at, free

    def _fill(self, device: int, stage: int, position: int, gap: int, free: int) -> int:
        weight = self._weight[stage]
        if gap <= 0 or not self._waiting[device]:
            return free
        count = min(self._waiting[device], (gap + self._slack[self._row[device]]) // max(weight, 1))
        self._fills[position] += count
        self._waiting[device] -= count
        return int(free + count * weight)

    def _put_off(self, device: int, stage: int, position: int, inside: bool) -> int:
        """One more waits; where that is too many, one runs now, for so long."""
        self._waiting[device] += 1
        if self._waiting[device] <= self._most[self._row[device]]:
            return 0
        self._waiting[device] -= 1
        if inside:
            self._fills[position + 1] += 1
        return int(self._weight[stage])
