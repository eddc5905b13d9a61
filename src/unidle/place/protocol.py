"""The page to begin with: what a policy gets and returns.

A policy turns a view into a plan: who starts where, who waits and why, who is stopped for whom, and which devices are
cut again. What all policies share is here too: kinds of devices, and waiting jobs in queue order. The cycle is in
``scheduler``, and what its actions see in ``session``. Nothing here needs NumPy.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from unidle.fleet import Cut
from unidle.fleet.queues import USUAL_ORDER
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import plural


@dataclass(frozen=True, slots=True)
class Place:
    """Give these slices to this job's gang; one entry per rank, in rank order."""

    job: str
    places: tuple[RankPlace, ...]
    because: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """The job keeps waiting."""

    job: str
    because: Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this job's attempt and let it wait again, to make room for ``for_job``.

    ``why`` is ``moved`` where devices are kept for it elsewhere. ``grace_ns``: it has no longer than that to stop.
    """

    job: str
    because: Reason
    for_job: str | None = None
    why: Literal["preempted", "moved"] = "preempted"
    grace_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep so many devices of a kind on these nodes for a job that waits, or is moved there, until ``expires_ns``."""

    job: str
    kind: str
    devices: dict[str, int]
    expires_ns: int
    because: Reason


@dataclass(frozen=True, slots=True)
class Recut:
    """Cut a device again, before anything is placed; parts in use stay as they are."""

    device: str
    cut: Cut
    because: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they were made.

    ``again_ns``: when time alone may change them; now, where a decision on what this one leaves may add to it.
    """

    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()
    keeps: tuple[Keep, ...] = ()
    stops: tuple[Stop, ...] = ()
    again_ns: int | None = None
    cuts: tuple[Recut, ...] = ()


class Policy(Protocol):
    """Turns what is known into what to do. Pure: no clock, no I/O, the view is only read."""

    def decide(self, view: View, now_ns: int) -> Plan: ...

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        """Why a gang of this job cannot be placed now; None where it can."""

    def ever(self, view: View, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, holds a gang of this job."""


STARVED_NS: Final = USUAL_ORDER.bound_ns
"""A job that has fallen behind its turn for so long comes before all that have not, and room is kept for it."""
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
    return since_ns is not None and since_ns <= now_ns - view.fleet.order.bound_ns


def starves_ns(view: View, now_ns: int) -> int | None:
    """When the next job will have waited for too long."""
    bound_ns = view.fleet.order.bound_ns
    since_ns = view.queue.since_ns(now_ns - bound_ns)
    return None if since_ns is None else since_ns + bound_ns
