"""What queue policies see of jobs and nodes, and the order of jobs that wait.

Nodes are indexes in topological order, so that a network domain is a range of them. Devices are
whole numbers of what is counted out on a node. What a queue is charged are amounts in thousandths
(of a device, of a core), one per resource of its tree. Running jobs are also kept by expected end, and those
of level low as columns.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from unidle.fleet.queues import Migration
from unidle.jobs import Preemption
from unidle.place.protocol import STARVED_NS

Ints: TypeAlias = npt.NDArray[np.int64]
Amounts: TypeAlias = tuple[int, ...]
Asks: TypeAlias = tuple[int, int]
"""What a rank needs of its node besides devices: CPU in thousandths of cores, memory in bytes."""
NOTHING: Final[Asks] = (0, 0)
Fits: TypeAlias = Callable[[Ints], Ints | None]
"""``fits(room)``: given how many ranks each node holds, how many to put there, or None. All or none;
more room must never turn a gang that fits into one that does not."""

Mask: TypeAlias = npt.NDArray[np.bool_]
Domains: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of nodes, of which one must hold a gang whole."""

NS_PER_US: Final = 1_000


class OpLog:
    """The one way to try something and take it back: how to undo each operation, in order. Nothing is copied."""

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def record(self, undo: Callable[[], None]) -> None:
        """An operation was done, and this undoes it."""
        self._undo.append(undo)

    def checkpoint(self) -> int:
        """The present, to come back to."""
        return len(self._undo)

    def rollback(self, to: int = 0) -> None:
        """Undo what was done since the checkpoint, the last first."""
        while len(self._undo) > to:
            self._undo.pop()()

    def commit(self) -> None:
        """What was done stays; earlier checkpoints are void."""
        self._undo.clear()


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds devices. ``devices`` maps nodes to devices held there.

    ``last_saved_ns`` is its last durable checkpoint (None: none in this attempt); ``restart_ns`` is
    what it takes to be at work again after a stop. ``charged`` is what its queue is charged.
    """

    job: str
    queue: str
    level: Preemption
    started_ns: int
    devices: Mapping[int, int]
    charged: Amounts
    last_saved_ns: int | None = None
    min_runtime_ns: int = 0
    restart_ns: int = 0
    estimate_ns: int | None = None
    checkpoints: bool = False  # it saves its state and can go on elsewhere
    save_ns: int | None = None  # what it takes to save on request before a stop; None: it cannot
    ranks: int = 1
    each: int = 1  # devices per rank
    settled_ns: int = 0  # it is not moved before, as it was moved already
    asks: Asks = NOTHING
    parts: Mapping[str, int] = field(default_factory=dict)  # devices that it has parts of, each with its node
    parts_milli: int = 0  # what these parts count, in thousandths of devices
    served_us: int = 0  # device-time of earlier attempts
    user: str = ""
    expected_ns: int | None = None  # how long it runs in all, where its owner gives it
    came_ns: int = 0  # when it was first submitted

    @property
    def size(self) -> int:
        """Whole devices held."""
        return sum(self.devices.values())

    @property
    def milli(self) -> int:
        """What it holds, in thousandths of devices."""
        return 1_000 * self.size + self.parts_milli

    @property
    def firm(self) -> bool:
        """Whether it is never preempted."""
        return self.level != "low"

    def service_us(self, now_ns: int) -> int:
        """Device-time that it has had so far."""
        return self.served_us + max(now_ns - self.started_ns, 0) // NS_PER_US * self.milli // 1_000

    def expected_us(self) -> int | None:
        """Device-time that it needs in all, where its owner gives it."""
        known_ns = self.expected_ns
        return None if known_ns is None else known_ns // NS_PER_US * max(self.milli, 1) // 1_000

    def lost_us(self, now_ns: int) -> int:
        """Device-microseconds lost by stopping it now: work since the last checkpoint, and the restart.

        Where it can save on request and that is shorter, the saving counts instead of the work.
        """
        undone_ns = max(now_ns - max(self.started_ns, self.last_saved_ns or 0), 0)
        if self.save_ns is not None:
            undone_ns = min(undone_ns, self.save_ns)
        return (undone_ns + self.restart_ns) // NS_PER_US * self.milli // 1_000


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that waits: ``ranks`` of ``each`` devices on one node, all or none.

    ``alike`` identifies what else its place depends on (constraints): if one job does not fit, no other with
    the same shape and the same ``alike`` fits. A job that requests parts of devices has ``ranks`` 0. It may
    join others, and its charge depends on its place: at least ``charged``, at most ``most``.
    """

    job: str
    queue: str
    level: Preemption
    ranks: int
    each: int
    charged: Amounts
    submitted_ns: int = 0
    estimate_ns: int | None = None
    priority: int = 0
    min_runtime_ns: int = 0
    restart_ns: int = 0
    checkpoints: bool = False
    alike: str = ""
    asks: Asks = NOTHING
    most: Amounts = ()
    served_us: int = 0  # device-time of earlier attempts
    user: str = ""
    came_ns: int | None = None  # when it was first submitted, where it has waited before
    expected_ns: int | None = None  # how long it runs in all, where its owner gives it
    guess_ns: int | None = None  # the same, or what was predicted

    @property
    def size(self) -> int:
        """Devices requested."""
        return self.ranks * self.each

    @property
    def firm(self) -> bool:
        """Whether it is never preempted once it runs."""
        return self.level != "low"

    def expected_us(self) -> int | None:
        """Device-time that it needs in all, where its owner gives it."""
        return None if self.expected_ns is None else self.expected_ns // NS_PER_US * max(self.size, 1)

    def guessed_us(self) -> int | None:
        """The same, or what was predicted."""
        return None if self.guess_ns is None else self.guess_ns // NS_PER_US * max(self.size, 1)


def started(demand: Demand, devices: Mapping[int, int], now_ns: int) -> Running:
    """The demand as a job that runs from now on, with nothing saved yet."""
    return Running(
        demand.job, demand.queue, demand.level, now_ns, devices, demand.charged,
        estimate_ns=demand.estimate_ns, ranks=demand.ranks, each=demand.each,
        min_runtime_ns=demand.min_runtime_ns, restart_ns=demand.restart_ns, checkpoints=demand.checkpoints,
        asks=demand.asks, served_us=demand.served_us, user=demand.user, expected_ns=demand.expected_ns,
        came_ns=demand.submitted_ns if demand.came_ns is None else demand.came_ns,
    )  # fmt: skip


def alike(a: Demand, b: Demand) -> bool:
    """Whether two demands differ in nothing but their names, times and estimates."""
    return a == replace(
        b,
        job=a.job,
        submitted_ns=a.submitted_ns,
        estimate_ns=a.estimate_ns,
        served_us=a.served_us,
        user=a.user,
        came_ns=a.came_ns,
        expected_ns=a.expected_ns,
        guess_ns=a.guess_ns,
    )


@dataclass(frozen=True, slots=True)
class Hold:
    """Devices kept for a waiting job until ``expires_ns``, charged to its queue as if it ran."""

    job: str
    queue: str
    charged: Amounts
    firm: bool
    devices: Mapping[int, int] = field(default_factory=dict)
    expires_ns: int = 0
    each: int = 1  # devices per rank
    asks: Asks = NOTHING

    @classmethod
    def of(cls, job: Demand | Running, devices: Mapping[int, int], expires_ns: int) -> Hold:
        """These devices, kept for this job."""
        return cls(job.job, job.queue, job.charged, job.firm, devices, expires_ns, job.each, job.asks)


HOUR_NS: Final = 3_600_000_000_000
LEVEL: Final = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Backfill:
    """Each ``age_ns`` of waiting counts as one point of priority; a job that waited ``starved_ns`` comes first.

    ``heads`` is for how many jobs ``easy`` reserves, besides the first ``starved_heads`` that starve;
    ``depth`` is how many are planned in all.
    ``otherwise_ns`` is the run time of a job without an estimate.
    """

    rule: Literal["easy", "conservative"] = "easy"
    heads: int = 1
    starved_heads: int = 16
    depth: int = 200
    age_ns: int = HOUR_NS
    starved_ns: int = STARVED_NS
    otherwise_ns: int = 24 * HOUR_NS


def aged_since_ns(demand: Demand, policy: Backfill) -> int:
    """Its submission, earlier by ``age_ns`` for each point of priority."""
    return demand.submitted_ns - demand.priority * policy.age_ns


def order_key(demand: Demand, policy: Backfill) -> tuple[int, int, str]:
    """Level, then submission, by :func:`aged_since_ns`; it never changes with time."""
    return LEVEL[demand.level], aged_since_ns(demand, policy), demand.job


def in_order(demands: Iterable[Demand], now_ns: int, policy: Backfill) -> list[Demand]:
    """Starved jobs by age, then the others by :func:`order_key`."""
    starved: list[Demand] = []
    others: list[Demand] = []
    for demand in demands:
        (starved if now_ns - demand.submitted_ns >= policy.starved_ns else others).append(demand)
    starved.sort(key=lambda demand: (demand.submitted_ns, demand.job))
    others.sort(key=lambda demand: order_key(demand, policy))
    return starved + others


HOLD_NS: Final = 600_000_000_000


@dataclass(frozen=True, slots=True)
class RoundRules:
    """In each queue at most ``backfill.depth`` jobs that cannot start are passed over in a round."""

    backfill: Backfill = field(default_factory=Backfill)
    migration: Migration | None = None
    hold_ns: int = HOLD_NS


class Ends:
    """Two lists in order: ends of jobs with an estimate, and starts of the others."""

    def __init__(self, running: Iterable[Running]) -> None:
        self._ends: list[tuple[int, str, Running]] = []
        self._starts: list[tuple[int, str, Running]] = []
        for run in running:
            line, at_ns = self._place(run)
            line.append((at_ns, run.job, run))
        self._ends.sort(key=itemgetter(0, 1))
        self._starts.sort(key=itemgetter(0, 1))

    def add(self, run: Running) -> None:
        """It runs from now on."""
        line, at_ns = self._place(run)
        insort(line, (at_ns, run.job, run), key=itemgetter(0, 1))

    def remove(self, run: Running) -> None:
        """It runs no more."""
        line, at_ns = self._place(run)
        del line[bisect_left(line, (at_ns, run.job), key=itemgetter(0, 1))]

    def after(self, now_ns: int, otherwise_ns: int) -> Iterator[tuple[int, Running]]:
        """All that run, by expected end; ``otherwise_ns`` is the run time of a job without an estimate."""
        late = bisect_right(self._ends, now_ns, key=itemgetter(0))
        also_late = bisect_right(self._starts, now_ns - otherwise_ns, key=itemgetter(0))
        overdue = sorted(
            (expected_end_ns(run, now_ns, otherwise_ns), job, run)
            for line in (self._ends[:late], self._starts[:also_late])
            for _, job, run in line
        )
        in_time = ((at_ns + otherwise_ns, job, run) for at_ns, job, run in self._starts[also_late:])
        for end_ns, _, run in heapq.merge(overdue, self._ends[late:], in_time, key=itemgetter(0, 1)):
            yield end_ns, run

    def _place(self, run: Running) -> tuple[list[tuple[int, str, Running]], int]:
        if run.estimate_ns is None:
            return self._starts, run.started_ns
        return self._ends, run.started_ns + max(run.estimate_ns, 1)


def expected_end_ns(run: Running, now_ns: int, otherwise_ns: int) -> int:
    """When a running job is expected to end; ``otherwise_ns`` is the run time of one without an estimate.

    A job that outlived its estimate is expected to run for half as long again, counted from its
    start, as often as it takes (estimates have to grow by a factor, or each miss is followed by another).
    """
    total = run.estimate_ns if run.estimate_ns is not None else otherwise_ns
    total = max(total, 1)
    ran = now_ns - run.started_ns
    while total <= ran:
        total += total // 2 + 1
    return run.started_ns + total


_NEVER_NS: Final = 1 << 62


class RunningRows(NamedTuple):
    """Of J jobs in the order of their names; ``node`` and ``devices`` list what each holds, job by job."""

    jobs: list[Running]
    numbers: Ints  # (11, J): see ``_numbers``
    node: Ints
    devices: Ints

    @property
    def since_ns(self) -> Ints:
        """From when on each may be stopped."""
        return self._row(0)

    @property
    def leaf(self) -> Ints:
        return self._row(1)

    @property
    def size(self) -> Ints:
        return self._row(2)

    @property
    def each(self) -> Ints:
        return self._row(3)

    @property
    def asks(self) -> Ints:
        """CPU and memory of a rank. Shape (2, J)."""
        return self.numbers[4:6]

    @property
    def nodes(self) -> Ints:
        """On how many nodes each has whole devices."""
        return self._row(6)

    @property
    def milli(self) -> Ints:
        """What each holds, in thousandths of devices."""
        return self._row(10)

    def _row(self, k: int) -> Ints:
        row: Ints = self.numbers[k]
        return row

    def cost(self, now_ns: int) -> Ints:
        """What is lost by stopping each now: ``Running.lost_us``."""
        undone_ns = np.minimum(np.maximum(now_ns - self.numbers[7], 0), self.numbers[8])
        cost: Ints = (undone_ns + self.numbers[9]) // NS_PER_US * self.milli // 1_000
        return cost

    def where(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> RunningRows:
        """Some of them."""
        if keep.all():
            return self
        inside = np.repeat(keep, self.nodes)
        jobs = [self.jobs[k] for k in np.flatnonzero(keep).tolist()]
        return RunningRows(jobs, self.numbers[:, keep], self.node[inside], self.devices[inside])


def rows_of(runs: Iterable[Running], leaf_of: Callable[[str], int]) -> RunningRows:
    """These jobs, in the order given."""
    jobs = list(runs)
    numbers = np.array([_numbers(run, leaf_of(run.queue)) for run in jobs], np.int64).reshape(-1, 11).T
    node = np.array([n for run in jobs for n in run.devices], np.int64)
    devices = np.array([d for run in jobs for d in run.devices.values()], np.int64)
    return RunningRows(jobs, numbers, node, devices)


def _numbers(run: Running, leaf: int) -> Sequence[int]:
    return (
        run.started_ns + max(run.min_runtime_ns, 1), leaf, run.size, run.each, *run.asks, len(run.devices),
        max(run.started_ns, run.last_saved_ns or 0), _NEVER_NS if run.save_ns is None else run.save_ns, run.restart_ns,
        run.milli,
    )  # fmt: skip


class Stoppable:
    """All jobs of level low that run; changes are applied at the next look."""

    def __init__(self, runs: Iterable[Running], leaf_of: Callable[[str], int]) -> None:
        self._leaf_of = leaf_of
        low = sorted((run for run in runs if not run.firm), key=lambda run: run.job)
        self._rows = rows_of(low, leaf_of)
        self._names = [run.job for run in low]
        self._changed: dict[str, Running | None] = {}

    def next_ns(self, now_ns: int) -> int | None:
        """When the next of them may be stopped that may not be now."""
        since = self.rows().since_ns
        later = since[since > now_ns]
        return int(later.min()) if len(later) else None

    def change(self, job: str, run: Running | None) -> None:
        """The job runs so now; None: it does not run."""
        self._changed[job] = None if run is None or run.firm else run

    def rows(self) -> RunningRows:
        """Those that run now."""
        if self._changed:
            self._drop([job for job in self._changed if self._at(job) is not None])
            self._insert(sorted((run for run in self._changed.values() if run), key=lambda run: run.job))
            self._changed = {}
        return self._rows

    def _at(self, job: str) -> int | None:
        at = bisect_left(self._names, job)
        return at if at < len(self._names) and self._names[at] == job else None

    def _drop(self, jobs: list[str]) -> None:
        keep = np.ones(len(self._names), np.bool_)
        keep[[bisect_left(self._names, job) for job in jobs]] = False
        self._rows = self._rows.where(keep)
        self._names = [run.job for run in self._rows.jobs]

    def _insert(self, runs: list[Running]) -> None:
        if not runs:
            return
        old, new = self._rows, rows_of(runs, self._leaf_of)
        at = [bisect_left(self._names, run.job) for run in runs]
        first = np.concatenate(([0], np.cumsum(old.nodes)))[at]
        cells = np.repeat(first, new.nodes)
        jobs = sorted([*old.jobs, *new.jobs], key=lambda run: run.job)
        self._rows = RunningRows(
            jobs, np.insert(old.numbers, at, new.numbers, axis=1), np.insert(old.node, cells, new.node),
            np.insert(old.devices, cells, new.devices),
        )  # fmt: skip
        self._names = [run.job for run in jobs]
