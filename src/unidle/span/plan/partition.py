"""How many layers each stage gets."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from unidle.span.model.layers import Floats, Ints, ModelCosts


def balanced(layers: int, speeds: Sequence[float], most: int) -> tuple[int, ...] | None:
    """Layers of each stage so that the slowest is as fast as it can be; None where they do not fit.

    ``speeds``: of each stage's device, in any unit; ``most``: layers that one holds. Each has at least one. Giving the
    next layer to the stage that then takes least is optimal for the largest of sums of equal parts.
    """
    stages = len(speeds)
    if not stages <= layers <= stages * most:
        return None
    low = min(speeds)
    if low == max(speeds):
        each, over = divmod(layers, stages)
        return tuple(each + (s < over) for s in range(stages))
    given = [1] * stages
    heap = [(2 / speed, s) for s, speed in enumerate(speeds)] if most > 1 else []
    heapq.heapify(heap)
    for _ in range(layers - stages):
        _, s = heapq.heappop(heap)
        given[s] += 1
        if given[s] < most:
            heapq.heappush(heap, ((given[s] + 1) / speeds[s], s))
    return tuple(given)


def balanced_cut(
    measured: ModelCosts,
    speeds: Sequence[float],
    room: int | None = None,
    borders: Collection[int] = (),
    slack: float = 1.0,
) -> tuple[int, ...] | None:
    """Uneven layers in their order: how many each stage gets so that the slowest is as fast as it can be.

    ``speeds``: of each stage's device; ``room``: bytes that one holds; ``borders``: stages that begin in another site
    than the one before. Of all cuts whose slowest stage takes at most ``slack`` times the least, the one with the fewest
    bytes over borders, and of those the most even. None where they do not fit. Exact: dynamic programming over the
    contiguous cuts, O(stages x layers^2).
    """
    layers, stages = len(measured.layers), len(speeds)
    if stages > layers:
        return None
    times = {speed: _lasting(measured, speed, room) for speed in set(speeds)}
    best = np.full(layers + 1, np.inf)
    best[0] = 0
    for speed in speeds:
        ends = np.maximum(best[:-1, None], times[speed]).min(axis=0)
        best = ends
    limit = float(best[-1]) * slack
    if not np.isfinite(limit):
        return None
    return _fewest_bytes(measured, [times[speed] for speed in speeds], limit, borders)


def even_cut(measured: ModelCosts, stages: int, room: int | None) -> tuple[int, ...] | None:
    """As many layers on each stage, whatever they take; the first ones have what is over. None where they do not fit."""
    counts = balanced(len(measured.layers), [1.0] * stages, len(measured.layers))
    if counts is None or room is None:
        return counts
    ends = list(accumulate(counts))
    held = [int(measured.needed_bytes[end - count, end]) for end, count in zip(ends, counts, strict=True)]
    return counts if max(held) <= room else None


def _lasting(measured: ModelCosts, speed: float, room: int | None) -> Floats:
    """Time of each stage that there could be, shape ``(layers, layers + 1)``; infinite where it is empty or does not fit."""
    layers = len(measured.layers)
    found: Floats = measured.useful_ns / speed
    found[np.arange(layers + 1)[None, :] <= np.arange(layers)[:, None]] = np.inf
    if room is not None:
        found[measured.needed_bytes > room] = np.inf
    return found


def _fewest_bytes(
    measured: ModelCosts, times: Sequence[Floats], limit: float, borders: Collection[int]
) -> tuple[int, ...]:
    layers = len(measured.layers)
    whole, even = max(int(measured.enters.sum()), 1), max(limit, 1.0)
    best = np.full(layers + 1, np.inf)
    best[0] = 0
    begins = list[Ints]()
    for s, lasts in enumerate(times):
        able = lasts <= limit
        # A millionth of the weight: evenness only decides between cuts of as many bytes.
        worth = np.where(able, 1e-6 * (np.where(able, lasts, 0) / even) ** 2, np.inf) + best[:-1, None]
        if s in borders:
            worth = worth + (measured.enters / whole)[:, None]
        begin = worth.argmin(axis=0)
        begins.append(begin)
        best = worth[begin, np.arange(layers + 1)]
    end, counts = layers, list[int]()
    for begin in reversed(begins):
        counts.append(end - int(begin[end]))
        end = int(begin[end])
    return tuple(reversed(counts))
