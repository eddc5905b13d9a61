"""Memory of each device over an iteration. It follows from the order alone: no clock is needed."""

from __future__ import annotations

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Flags, Ints, Program


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


def most_in_flight(room: int | None, each: int, beside: int = 0) -> int:
    """How many of ``each`` bytes fit into ``room`` with ``beside``; a large number where all do."""
    if room is None or (each == 0 and room >= beside):
        return 1 << 40
    return max((room - beside) // each, 0) if each else 0
