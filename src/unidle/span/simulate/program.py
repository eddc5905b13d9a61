"""What a schedule decides: the order of each stage, what is made again, who shares links, when weights' gradients run.

Memory of each device follows from the order alone: no clock is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from unidle.span.model.setting import Setting

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Stuck(Exception):
    """The orders of the stages wait for each other."""


@dataclass(frozen=True, slots=True)
class Filler:
    """Gradients of weights run where a device would wait.

    ``most``: how many may be put off on each stage, shape ``(stages,)``. ``slack_ns``: how much later the next
    operation may become for one that does not quite fit into the wait.
    """

    most: Ints
    slack_ns: Ints


@dataclass(frozen=True, slots=True)
class LinkShare:
    """How links between sites are used.

    ``own``: each pipeline its own pair of nodes. ``turns``: a transfer is scattered over the nodes of its cell, all
    send at once, the far side gathers; pipelines take turns. ``wide``: nodes of all stages of both sites take part.
    ``pieces``: a transfer in turns is cut, so that scatter, send and gather overlap.
    """

    how: Literal["own", "turns"] = "own"
    wide: bool = False
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule, made for a setting.

    A *unit* is one microbatch in one chunk of a stage: ``chunk * microbatches + microbatch``, of which there are U.

    ``order``: shape ``(stages, 2U)``; unit u forward is ``u``, backward ``U + u``. ``again``: ``(stages, U)``, units
    whose activations are made again before their backward. ``early``: that is done while the gradient is still on its
    way. ``joined``: the gradient leaves only after that of the weights (no split of the backward pass).
    ``weights_after``: ``(stages, 2U)``, how many gradients of weights run after each operation, in the order of the
    backwards; for a program with a ``filler`` it is empty.
    """

    label: str
    order: Ints
    again: Flags
    weights_after: Ints
    chunks: int = 1
    early: bool = False
    joined: bool = False
    filler: Filler | None = None
    max_flows: bool = False
    share: LinkShare = field(default_factory=LinkShare)

    @property
    def units(self) -> int:
        return int(self.order.shape[1]) // 2


def depth_order(depth: Ints, units: int) -> Ints:
    """So many forwards as ``depth`` (``(stages,)``, at least 1), then backward and forward in turn. Shape ``(stages, 2U)``."""
    d = np.clip(depth, 1, units)[:, None]
    k = np.arange(units, dtype=np.int64)[None, :]
    return arranged(k, k, d, units)


def arranged(forwards: Ints, backwards: Ints, depth: Ints, units: int) -> Ints:
    """The same with given orders of units, each of shape ``(1, U)``; ``depth`` of shape ``(stages, 1)``."""
    k = np.arange(units, dtype=np.int64)[None, :]
    stages = depth.shape[0]
    order = np.empty((stages, 2 * units), dtype=np.int64)
    rows = np.arange(stages)[:, None]
    order[rows, k + np.maximum(0, k - depth + 1)] = forwards
    order[rows, k + np.minimum(units, depth + k)] = units + backwards
    return order


def joined_weights(order: Ints) -> Ints:
    """One gradient of weights right after each backward."""
    found: Ints = (order >= order.shape[1] // 2).astype(np.int64)
    return found


def delayed_weights(order: Ints, delay: Ints) -> Ints:
    """That of a microbatch after the backward of the ``delay``-th next one; the rest at the end."""
    units = order.shape[1] // 2
    is_backward = order >= units
    count = np.cumsum(is_backward, axis=1)
    after: Ints = (is_backward & (count > delay[:, None])).astype(np.int64)
    after[:, -1] += units - after.sum(axis=1)
    return after


def falling(depth: Sequence[int] | Ints) -> Ints:
    """Depths that never rise from stage to stage (they would wait for each other), at least 1."""
    return np.maximum(np.minimum.accumulate(np.asarray(depth, dtype=np.int64)), 1)


def kept_of(setting: Setting, chunks: int) -> Ints:
    """Bytes that the backward pass of one unit needs, shape ``(stages, chunks)``."""
    return split(np.array([stage.kept_bytes for stage in setting.stages], dtype=np.int64), chunks)


def inputs_of(setting: Setting, chunks: int) -> Ints:
    """Bytes that enter each unit, shape ``(stages, chunks)``."""
    sizes = [
        [setting.entering_bytes(s, chunk) for chunk in range(chunks)] for s in range(len(setting.stages))
    ]
    return np.array(sizes, dtype=np.int64)


def split(whole: Ints, chunks: int) -> Ints:
    """Each number in ``chunks`` near-equal parts that sum to it."""
    steps = np.arange(chunks + 1, dtype=np.int64)[None, :] * whole[:, None] // chunks
    return np.diff(steps, axis=1)


def peak_bytes(setting: Setting, program: Program, fills: Ints | None = None) -> Ints:
    """The most that a device of each stage holds, shape ``(stages,)``.

    ``fills``: for a program with a filler, how many gradients of weights ran before each operation, shape
    ``(stages, 2U)``. The input of a stage is held from the start of its forward to the end of its last backward part;
    what the backward needs, from the start of the forward where it is kept, else from the start of its recompute.
    """
    order, units = program.order, program.units
    index = order % units
    backward = order >= units
    rows = np.arange(order.shape[0])[:, None]
    chunk = index // setting.microbatches
    kept = kept_of(setting, program.chunks)[rows, chunk]
    size = inputs_of(setting, program.chunks)[rows, chunk]
    free = np.array([not stage.recompute_ns for stage in setting.stages])
    again = program.again[rows, index] | free[:, None]  # what costs nothing to make again is not kept
    before = weights_before(program, fills)
    takes = np.where(backward, np.where(again, kept, 0), size + np.where(again, 0, kept))
    none = np.zeros((len(order), 1), dtype=np.int64)
    freed = np.concatenate([none, _freed(size + kept, backward)], axis=1)
    held: Ints = np.cumsum(takes, axis=1) - np.take_along_axis(freed, before, axis=1)
    highest: Ints = held.max(axis=1) + static_of(setting)
    return highest


def static_of(setting: Setting) -> Ints:
    """What a device of each stage holds whatever it does, shape ``(stages,)``."""
    return np.array([setting.held_bytes(s) for s in range(len(setting.stages))], dtype=np.int64)


def room_of(setting: Setting) -> Ints | None:
    """What the cap leaves for microbatches on a device of each stage, None without one; shape ``(stages,)``."""
    return None if setting.memory_cap_bytes is None else setting.memory_cap_bytes - static_of(setting)


def weights_before(program: Program, fills: Ints | None) -> Ints:
    """Gradients of weights that ended before each operation begins, shape ``(stages, 2U)``."""
    if program.filler is not None:
        if fills is None:
            raise ValueError("a program with a filler needs what was filled")
        return fills
    after = np.cumsum(program.weights_after, axis=1)
    return np.concatenate([np.zeros((len(after), 1), dtype=np.int64), after[:, :-1]], axis=1)


def _freed(each: Ints, backward: Flags) -> Ints:
    """Bytes freed by the first n gradients of weights, in the order of the backwards, shape ``(stages, U)``."""
    at = np.nonzero(backward)
    return np.cumsum(each[at].reshape(len(each), -1), axis=1)


def most_in_flight(room: int | None, each: int, other: int = 0) -> int:
    """How many of ``each`` bytes fit into ``room`` with ``other`` bytes; a large number where all do."""
    if room is None or (each == 0 and room >= other):
        return 1 << 40
    return max((room - other) // each, 0) if each else 0
