"""Renumbers groups of ranks so that many ranks keep their nodes. Pure.

Groups of one kind are interchangeable, so the cost of the order does not change.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from unidle.place.traffic import AXIS
from unidle.place.tree import Ints

_WORK: Final = 50_000_000  # counts that are compared at most; beyond, numbers stay as they are


def closest(new: Ints, old: Ints) -> Ints:
    """The order ``new`` with data and tensor indices given out so that many ranks are where ``old`` has them.

    Both are grids of nodes, shaped (pp, dp, tp), -1 in ``old`` where a rank has no place to keep. Every group stays a
    group, on the same nodes, so no cost changes. Pipelines are chains, so their stages stay in order.
    """
    by_data = _matched(new, AXIS["dp"], _overlap(new, old))
    by_both = _matched(by_data, AXIS["tp"], _equal(by_data, old))
    return max((new, by_data, by_both), key=lambda grid: int((grid == old).sum()))


def _overlap(new: Ints, old: Ints) -> Ints | None:
    """For each data index of ``old`` and ``new``, how many ranks of a stage could stay on their nodes. Shape (dp, dp)."""
    stages, size, _ = new.shape
    nodes = int(max(new.max(), old.max())) + 1
    if size == 1 or size * size * stages * nodes > _WORK:
        return None
    found = np.zeros((size, size), np.int64)
    was, now = (_counts(grid, nodes) for grid in (old, new))
    for index in range(size):
        found[index] = np.minimum(was[index], now).sum(axis=1)
    return found


def _counts(grid: Ints, nodes: int) -> Ints:
    """Ranks of each data index by stage and node. Shape (dp, pp * nodes)."""
    stages, size, _ = grid.shape
    stage, index, _ = np.indices(grid.shape)
    there = grid >= 0
    flat = (index * stages + stage)[there] * nodes + grid[there]
    return np.bincount(flat, minlength=size * stages * nodes).reshape(size, -1).astype(np.int64)


def _equal(new: Ints, old: Ints) -> Ints | None:
    """For each tensor index of ``old`` and ``new``, how many ranks would be where they were. Shape (tp, tp)."""
    size = new.shape[AXIS["tp"]]
    if size == 1 or size * new.size > _WORK:
        return None
    was, now = (np.moveaxis(grid, AXIS["tp"], 0).reshape(size, -1) for grid in (old, new))
    return np.array([(row == now).sum(axis=1) for row in was], np.int64)


def _matched(grid: Ints, axis: int, met: Ints | None) -> Ints:
    """The grid's indices along ``axis`` in the order that meets best, the best match first; stable."""
    if met is None:
        return grid
    size = len(met)
    order = np.full(size, -1, np.int64)
    taken = np.zeros(size, np.bool_)
    for flat in np.argsort(-met, axis=None, kind="stable").tolist():
        to, source = divmod(flat, size)
        if order[to] < 0 and not taken[source]:
            order[to], taken[source] = source, True
    found: Ints = np.take(grid, order, axis=axis)
    return found
