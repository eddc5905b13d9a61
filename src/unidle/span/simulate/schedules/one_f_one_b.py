"""1F1B (PipeDream-Flush, arXiv 2006.09503): as many forwards as stages follow, then one backward, one forward."""

from __future__ import annotations

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program, depth_order, falling, joined_weights
from unidle.span.simulate.schedules.base import Try, keep_where_it_fits, limits


def one_f_one_b(setting: Setting, _attempt: Try) -> Program:
    """One program; activations are kept on the stages that hold them."""
    stages = len(setting.stages)
    wanted = np.minimum(np.arange(stages, 0, -1, dtype=np.int64), setting.microbatches)
    depth = falling(np.minimum(wanted, limits(setting)))
    order = depth_order(depth, setting.microbatches)
    again = keep_where_it_fits(setting, depth)
    label = f"up to {int(depth[0])} in flight"
    return Program(label, order, again, joined_weights(order), joined=True)
