"""GPipe (arXiv 1811.06965): all forwards, then all backwards the other way round; activations are made again.

Where memory does not hold all microbatches they go in windows, one after the other.
"""

from __future__ import annotations

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program, arranged, joined_weights
from unidle.span.simulate.schedules.base import Try, everything, limits


def gpipe(setting: Setting, _attempt: Try) -> Program:
    """One program."""
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
