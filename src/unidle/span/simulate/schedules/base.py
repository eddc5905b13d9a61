"""What a schedule is, and what several of them share: depths, limits of memory, whether to keep or make again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import (
    Flags,
    Ints,
    LinkShare,
    Program,
    depth_order,
    falling,
    inputs_of,
    joined_weights,
    most_in_flight,
    room_of,
)
from unidle.span.simulate.routes import routes_of


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
class LinkSpacing:
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


def worth_keeping(setting: Setting) -> Flags:
    """Stages whose activations cost time to make again, ``(stages,)``."""
    return np.array([stage.recompute_ns > 0 for stage in setting.stages], dtype=np.bool_)


def within_memory(setting: Setting, depth: Ints, put_off: int) -> tuple[Ints, Flags]:
    """How many gradients of weights may wait, and what is made again, ``(stages,)`` and ``(stages, M)``.

    On each stage at most ``depth`` inputs are held for forwards and ``put_off`` for what was put off; activations for
    the one in its backward, for what was put off, and for an even part of those in flight.
    """
    count, room = setting.microbatches, room_of(setting)
    worth = worth_keeping(setting)
    most = np.full(len(depth), min(put_off, count), dtype=np.int64)
    if room is None:
        return most, np.repeat(~worth[:, None], count, axis=1)
    size, kept = input_bytes(setting), kept_bytes(setting)
    both = np.maximum(size + kept, 1)
    left = room - depth * size - kept
    whole = worth & (depth * both <= room)
    spare = np.where(whole, room // both - depth, left // both)
    most = np.where(size + kept > 0, np.clip(spare, 0, most), most)
    hold = np.maximum((left - most * both) // np.maximum(kept, 1), 0)
    hold = np.where(whole | (kept == 0), depth, np.minimum(hold, depth)) * worth
    k = np.arange(count + 1, dtype=np.int64)[None, :]
    steps = k * hold[:, None] // depth[:, None]
    return most, np.diff(steps, axis=1) == 0


def whole_depth(setting: Setting, depth: Ints) -> Ints:
    """No deeper than what stages can hold with all activations kept, where that saves a recompute, ``(stages,)``."""
    room = room_of(setting)
    if room is None:
        return depth
    whole = np.maximum(room // np.maximum(input_bytes(setting) + kept_bytes(setting), 1), 1)
    return falling(np.minimum(depth, np.where(worth_keeping(setting), whole, depth)))


def pace(setting: Setting, share: LinkShare, *, max_flows: bool, joined: bool) -> LinkSpacing:
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
    return LinkSpacing(trips, slowest)


def depths(setting: Setting, at: LinkSpacing, scale: float, more: int = 0) -> Ints:
    """Microbatches in flight that cover the trip ``scale`` times, and so many more, within memory, ``(stages,)``."""
    if scale == float("inf"):
        wanted = np.full(len(setting.stages), setting.microbatches, dtype=np.int64)
    else:
        wanted = 1 + more + np.ceil(at.trips * scale / at.period_ns).astype(np.int64)
    return falling(np.minimum(np.minimum(wanted, setting.microbatches), limits(setting)))


def pulled_ahead(
    setting: Setting,
    label: str,
    share: LinkShare,
    scales: Iterable[float],
    *,
    max_flows: bool,
    keep: bool = False,
) -> list[Program]:
    """Backward before forward, forwards pulled ahead while it waits, recompute on the way: for several depths.

    ``keep``: also programs that keep the activations which the memory allows, at that depth and at one that keeps all.
    """
    at = pace(setting, share, max_flows=max_flows, joined=True)
    made: dict[tuple[bytes, bytes], Program] = {}
    for scale in scales:
        depth = depths(setting, at, scale)
        wanted = [(depth, everything(setting))]
        if keep:
            shallow = whole_depth(setting, depth)
            wanted += [(each, within_memory(setting, each, 0)[1]) for each in (depth, shallow)]
        for each, again in wanted:
            order = depth_order(each, setting.microbatches)
            kept = f", {1 - float(again.mean()):.0%} kept" if keep else ""
            made.setdefault((each.tobytes(), again.tobytes()), Program(
                f"{label}, up to {int(each[0])} in flight{kept}", order, again, joined_weights(order),
                early=True, joined=True, max_flows=max_flows, share=share,
            ))  # fmt: skip
    return list(made.values())


def fastest(programs: list[Program], attempt: Try) -> Program:
    """The one that takes least; the first where none can be run."""
    if len(programs) == 1:
        return programs[0]
    alike = attempt.many if len({(each.share, each.filler is None) for each in programs}) == 1 else None
    lengths = alike(programs) if alike else [attempt(program) for program in programs]
    times = [(length, k) for k, length in enumerate(lengths) if length is not None]
    return programs[min(times)[1]] if times else programs[0]
