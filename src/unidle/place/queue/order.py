"""The order inside a queue, and how far a job has fallen behind its turn.

``attained``: jobs that have had little service come first, in three classes of it, and in each class in the order of
submission: many jobs are short, and which is known only once it has run (Gu et al., "Tiresias", NSDI 2019).
``predicted``: where a run time is known, it counts until the job has run for longer. ``fair``: the users of the queue
in turn, who holds the least first, and each user's jobs as for ``attained``. ``fifo``: the order of submission.

A job's turn has come when all jobs that came before it and have not ended fit, with it, in what its queue deserves:
had no job passed it, it would run. From then on it falls behind while it waits. One that has fallen behind by half
of the bound comes first, and none passes it again: the other half is for making room.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from unidle.fleet.queues import Order
from unidle.place.model import Amounts
from unidle.view.jobs import JobView

_HOUR_US: Final = 3_600_000_000
CLASSES_US: Final = (_HOUR_US, 8 * _HOUR_US)
"""Device-time of service from which on a job is in the next class."""
_PREDICTED_US: Final = tuple(
    _HOUR_US * 4**k // 64 for k in range(9)
)  # from a minute to 43 days, each four times the last
Waits: TypeAlias = tuple[tuple[int, int | None], ...]
"""Spans in which a job waited, as (since, until); the last one has no end while it waits."""
LATE: Final = -1
"""The class of a job that may fall behind no further."""


def service_class(order: Order, served_us: int, expected_us: int | None = None) -> int:
    """The class of a job with so much service; ``expected_us``: all that it will need, where that is known."""
    if order == "fifo":
        return 0
    if order != "predicted":
        return bisect_right(CLASSES_US, served_us)
    # who is not known is among the shortest until it has shown that it is not
    return bisect_right(_PREDICTED_US, max(served_us, expected_us or 0))


def next_class_us(order: Order, served_us: int, expected_us: int | None = None) -> int | None:
    """The service at which a job with so much of it changes its class next; None: never."""
    edges = {"fifo": (), "predicted": _PREDICTED_US}.get(order, CLASSES_US)
    at = bisect_right(edges, max(served_us, expected_us or 0) if order == "predicted" else served_us)
    return edges[at] if at < len(edges) else None


def served_us(job: JobView) -> int:
    """Device-time of the attempts that have ended."""
    ended = sum(a.ended_ns - a.placed_ns for a in job.attempts if a.ended_ns is not None)
    return ended // 1_000 * max(job.spec.devices, 1) if ended else 0


def waits_of(job: JobView) -> Waits:
    """When the job waited."""
    since_ns = (job.submitted_ns, *(a.ended_ns for a in job.attempts if a.ended_ns is not None))
    until_ns = (*(a.placed_ns for a in job.attempts), None)
    return tuple(zip(since_ns, until_ns, strict=False))


@dataclass(slots=True)
class _Came:
    """A queue's jobs that have not ended, as they came, and the first of them whose turn has come."""

    jobs: list[tuple[int, str]]
    first: int = 0  # so many, of which ``used`` is the sum
    used: tuple[int, ...] = ()


class QueueTurns:
    """Whose turn has come, and how far each job has fallen behind it.

    It follows from when jobs were submitted, waited and ended, in whichever portions that becomes known.
    """

    def __init__(self) -> None:
        self._came: dict[int, _Came] = {}  # by leaf
        self._asked: dict[str, tuple[int, int, Amounts]] = {}  # by job: leaf, since when, and its charge
        self._turn_ns: dict[str, int] = {}  # of those whose turn has come
        self._waits: dict[str, Waits] = {}  # by job, when it waited
        self._at_turn: dict[int, dict[str, None]] = {}  # by leaf, those that wait and whose turn has come

    def __contains__(self, job: str) -> bool:
        return job in self._asked

    def see(self, job: str, leaf: int, came_ns: int, charged: Amounts) -> None:
        """The job was submitted; ``came_ns`` sorts it among the others."""
        self._asked[job] = leaf, came_ns, charged
        came = self._came.setdefault(leaf, _Came([], 0, (0,) * len(charged)))
        at = bisect_left(came.jobs, (came_ns, job))
        came.jobs.insert(at, (came_ns, job))
        if at < came.first:  # of higher priority than one whose turn has come
            came.first += 1
            came.used = tuple(u + c for u, c in zip(came.used, charged, strict=True))

    def end(self, job: str) -> None:
        """The job has ended."""
        known = self._asked.pop(job, None)
        if known is None:
            return
        leaf, came_ns, charged = known
        came = self._came[leaf]
        at = bisect_left(came.jobs, (came_ns, job))
        del came.jobs[at]
        if at < came.first:
            came.first -= 1
            came.used = tuple(u - c for u, c in zip(came.used, charged, strict=True))
        for of_job in (self._turn_ns, self._waits, self._at_turn.get(leaf, {})):
            of_job.pop(job, None)

    def waited(self, job: str, waits: Waits) -> None:
        """When the job has waited, and waits if it does."""
        self._waits[job] = waits
        leaf = self._asked[job][0]
        if waits and waits[-1][1] is None and job in self._turn_ns:
            self._at_turn.setdefault(leaf, {})[job] = None
        else:
            self._at_turn.get(leaf, {}).pop(job, None)

    def come(self, leaf: int, deserved: Amounts, at_ns: int) -> None:
        """Find whose turn comes at that time."""
        came = self._came.get(leaf)
        while came is not None and came.first < len(came.jobs):
            job = came.jobs[came.first][1]
            used = tuple(u + c for u, c in zip(came.used, self._asked[job][2], strict=True))
            if came.first and any(u > d for u, d in zip(used, deserved, strict=True)):
                return
            came.first, came.used = came.first + 1, used
            self._turn_ns.setdefault(job, at_ns)
            self.waited(job, self._waits.get(job, ()))

    def behind_ns(self, job: str, now_ns: int) -> int:
        """How long the job has waited since its turn came."""
        turn_ns = self._turn_ns.get(job)
        if turn_ns is None:
            return 0
        spans = self._waits.get(job, ())
        return sum(
            max((now_ns if until_ns is None else until_ns) - max(since_ns, turn_ns), 0)
            for since_ns, until_ns in spans
        )

    def at_turn(self, leaf: int) -> Iterator[str]:
        """Jobs of a queue that wait, and whose turn has come."""
        return iter(self._at_turn.get(leaf, ()))
