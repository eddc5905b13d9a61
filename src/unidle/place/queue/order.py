"""The order inside a queue, and how far a job has fallen behind its turn.

``attained``: jobs that have had little service come first, in classes of it, and in each class in the order of
submission: many jobs are short, and which is known only once it has run (Gu et al., "Tiresias", NSDI 2019).
``predicted``: the same, and in each class those first that are expected to be short. A run time that the owner gives
also counts as service, so that a long job stops no other. One that was predicted from jobs that ended only sorts: where
many jobs wait, those that end are not like those that come, and a short job that counted as long would not be tried.
``fair``: the users of the queue in turn, who holds the least first, and each user's jobs as for ``attained``.
``fifo``: the order of submission.

A job's turn has come when all jobs that came before it and have not ended fit, with it, in what its queue deserves of
the whole fleet: had no job passed it, it would run. From then on it falls behind while it waits. Where jobs are stopped
for others, the few that have had by far the most service may fall behind further, as all others wait for them: so many
that 99 jobs in 100 keep the bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from unidle.fleet.queues import Order
from unidle.place.model import Amounts
from unidle.view.jobs import JobView

_HOUR_US: Final = 3_600_000_000
CLASSES_US: Final = tuple(_HOUR_US // 2 * 8**k for k in range(4))
"""Device-time of service from which on a job is in the next class: half an hour, and each eight times the last."""
Waits: TypeAlias = tuple[tuple[int, int | None], ...]
"""Spans in which a job waited, as (since, until); the last one has no end while it waits."""
LATE: Final = -1
"""The class of a job that may fall behind no further."""


EXCUSED: Final = 0.008
"""The part of a queue's jobs, those with the most service, that may fall behind by more than the bound."""
EXCUSED_LEAST_US: Final = CLASSES_US[2]
"""Service that such a job has had at least."""
EXCUSED_FAR: Final = 5
"""So many times the bound: how far they may fall behind."""
ENDED_MOST: Final = 2_000
"""So many of a queue's jobs that ended last count."""


def service_class(order: Order, served_us: int, expected_us: int | None = None) -> int:
    """The class of a job with so much service; ``expected_us``: all that it will need, where its owner gives it."""
    if order == "fifo":
        return 0
    return bisect_right(CLASSES_US, max(served_us, expected_us or 0) if order == "predicted" else served_us)


def length_class(order: Order, expected_us: int | None) -> int:
    """Sorts jobs of a class of service by what they are expected to need, each class four times the last; 0: unknown."""
    return (expected_us or 0).bit_length() // 2 if order == "predicted" else 0


def next_class_us(order: Order, served_us: int, expected_us: int | None = None) -> int | None:
    """The service at which a job with so much of it changes its class next; None: never."""
    at = service_class(order, served_us, expected_us)
    return None if order == "fifo" or at == len(CLASSES_US) else CLASSES_US[at]


def served_us(job: JobView) -> int:
    """Device-time of the attempts that have ended."""
    ended = sum(a.ended_ns - a.placed_ns for a in job.attempts if a.ended_ns is not None)
    return ended // 1_000 * max(job.spec.devices, 1) if ended else 0


def waits_of(job: JobView) -> Waits:
    """When the job waited."""
    since_ns = (job.submitted_ns, *(a.ended_ns for a in job.attempts if a.ended_ns is not None))
    until_ns = (*(a.placed_ns for a in job.attempts), None)
    return tuple(zip(since_ns, until_ns, strict=False))


class Came(NamedTuple):
    """What the turn of a job depends on: its leaf, what sorts it among the others, its charge, how far it may fall behind."""

    leaf: int
    came_ns: int
    charged: Amounts
    limit_ns: int


@dataclass(slots=True)
class _Job:
    """One that has not ended. ``limit_ns``: how far it may fall behind before something is done about it."""

    leaf: int
    came_ns: int
    charged: Amounts
    limit_ns: int
    turn_ns: int | None = None  # when its turn came
    waits: Waits = ()
    late_ns: int | None = None  # when it has fallen behind by its limit, if it continues to wait

    def behind_ns(self, now_ns: int) -> int:
        """How long it has waited since its turn came."""
        if self.turn_ns is None:
            return 0
        return sum(
            max((now_ns if until_ns is None else until_ns) - max(since_ns, self.turn_ns), 0)
            for since_ns, until_ns in self.waits
        )

    def service_us(self, now_ns: int) -> int:
        """Device-time that it has had: it ran where it did not wait."""
        ran_ns = sum(
            since_ns - (until_ns or since_ns) for (_, until_ns), (since_ns, _) in pairwise(self.waits)
        )
        if self.waits and (until_ns := self.waits[-1][1]) is not None:
            ran_ns += max(now_ns - until_ns, 0)
        return ran_ns // 1_000 * max(self.charged, default=0) // 1_000

    def found_late_ns(self) -> int | None:
        if self.turn_ns is None or not self.waits or self.waits[-1][1] is not None:
            return None
        since_ns = max(self.waits[-1][0], self.turn_ns)
        return since_ns + self.limit_ns - self.behind_ns(since_ns)


@dataclass(slots=True)
class _LeafTurns:
    """A queue's jobs that have not ended, as they came, and the first of them whose turn has come."""

    jobs: list[tuple[int, str]] = field(default_factory=list)
    first: int = 0  # so many, of which ``used`` is the sum
    used: tuple[int, ...] = ()
    late: list[tuple[int, str]] = field(default_factory=list)  # who waits at its turn, by when it is late
    ended: deque[bool] = field(
        default_factory=lambda: deque(maxlen=ENDED_MOST)
    )  # whether they broke the bound, the last ones
    most: tuple[int, list[int]] | None = (
        None  # at a time, the service of those that are excused, the largest first
    )


class QueueTurns:
    """Whose turn has come, and how far each job has fallen behind it.

    It follows from when jobs were submitted, waited and ended, in whichever portions that becomes known. ``held`` are jobs of
    which something happened at the very moment of the last call: more may happen in it, and the order must not matter.
    """

    def __init__(self, deserved: tuple[Amounts, ...], bound_ns: int = 0) -> None:
        """``deserved``: what each queue may count on, by leaf; ``bound_ns``: how far jobs may fall behind."""
        self._deserved, self._bound_ns = deserved, bound_ns
        self._came: dict[int, _LeafTurns] = {}  # by leaf
        self._jobs: dict[str, _Job] = {}
        self.held: list[str] = []

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def follow(self, jobs: Iterable[JobView], came: Callable[[JobView], Came | None], now_ns: int) -> None:
        """What happened to these jobs, and to those that were ``held``, in order of time: who came and who ended, whose turn
        came then, and who waited.

        ``came`` is asked once for each job; jobs for which it has no answer have no turn.
        """
        events: list[tuple[int, int, int, JobView]] = []
        held: dict[str, None] = {}
        for job in jobs:
            if job.id in self._jobs:
                self.waited(job.id, waits_of(job))
            else:
                events.append((job.submitted_ns, 0, job.order, job))
            if job.terminal:
                events.append((job.ended_ns or 0, 1, job.order, job))
        for at_ns, ends, _, job in sorted(events, key=lambda event: event[:3]):
            if at_ns >= now_ns:
                held[job.id] = None
                continue
            if ends:
                leaf = self.end(job.id, at_ns)
            elif (new := came(job)) is not None:
                leaf = new.leaf
                self.see(job.id, *new, at_ns=at_ns)
                self.waited(job.id, waits_of(job))
            else:
                continue
            if leaf is not None:
                self.come(leaf, at_ns)
        self.held = list(held)

    def see(
        self, job: str, leaf: int, came_ns: int, charged: Amounts, limit_ns: int, *, at_ns: int | None = None
    ) -> None:
        """The job was submitted at ``at_ns``; ``came_ns`` sorts it among the others."""
        known = self._jobs[job] = _Job(leaf, came_ns, charged, limit_ns)
        came = self._came.setdefault(leaf, _LeafTurns(used=(0,) * len(charged)))
        at = bisect_left(came.jobs, (came_ns, job))
        came.jobs.insert(at, (came_ns, job))
        if at < came.first:  # of higher priority than one whose turn has come
            came.first += 1
            came.used = tuple(u + c for u, c in zip(came.used, charged, strict=True))
            known.turn_ns = at_ns

    def end(self, job: str, at_ns: int) -> int | None:
        """The job has ended; the answer is its leaf, None where it was not seen."""
        known = self._jobs.get(job)
        if known is None:
            return None
        came = self._came[known.leaf]
        came.ended.append(known.behind_ns(at_ns) > self._bound_ns)
        self.waited(job, ())
        del self._jobs[job]
        at = bisect_left(came.jobs, (known.came_ns, job))
        del came.jobs[at]
        if at < came.first:
            came.first -= 1
            came.used = tuple(u - c for u, c in zip(came.used, known.charged, strict=True))
        return known.leaf

    def waited(self, job: str, waits: Waits) -> None:
        """When the job has waited, and waits if it does."""
        known = self._jobs[job]
        late, before = self._came[known.leaf].late, known.late_ns
        self._came[known.leaf].most = None
        known.waits = waits
        known.late_ns = known.found_late_ns()
        if known.late_ns == before:
            return
        if before is not None:
            del late[bisect_left(late, (before, job))]
        if known.late_ns is not None:
            insort(late, (known.late_ns, job))

    def come(self, leaf: int, at_ns: int) -> None:
        """Find whose turn comes at that time."""
        came, deserved = self._came.get(leaf), self._deserved[leaf]
        while came is not None and came.first < len(came.jobs):
            job = came.jobs[came.first][1]
            known = self._jobs[job]
            used = tuple(u + c for u, c in zip(came.used, known.charged, strict=True))
            if came.first and any(u > d for u, d in zip(used, deserved, strict=True)):
                return
            came.first, came.used = came.first + 1, used
            if known.turn_ns is None:
                known.turn_ns = at_ns
                self.waited(job, known.waits)

    def behind_ns(self, job: str, now_ns: int) -> int:
        """How long the job has waited since its turn came."""
        known = self._jobs.get(job)
        return 0 if known is None else known.behind_ns(now_ns)

    def is_late(self, job: str, now_ns: int) -> bool:
        """Whether the job, which waits or runs, may fall behind no further."""
        known = self._jobs.get(job)
        if known is None or known.turn_ns is None:
            return False
        runs, late_ns = known.late_ns is None, known.late_ns or 0
        late = known.behind_ns(now_ns) >= known.limit_ns if runs else late_ns <= now_ns
        return late and not self._excused(known, now_ns)

    def late(self, leaf: int, now_ns: int) -> Iterator[str]:
        """Jobs of a queue that wait and are late, the latest first."""
        for job in self._at_limit(leaf, now_ns):
            if not self._excused(self._jobs[job], now_ns):
                yield job

    def next_late_ns(self, leaf: int, now_ns: int) -> int | None:
        """When the next job of a queue is late, if it continues to wait."""
        came = self._came.get(leaf)
        if came is None:
            return (
                now_ns + self._bound_ns // 2 if self.held else None
            )  # before which no turn that comes now is late
        at = bisect_left(came.late, (now_ns + 1, ""))
        times = [late_ns for late_ns, _ in came.late[at : at + 1]]
        times += [now_ns + self._bound_ns // 2] if self.held else []
        times += [
            now_ns + EXCUSED_FAR * self._bound_ns - known.behind_ns(now_ns)
            for job in self._at_limit(leaf, now_ns)
            if self._excused(known := self._jobs[job], now_ns)
        ]
        return min(times, default=None)

    def _at_limit(self, leaf: int, now_ns: int) -> list[str]:
        came = self._came.get(leaf)
        return (
            [] if came is None else [job for _, job in came.late[: bisect_left(came.late, (now_ns + 1, ""))]]
        )

    def _excused(self, known: _Job, now_ns: int) -> bool:
        """Whether a job that is late may fall behind further, as it is one of the few with the most service."""
        if known.limit_ns >= self._bound_ns or known.behind_ns(now_ns) >= EXCUSED_FAR * self._bound_ns:
            return False
        service_us = known.service_us(now_ns)
        if service_us < EXCUSED_LEAST_US:
            return False
        came = self._came[known.leaf]
        if came.most is None or came.most[0] != now_ns:
            few = int(EXCUSED * (len(came.ended) + len(came.jobs))) - sum(came.ended)
            jobs = (self._jobs[job] for _, job in came.jobs[: came.first])
            late = (job.service_us(now_ns) for job in jobs if job.behind_ns(now_ns) >= job.limit_ns)
            came.most = now_ns, nlargest(few, [us for us in late if us >= EXCUSED_LEAST_US])
        return bool(came.most[1]) and service_us >= came.most[1][-1]
