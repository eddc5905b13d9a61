"""What a schedule is, and what several of them share: depths, limits of memory, whether to keep or make again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from unidle.span.memory import inputs_of, most_in_flight, room_of
from unidle.span.program import Flags, Ints, Program, Share, depth_order, falling, joined_weights
from unidle.span.routes import routes_of
from unidle.span.setting import Setting


class Try(Protocol):
    """How long a program takes, in nanoseconds; None where it cannot be run."""

    def __call__(self, program: Program) -> int | None: ...

    def many(self, programs: Sequence[Program], limit_ns: int | None = None) -> list[int | None]:
        """Of several that differ in their orders and fillers alone; None also for ``limit_ns`` or longer."""
        ...


Choose = Callable[[Setting, Try], Program]

LARGE: Final = 100_000  # microbatches times devices of a cell, from where searches are short


@dataclass(frozen=True, slots=True)
class Schedule:
    """``choose`` makes a program for a setting. ``reconstructed``: from a paper, where its own code is not there or decides while it runs."""

    name: str
    choose: Choose
    reconstructed: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How far apart things are under a way of sharing, in nanoseconds.

    ``trips``: from the end of a stage's forward to the arrival of its gradient, alone on the wires, ``(stages,)``;
    ``period_ns``: the least time between two microbatches.
    """

    trips: Ints
    period_ns: int


def is_large(setting: Setting) -> bool:
    """Whether there is time for a few trials only."""
    return len(setting.stages) * setting.microbatches * setting.cell > LARGE


def everything(setting: Setting, chunks: int = 1) -> Flags:
    """All activations are made again."""
    return np.ones((len(setting.stages), setting.microbatches * chunks), dtype=np.bool_)


def kept_bytes(setting: Setting) -> Ints:
    return np.array([stage.kept_bytes for stage in setting.stages], dtype=np.int64)


def input_bytes(setting: Setting) -> Ints:
    """Of one microbatch at the entry of each stage, ``(stages,)``."""
    return inputs_of(setting, 1)[:, 0]


def limits(setting: Setting) -> Ints:
    """How many microbatches fit on each stage when all is made again, ``(stages,)``."""
    room = room_of(setting)
    rooms = [None] * len(setting.stages) if room is None else room.tolist()
    each = zip(rooms, input_bytes(setting).tolist(), kept_bytes(setting).tolist(), strict=True)
    return np.array([most_in_flight(*stage) for stage in each], dtype=np.int64)


def keep_where_it_fits(setting: Setting, depth: Ints) -> Flags:
    """False (kept) on stages that hold ``depth`` microbatches whole, True elsewhere; ``(stages, U)``."""
    room = room_of(setting)
    again = everything(setting)
    if room is not None:
        needed = depth * (input_bytes(setting) + kept_bytes(setting))
        again &= (needed > room)[:, None]
        return again
    return ~again


def pace(setting: Setting, share: Share, *, max_flows: bool, joined: bool) -> Pace:
    """How far apart things are."""
    stages = len(setting.stages)
    one = np.tile(np.array([[0, 1]], dtype=np.int64), (stages, 1))
    small = Setting(
        setting.stages, 1, setting.sites, setting.links, setting.pipelines, setting.cell, setting.input_bytes,
        local_gbps=setting.local_gbps, one_flow=setting.one_flow,
    )  # fmt: skip
    probe = Program("", one, everything(small), joined_weights(one), max_flows=max_flows, share=share)
    routes = routes_of(small, probe)
    alone, busy = routes.wire_ns + routes.latency_ns, routes.wire_ns.copy()
    for (s, group), k in np.ndenumerate(routes.shared):
        if k >= 0:
            turn = routes.turns[k]
            alone[s, group] = turn.scatter_ns[0] + sum(turn.send_ns) + turn.latency_ns + turn.gather_ns[-1]
            busy[s, group] = sum(turn.send_ns) * setting.cell
    trips = np.zeros(stages, dtype=np.int64)
    slowest = 1
    for s in range(stages - 1, -1, -1):
        stage = setting.stages[s]
        slowest = max(slowest, stage.useful_ns + stage.recompute_ns, int(busy[s].max()))
        if s + 1 < stages:
            after = setting.stages[s + 1]
            passed = after.forward_ns + after.backward_ns + (after.weight_ns if joined else 0)
            trips[s] = trips[s + 1] + passed + int(alone[s, 0] + alone[s + 1, 1])
    return Pace(trips, slowest)


def depths(setting: Setting, at: Pace, scale: float, more: int = 0) -> Ints:
    """Microbatches in flight that cover the trip ``scale`` times, and so many more, within memory, ``(stages,)``."""
    if scale == float("inf"):
        wanted = np.full(len(setting.stages), setting.microbatches, dtype=np.int64)
    else:
        wanted = 1 + more + np.ceil(at.trips * scale / at.period_ns).astype(np.int64)
    return falling(np.minimum(np.minimum(wanted, setting.microbatches), limits(setting)))


def pulled_ahead(
    setting: Setting, label: str, share: Share, scales: Iterable[float], *, max_flows: bool
) -> list[Program]:
    """Backward before forward, forwards pulled ahead while it waits, recompute on the way: for several depths."""
    at = pace(setting, share, max_flows=max_flows, joined=True)
    made: dict[bytes, Program] = {}
    for scale in scales:
        depth = depths(setting, at, scale)
        if depth.tobytes() in made:
            continue
        order = depth_order(depth, setting.microbatches)
        made[depth.tobytes()] = Program(
            f"{label}, up to {int(depth[0])} in flight", order, everything(setting), joined_weights(order),
            early=True, joined=True, max_flows=max_flows, share=share,
        )  # fmt: skip
    return list(made.values())


def fastest(programs: list[Program], attempt: Try) -> Program:
    """The one that takes least; the first where none can be run."""
    if len(programs) == 1:
        return programs[0]
    alike = attempt.many if len({(each.share, each.filler is None) for each in programs}) == 1 else None
    lengths = alike(programs) if alike else [attempt(program) for program in programs]
    times = [(length, k) for k, length in enumerate(lengths) if length is not None]
    return programs[min(times)[1]] if times else programs[0]
