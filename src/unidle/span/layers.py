"""How many layers each stage gets."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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
