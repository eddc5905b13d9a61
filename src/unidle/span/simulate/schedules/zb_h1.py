"""ZB-H1 (arXiv 2401.10241): the backward pass in two, gradients of weights put off by as many as stages come before.

With a whole memory M(F+B+W) + (P-1)(F+B-W) where W is no longer than F and B, at the memory of 1F1B.
"""

from __future__ import annotations

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.memory import room_of
from unidle.span.simulate.program import Program, delayed_weights, depth_order, falling
from unidle.span.simulate.schedules.base import Try, everything, input_bytes, kept_bytes, limits


def zb_h1(setting: Setting, _attempt: Try) -> Program:
    """One program; under a cap first less is put off, then fewer are in flight."""
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
