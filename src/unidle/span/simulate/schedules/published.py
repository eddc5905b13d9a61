"""Schedules that others published, each a function of its paper's name. What had no code is reconstructed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import (
    Ints,
    LinkShare,
    Program,
    arranged,
    delayed_weights,
    depth_order,
    falling,
    joined_weights,
    peak_bytes,
    room_of,
)
from unidle.span.simulate.schedules.base import (
    Try,
    everything,
    fastest,
    input_bytes,
    is_large,
    keep_where_it_fits,
    kept_bytes,
    limits,
    pulled_ahead,
)
from unidle.words import counted


def gpipe(setting: Setting, _attempt: Try) -> Program:
    """GPipe (arXiv 1811.06965): all forwards, then all backwards the other way round; activations are made again.

    Where memory does not hold all microbatches they go in windows, one after the other.
    """
    count, stages = setting.microbatches, len(setting.stages)
    window = int(np.clip(limits(setting).min(), 1, count))
    blocks = []
    for first in range(0, count, window):
        size = min(window, count - first)
        forwards = np.arange(first, first + size, dtype=np.int64)[None, :]
        depth = np.full((1, 1), size, dtype=np.int64)
        block = arranged(forwards, forwards[:, ::-1] + count - size, depth, size)
        blocks.append(block)
    order = np.tile(np.concatenate(blocks, axis=1), (stages, 1))
    label = "all forwards first" if window == count else f"windows of {window}"
    return Program(label, order, everything(setting), joined_weights(order), joined=True)


def one_f_one_b(setting: Setting, _attempt: Try) -> Program:
    """1F1B (PipeDream-Flush, arXiv 2006.09503): as many forwards as stages follow, then one backward, one forward.

    Activations are kept on the stages that hold them.
    """
    stages = len(setting.stages)
    wanted = np.minimum(np.arange(stages, 0, -1, dtype=np.int64), setting.microbatches)
    depth = falling(np.minimum(wanted, limits(setting)))
    order = depth_order(depth, setting.microbatches)
    again = keep_where_it_fits(setting, depth)
    label = f"up to {int(depth[0])} in flight"
    return Program(label, order, again, joined_weights(order), joined=True)


def zb_h1(setting: Setting, _attempt: Try) -> Program:
    """ZB-H1 (arXiv 2401.10241): the backward pass in two, gradients of weights put off by as many as stages come before.

    With a whole memory M(F+B+W) + (P-1)(F+B-W) where W is no longer than F and B, at the memory of 1F1B. Under a cap first
    less is put off, then fewer are in flight.
    """
    stages, room = len(setting.stages), room_of(setting)
    index = np.arange(stages, dtype=np.int64)
    depth = falling(np.minimum(np.minimum(stages - index, setting.microbatches), limits(setting)))
    delay = index.copy()
    again = everything(setting)
    if room is None:
        again = ~again
    else:
        kept, size = kept_bytes(setting), input_bytes(setting)
        whole = (depth + delay) * (size + kept) <= room
        left = (room - depth * size - kept) // np.maximum(size + kept, 1)
        delay = np.where(whole | (size + kept == 0), delay, np.clip(left, 0, delay))
        again &= ~whole[:, None]
    order = depth_order(depth, setting.microbatches)
    label = f"up to {int(depth[0])} in flight, {int(delay[-1])} put off"
    return Program(label, order, again, delayed_weights(order, delay))


SCALES: Final = (1.0, 0.5, 1.5, 2.0, float("inf"), 0.0)


def varuna(setting: Setting, attempt: Try) -> Program:
    """Varuna-like (arXiv 2111.04007), reconstructed: backward before forward, recompute done while the gradient is on its
    way, next forwards pulled ahead while it waits.

    Varuna decides while it runs; here the depth to which forwards are pulled ahead is searched, and the order is fixed.
    """
    scales = SCALES[:1] if is_large(setting) else SCALES
    programs = pulled_ahead(setting, "backward first", LinkShare(), scales, max_flows=not setting.one_flow)
    return fastest(programs, attempt)


def atlas(setting: Setting, attempt: Try) -> Program:
    """ATLAS (arXiv 2411.14458), reconstructed from its abstract: the pipelines of a cell share their links in time.

    A transfer is scattered over the cell's nodes, all send at once with many flows, the far side gathers, and pipelines
    take turns. The order within a pipeline is that of Varuna: the best of a few depths, with recompute always.
    """
    return _atlas(setting, attempt, keep=False)


def atlas_keep(setting: Setting, attempt: Try) -> Program:
    """A stronger ATLAS: the best of a few depths, each with and without the activations that fit into the memory cap."""
    return _atlas(setting, attempt, keep=True)


def _atlas(setting: Setting, attempt: Try, *, keep: bool) -> Program:
    scales = SCALES[:1] if is_large(setting) else SCALES
    label = f"turns in cells of {setting.cell}" if setting.cell > 1 else "backward first, many flows"
    return fastest(
        pulled_ahead(setting, label, LinkShare("turns"), scales, max_flows=True, keep=keep), attempt
    )


def interleaved(setting: Setting, _attempt: Try) -> Program:
    """Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): each device has several chunks of the model.

    All at once where memory allows, else in windows of microbatches, at last with fewer chunks. Microbatches that do not
    fill a group of as many as stages are laid out as if they did, and left out again.
    """
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
