"""Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): each device has several chunks of the model.

Microbatches that do not fill a group of as many as stages are laid out as if they did, and left out again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.memory import peak_bytes
from unidle.span.simulate.program import Ints, Program, arranged, joined_weights
from unidle.span.simulate.schedules.base import Try, everything
from unidle.words import counted


def interleaved(setting: Setting, _attempt: Try) -> Program:
    """One program: all at once where memory allows, else in windows of microbatches, at last with fewer chunks."""
    programs = _programs(setting)
    program = next(programs)
    while not _fits(setting, program):
        following = next(programs, None)
        if following is None:
            break
        program = following
    return program


def _programs(setting: Setting) -> Iterator[Program]:
    for chunks in range(setting.chunks, 0, -1):
        again, window = everything(setting, chunks), setting.microbatches
        while True:
            order = windows(len(setting.stages), setting.microbatches, chunks, window)
            label = counted(chunks, "chunk") + (
                "" if window == setting.microbatches else f", windows of {window}"
            )
            for made in (~again, again):
                yield Program(label, order, made, joined_weights(order), chunks, joined=True)
            if window == 1:
                break
            window = (window + 1) // 2


def _fits(setting: Setting, program: Program) -> bool:
    return (
        setting.memory_cap_bytes is None
        or int(peak_bytes(setting, program).max()) <= setting.memory_cap_bytes
    )


def windows(stages: int, count: int, chunks: int, window: int) -> Ints:
    """The order of all stages, window by window, ``(stages, 2U)``."""
    units, blocks = count * chunks, []
    for first in range(0, count, window):
        size = min(window, count - first)
        block = _order(stages, size, chunks)
        backward, inside = block >= size * chunks, block % (size * chunks)
        unit = inside // size * count + first + inside % size
        blocks.append(unit + backward * units)
    return np.concatenate(blocks, axis=1)


def _order(stages: int, count: int, chunks: int) -> Ints:
    padded = -(-count // stages) * stages
    group, chunk, inside = np.meshgrid(
        np.arange(padded // stages), np.arange(chunks), np.arange(stages), indexing="ij"
    )
    microbatch = (group * stages + inside).ravel()
    forwards = (chunk.ravel() * padded + microbatch)[None, :]
    backwards = ((chunks - 1 - chunk.ravel()) * padded + microbatch)[None, :]
    units = padded * chunks
    ahead = 2 * (stages - 1 - np.arange(stages, dtype=np.int64)) + (chunks - 1) * stages + 1
    order = arranged(forwards, backwards, np.minimum(ahead, units)[:, None], units)
    backward, unit = order >= units, order % units
    real = unit % padded < count
    whole = unit // padded * count + unit % padded + backward * (count * chunks)
    result: Ints = whole[real].reshape(stages, 2 * count * chunks)
    return result
