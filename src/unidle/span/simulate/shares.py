"""How many microbatches each pipeline gets where their devices are not equally fast."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from unidle.errors import BadInput
from unidle.words import counted


def shares(speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """Microbatches of each pipeline, ``batch`` together and at least one each, so that the slowest ends as soon as it can.

    ``speeds``: microbatches in any unit of time. The next one goes to the pipeline that then ends first: as with
    :func:`unidle.span.plan.layers.balanced` no other way makes the largest of ``share / speed`` smaller. The gradient stays
    that of the whole batch where each pipeline's mean counts by its share of it. Errors:
    :class:`unidle.errors.BadInput`.
    """
    if not speeds or min(speeds) <= 0:
        raise BadInput(
            "must be numbers over 0", field="speeds", value=list(speeds), remedy="one for each pipeline"
        )
    if batch < len(speeds):
        raise BadInput(
            f"are fewer than {counted(len(speeds), 'pipeline')}, and each needs one", field="microbatches", value=batch,
            remedy="use fewer pipelines",
        )  # fmt: skip
    given = [1] * len(speeds)
    # What is rounded down of an even share is the least that any best way gives, unless the ones take too much.
    total = sum(speeds)
    least = [max(int(batch * speed / total * (1 - 1e-12)), 1) for speed in speeds]
    if sum(least) <= batch:
        given = least
    heap = [((n + 1) / speed, k) for k, (n, speed) in enumerate(zip(given, speeds, strict=True))]
    heapq.heapify(heap)
    for _ in range(batch - sum(given)):
        _, k = heap[0]
        given[k] += 1
        heapq.heapreplace(heap, ((given[k] + 1) / speeds[k], k))
    return tuple(given)


def shares_by_cell(speeds: Sequence[float], batch: int, cell: int) -> tuple[int, ...]:
    """The same where ``cell`` pipelines, one after the other, do as many each and ``batch`` is a multiple of ``cell``.

    A cell is as fast as its slowest pipeline. Errors: :class:`unidle.errors.BadInput`.
    """
    slowest = [min(speeds[first : first + cell]) for first in range(0, len(speeds), cell)]
    return tuple(count for count in shares(slowest, batch // cell) for _ in range(cell))
