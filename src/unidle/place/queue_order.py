"""What all gang policies share: kinds of devices, and waiting jobs in queue order."""

from __future__ import annotations

import heapq
from collections.abc import Container
from typing import Final

from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import plural

STARVED_NS: Final = 24 * 3_600_000_000_000
"""A job that waited so long comes before all that did not, and room is kept for it."""
KINDS: Final = {"gpu": ("gpu",), "cpu": ("cpu",), "any": ("gpu", "cpu")}


def noun(kind: str, n: float) -> str:
    """``GPUs``, ``CPU device``, ``devices``: in words, as many as there are."""
    return plural(n, {"gpu": "GPU", "cpu": "CPU device", "any": "device"}[kind])


class InQueueOrder:
    """Waiting jobs over all shapes, as (shape, job), by priority and submission.

    Jobs of a shape in ``blocked``, which may grow meanwhile, are passed over, and those whose time has not come.
    """

    def __init__(self, view: View, now_ns: int, blocked: Container[Shape]) -> None:
        self._view, self._now_ns, self._blocked = view, now_ns, blocked
        self._heads = [(queue[0], 0, shape) for shape, queue in view.waiting.items() if queue]
        heapq.heapify(self._heads)

    def __iter__(self) -> InQueueOrder:
        return self

    def __next__(self) -> tuple[Shape, str]:
        while self._heads:
            (_, _, job_id), at, shape = heapq.heappop(self._heads)
            if shape in self._blocked:
                continue
            queue = self._view.waiting[shape]
            if at + 1 < len(queue):
                heapq.heappush(self._heads, (queue[at + 1], at + 1, shape))
            if self._view.jobs[job_id].not_before_ns <= self._now_ns:
                return shape, job_id
        raise StopIteration


def starves(view: View, now_ns: int) -> bool:
    """Whether a job has waited for too long, wherever it stands in its line."""
    since_ns = view.queue.since_ns()
    return since_ns is not None and since_ns <= now_ns - STARVED_NS


def starves_ns(view: View, now_ns: int) -> int | None:
    """When the next job will have waited for too long."""
    since_ns = view.queue.since_ns(now_ns - STARVED_NS)
    return None if since_ns is None else since_ns + STARVED_NS
