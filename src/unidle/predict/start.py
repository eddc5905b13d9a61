"""When waiting jobs will start: the queue simulated on numbers of devices.

Each time a running job ends, waiting jobs are tried in queue order and start if enough devices are free.
A job that does not fit is skipped, as the gang policies of ``unidle.place`` do. Devices are only counted,
not placed: a job whose shape does not fit, although enough devices are free, starts later than predicted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class Departure(NamedTuple):
    """``devices`` that come free at ``ends_ns``."""

    ends_ns: int
    devices: int


class Waiter(NamedTuple):
    """A waiting job, in queue order. Without ``runs_ns`` its devices do not come free in this plan."""

    job: str
    devices: int
    runs_ns: int | None


def planned_starts(
    free: int, holders: Iterable[Departure], waiting: Iterable[Waiter], now_ns: int
) -> dict[str, int]:
    """When each job starts (ns); jobs for which nothing that is known makes room are left out."""
    ends = [(max(h.ends_ns, now_ns), h.devices) for h in holders]
    heapq.heapify(ends)
    queues: dict[int, deque[tuple[int, Waiter]]] = {}
    for order, waiter in enumerate(waiting):
        queues.setdefault(waiter.devices, deque()).append((order, waiter))
    starts: dict[str, int] = {}
    at_ns = now_ns
    while True:
        for waiter in _fitting(queues, free):
            free -= waiter.devices
            starts[waiter.job] = at_ns
            if waiter.runs_ns is not None:
                heapq.heappush(ends, (at_ns + waiter.runs_ns, waiter.devices))
        if not ends or not queues:
            return starts
        at_ns = ends[0][0]
        while ends and ends[0][0] == at_ns:
            free += heapq.heappop(ends)[1]


def _fitting(queues: dict[int, deque[tuple[int, Waiter]]], free: int) -> list[Waiter]:
    """Take out of the queues what fits now, in queue order; of one width the rest fits no more than the first."""
    heads = [(queue[0][0], devices) for devices, queue in queues.items() if devices <= free]
    heapq.heapify(heads)
    found: list[Waiter] = []
    while heads:
        _, devices = heapq.heappop(heads)
        if devices > free:
            continue
        queue = queues[devices]
        found.append(queue.popleft()[1])
        free -= devices
        if queue:
            heapq.heappush(heads, (queue[0][0], devices))
        else:
            del queues[devices]
    return found
