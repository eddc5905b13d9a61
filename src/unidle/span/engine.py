"""When each operation of a program happens: exact, in integers.

The order of every device is given, so that the times are a longest path. It is walked in rounds: in each, every
device whose next operation has its input takes that step, as one NumPy operation over all of them. Where few devices
move at once, they are walked one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from unidle.span.program import Ints, Program
from unidle.span.routes import Routes, Times, routes_of, times_of
from unidle.span.setting import Setting
from unidle.span.steps import one_by_one
from unidle.span.walk import Passage, Walk

SMALL: Final = 25  # devices that are walked one by one from the start


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it, for the ``pipelines`` of one cell (one where pipelines are alike); devices pipeline by pipeline.

    ``starts``: of each operation in the device's order (its recompute is before, or within where it waits for the
    gradient), shape ``(devices, 2U)``. ``fills``: gradients of weights done before it, of the same shape, empty
    without a filler. ``ready``: when the input of each operation is there, by code, shape ``(devices, 2U)``; ``ends``:
    when the device has done everything, ``exposed_ns``: what it waited for transfers between sites alone.
    """

    pipelines: int
    starts: Ints
    fills: Ints
    ready: Ints
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

    Errors: :class:`unidle.span.program.Stuck`.
    """
    routes, times = routes_of(setting, program), times_of(setting, program.chunks)
    walk = Walk(setting, program, routes, times, trace)
    small = len(walk.at) <= SMALL if by is None else by == "steps"
    if small or not walk.all_rounds():
        one_by_one(walk)
    return _result(walk)


def _result(walk: Walk) -> Run:
    count = len(walk.at)
    last = walk.times.weight[np.arange(count) % len(walk.setting.stages), 0]
    return Run(
        walk.pipelines,
        walk.starts.reshape(count, -1),
        np.cumsum(walk.fills.reshape(count, -1), axis=1),
        walk.ready[:-1].reshape(count, -1),
        walk.free + walk.waiting * last,
        walk.exposed,
        walk.routes,
        walk.times,
        tuple(passage for link in walk.shared for passage in link.passages),
    )
