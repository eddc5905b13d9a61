"""What all gang policies share: kinds of devices, and waiting jobs in queue order."""

from __future__ import annotations

import heapq
from collections.abc import Container
from typing import Final

from unidle.view.state import Shape, View

KINDS: Final = {"gpu": ("gpu",), "cpu": ("cpu",), "any": ("gpu", "cpu")}


def noun(kind: str, n: int) -> str:
    """``GPUs``, ``CPU device``, ``devices``: in words, as many as there are."""
    words = {"gpu": "GPU", "cpu": "CPU device", "any": "device"}[kind]
    return words if n == 1 else words + "s"


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
