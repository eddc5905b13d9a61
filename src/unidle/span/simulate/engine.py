"""When each operation of a program happens: exact, in integers.

The order of every device is given, so that the times are a longest path. It is walked in rounds: in each, every
device whose next operation has its input takes that step, as one NumPy operation over all of them. Where few devices
move at once, they are walked one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.foresight import Foresight
from unidle.span.simulate.program import Ints, Program, Stuck
from unidle.span.simulate.routes import Routes, Times, routes_of, times_of
from unidle.span.simulate.steps import one_by_one
from unidle.span.simulate.walk import Passage, Walk

SMALL: Final = 25  # devices that are walked one by one from the start


@dataclass(frozen=True, slots=True)
class Run:
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
    times: Times
    passages: tuple[Passage, ...] = ()


def run(
    setting: Setting,
    program: Program,
    *,
    trace: bool = False,
    by: Literal["rounds", "steps"] | None = None,
) -> Run:
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
) -> list[Run | None]:
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


def _result(walk: Walk, which: int) -> Run | None:
    count = walk.pipelines * len(walk.setting.stages)
    mine = slice(which * count, (which + 1) * count)
    whole = slice(mine.start * walk.width, mine.stop * walk.width)
    if which in walk.ended or int(walk.at[mine].min()) < walk.width:
        return None
    last = walk.times.weight[np.arange(count) % len(walk.setting.stages), 0]
    fills = walk.fills[whole] if len(walk.fills) else walk.fills
    return Run(
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
