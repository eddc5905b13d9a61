"""Jobs and their attempts, according to the log."""

from __future__ import annotations

from collections.abc import (
    Collection,
    Container,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from heapq import merge
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, cast

import msgspec

from unidle.events.types import Outcome, StacksTaken, StopAsked
from unidle.jobs import TERMINAL, JobSpec, JobState, RankPlace, Reason
from unidle.store.protocol import ViewRow
from unidle.view.checkpoints import BadCheckpoint
from unidle.view.packed import packed, unpacked
from unidle.view.ranks import RankView
from unidle.view.records import IdleNotice, Prediction, UseView, VerdictView
from unidle.view.resting import Rest, columns, may_rest
from unidle.view.shelf import Shelf
from unidle.view.waiting import Shape

ENDED_JOBS: Final = "ended job"
"""The part of the view whose rows are ended jobs."""
_TRUSTED: Final = 2  # a predicted run time counts where it is at most so many times as long


class AttemptView(msgspec.Struct, array_like=True):
    number: int
    placed_ns: int
    places: tuple[RankPlace, ...]
    because: Reason
    ranks: list[RankView]
    stop: StopAsked | None = None
    stop_ns: int | None = None
    ended_ns: int | None = None
    outcome: Outcome | None = None
    why: Reason | None = None
    then: Reason | None = None  # why another attempt follows
    use: UseView = UseView()
    notices: list[IdleNotice] = []
    verdicts: list[VerdictView] = []
    bad: list[BadCheckpoint] = []  # checkpoints that it could not go on from
    checked_ns: int | None = None  # when its nodes had been checked before it starts
    stacks: StacksTaken | None = None  # where its ranks stood when it was last found to hang
    stacks_ns: int | None = None

    @property
    def verdict(self) -> VerdictView | None:
        """What is wrong with it now, as far as that is known: the latest that is not over."""
        return next((verdict for verdict in reversed(self.verdicts) if verdict.over_ns is None), None)

    @property
    def live(self) -> bool:
        return self.ended_ns is None

    @property
    def notice(self) -> IdleNotice | None:
        """The notice to an idle holder that stands."""
        return self.notices[-1] if self.notices and self.notices[-1].over_ns is None else None

    @property
    def all_spawned(self) -> bool:
        # mostly the last one says no: a generator would take longer
        for rank in reversed(self.ranks):  # noqa: SIM110
            if rank.spawn_ns is None:
                return False
        return True

    @property
    def all_ended(self) -> bool:
        for rank in reversed(self.ranks):  # noqa: SIM110
            if rank.end_ns is None:
                return False
        return True

    @property
    def left_places(self) -> bool:
        """Whether its places may be free still: it failed, was moved, or the service was stopped."""
        stop = self.stop
        return self.outcome == "failed" or (
            stop is not None and stop.why in ("service_stopped", "moved", "node_sick")
        )

    @property
    def culprit(self) -> int | None:
        """The rank that the log names as the one that failed first; None where it names none."""
        named = self.why.figures.get("rank") if self.why is not None and self.outcome == "failed" else None
        if isinstance(named, int) and 0 <= named < len(self.ranks):
            return named
        return self.stop.culprit if self.stop is not None else None

    @property
    def failure_kind(self) -> str:
        """The kind of failure that ended it, by the log (``unidle.jobs.FailureKind``); empty where none did."""
        if self.stop is not None and self.stop.why == "node_sick":
            return "machine"
        if self.why is None or self.outcome != "failed":
            return ""
        return str(self.why.figures.get("kind", "unknown" if self.why.code == "rank_failed" else ""))

    @property
    def begun_ns(self) -> int | None:
        """When it began its first step (reported, else when that was complete); None before that was seen."""
        told = next((r for r in self.ranks if r.ready_ns is not None or r.step_ns), None)
        if told is None:
            return None
        return told.ready_ns if told.ready_ns is not None else told.step_ns[0]

    @property
    def saved_ns(self) -> int | None:
        """When it last saved its state; None before it did."""
        return max((r.saves[-1][0] for r in self.ranks if r.saves), default=None)

    @property
    def watched_ns(self) -> int | None:
        """When a step of any rank was first seen from outside; None before that."""
        return min((r.watched_ns for r in self.ranks if r.watched_ns is not None), default=None)

    def last_step(self) -> int | None:
        """The highest step that any rank reported."""
        return max([r.step_n[-1] for r in self.ranks if r.step_n], default=None)

    def overdue_ns(self, now_ns: int) -> int:
        """How long no step came, in ns, if that is more than 5 s and 4 times the longest of the latest gaps; else 0."""
        times = max((r.step_ns for r in self.ranks if r.step_ns), key=lambda ns: ns[-1], default=None)
        if times is None:
            return 0
        waited_ns = now_ns - times[-1]
        usual_ns = max((b - a for a, b in pairwise(times[-20:])), default=0)
        return waited_ns if waited_ns > max(5_000_000_000, 4 * usual_ns) else 0

    @property
    def restored_step(self) -> int | None:
        """The step after which it resumed, if the script reported it."""
        return next((r.restored for r in self.ranks if r.restored is not None), None)

    def first_step(self) -> int | None:
        return min((r.step_n[0] for r in self.ranks if r.step_n), default=None)


class JobView(msgspec.Struct, array_like=True):
    id: str
    spec: JobSpec
    order: int  # position in the order of submission
    submitted_ns: int
    state: JobState = "queued"
    attempts: list[AttemptView] = []
    waiting_since_ns: int = 0
    not_before_ns: int = 0
    verdict: Reason | None = None  # why it waits
    retry: Reason | None = None
    retries: int = 0
    policy_uses: dict[int, int] = {}  # of restart policies, by their place in the list
    resized: Reason | None = None  # why it has as many ranks as it has
    cancel_by: str | None = None
    ended_ns: int | None = None
    because: Reason | None = None
    predictions: list[Prediction] = []
    submitted_by: str = ""  # whose job it is, is ``spec.user``
    made_room: list[tuple[int, str]] = []  # jobs that were stopped or moved for it, each with when

    @property
    def live(self) -> AttemptView | None:
        """The attempt that holds slices now, if any."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].live else None

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def shape(self) -> Shape:
        return Shape.of(self.spec)

    def steps(self) -> int:
        """The highest step that any attempt reported; 0 where none was seen."""
        return max([s for a in self.attempts if (s := a.last_step()) is not None], default=0)

    @property
    def run_time_ns(self) -> int | None:
        """How long an attempt runs: the job's estimate, else what was predicted with confidence; None if neither.

        A prediction whose bounds are wide would keep room for jobs at times at which it is not needed.
        """
        if self.spec.estimate_s is not None:
            return int(self.spec.estimate_s * 1_000_000_000)
        said = next((said for said in reversed(self.predictions) if said.what == "run_time"), None)
        if said is None or said.high_ns > _TRUSTED * said.value_ns:
            return None
        return said.value_ns

    def devices_of(self, attempt: AttemptView) -> int:
        """Devices of an attempt: an elastic job's differ in size."""
        return len(attempt.places) * self.spec.devices_per_rank

    def run_ns(self, now_ns: int) -> int:
        """Time under attempts so far."""
        return sum((a.ended_ns if a.ended_ns is not None else now_ns) - a.placed_ns for a in self.attempts)


def in_full(job: JobView) -> str:
    """The job with whose it is: ``job big-1 of user ann (queue nlp, priority 0)``."""
    spec = job.spec
    return f"job {job.id} of user {spec.user or 'unknown'} (queue {spec.queue}, priority {spec.priority})"


class OpenJobs(Mapping[str, JobView]):
    """Jobs that have not ended, in the order of submission. One that rests is unpacked when it is looked up."""

    __slots__ = ("_jobs", "_table")

    def __init__(self, table: JobTable, jobs: dict[str, JobView | None]) -> None:
        self._table, self._jobs = table, jobs

    def __getitem__(self, job_id: str) -> JobView:
        return self._jobs[job_id] or self._table.wake(job_id)

    def get(self, job_id: str, default: Any = None) -> Any:  # the fold calls it for each event
        if job_id not in self._jobs:
            return default
        return self._jobs[job_id] or self._table.wake(job_id)

    def values(self) -> ValuesView[JobView]:
        """All of them, unpacked. :meth:`awake` is enough for jobs that ever started, and cheap."""
        for job_id in list(self._table.resting):
            self._table.wake(job_id)
        return cast("ValuesView[JobView]", self._jobs.values())

    def items(self) -> ItemsView[str, JobView]:
        self.values()
        return cast("ItemsView[str, JobView]", self._jobs.items())

    def awake(self) -> Iterator[JobView]:
        """Those that do not rest: all that ever started are among them."""
        return (job for job in self._jobs.values() if job is not None)

    def keys(self) -> KeysView[str]:
        return self._jobs.keys()

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


class JobTable(Mapping[str, JobView]):
    """Jobs in the order of submission. One that has ended, or rests, is kept packed.

    An ended job is unpacked at each look; one that rests (:mod:`unidle.view.resting`) is awake from the first look on.
    Ended jobs that a snapshot leaves out are not in memory: they are looked up on the ``shelf``.
    """

    __slots__ = ("_kept", "_open", "_positions", "_shapes", "_shelf", "open", "resting", "shelved")

    def __init__(
        self, kept: dict[str, JobView | bytes] | None = None, resting: dict[str, Rest] | None = None,
        positions: dict[str, int] | None = None, shelved: int = 0,
    ) -> None:  # fmt: skip
        self._kept = kept if kept is not None else {}
        self.resting = resting if resting is not None else {}
        self._positions = positions if positions is not None else {}  # of ended jobs in memory
        self.shelved = shelved  # how many ended jobs are on the shelf
        self._shelf: Shelf | None = None
        self._open: dict[str, JobView | None] = {}
        self._shapes: dict[Shape, Shape] = {}  # one object for all that are equal
        for id_, job in self._kept.items():
            if not isinstance(job, bytes):
                self._open[id_] = job
            elif id_ in self.resting:
                self._open[id_] = None
        self.open = OpenJobs(self, self._open)

    def add(self, job: JobView) -> None:
        self._kept[job.id] = self._open[job.id] = job

    def put_away(self, job: JobView) -> None:
        """The job has ended and is kept packed."""
        self._kept[job.id] = packed(_PACK.encode(job))
        self._positions[job.id] = job.order
        self._open.pop(job.id, None)

    def ended(self, without: Container[str]) -> list[ViewRow]:
        """Ended jobs that are in memory, but for those that are named."""
        return [
            ViewRow(ENDED_JOBS, name, position, cast("bytes", self._kept[name]))
            for name, position in self._positions.items()
            if name not in without
        ]

    def shelve(self, shelf: Shelf, gone: Iterable[str] = ()) -> None:
        """The ended jobs that the shelf has are looked up there; ``gone`` leave memory for it."""
        self._shelf = shelf
        for name in gone:
            del self._kept[name], self._positions[name]
            self.shelved += 1

    def rest(self, job_id: str) -> None:
        """Keep the job packed until it is read, if it only waits. Who has it already must not change it."""
        job = self._open.get(job_id)
        if job is not None and may_rest(job):
            self._kept[job_id] = packed(_PACK.encode(job))
            self._open[job_id] = None
            row = Rest.of(job)
            self.resting[job_id] = row._replace(shape=self._shapes.setdefault(row.shape, row.shape))

    def wake(self, job_id: str) -> JobView:
        """The job that rests, unpacked; it stays so."""
        job = _UNPACK.decode(unpacked(cast("bytes", self._kept[job_id])))
        self._kept[job_id] = self._open[job_id] = job
        del self.resting[job_id]
        return job

    def rest_of(self, job_id: str) -> Rest:
        """What the queue needs of an open job. One that rests is not unpacked."""
        return self.resting.get(job_id) or Rest.of(self.open[job_id])

    def name_of(self, job_id: str) -> str:
        """The name of an open job. One that rests is not unpacked."""
        job = self._open[job_id]
        return self.resting[job_id].name if job is None else job.spec.name

    def plain(self, gone: Collection[str] = ()) -> dict[str, Any]:
        """As a snapshot keeps it that leaves out ended jobs: those on the shelf, and ``gone``, which go there with it."""
        kept, positions = self._kept, self._positions
        if gone:
            kept = {name: job for name, job in kept.items() if name not in gone}
            positions = {name: position for name, position in positions.items() if name not in gone}
        return {
            "jobs": kept, "resting": columns(self.resting), "positions": positions, "shelved": self.shelved + len(gone),
        }  # fmt: skip

    def __getitem__(self, job_id: str) -> JobView:
        job = self._kept.get(job_id) or self._shelved(job_id)
        if job is None:
            raise KeyError(job_id)
        if not isinstance(job, bytes):
            return job
        return self.wake(job_id) if job_id in self.resting else _UNPACK.decode(unpacked(job))

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._kept or (isinstance(job_id, str) and self._shelved(job_id) is not None)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all()) if self.shelved else iter(self._kept)

    def __reversed__(self) -> Iterator[str]:
        return (name for name, _ in self._all(backwards=True)) if self.shelved else reversed(self._kept)

    def __len__(self) -> int:
        return len(self._kept) + self.shelved

    def values(self) -> ValuesView[JobView]:
        """All jobs, each unpacked as it comes."""
        return _Jobs(self)

    def unpacked(self) -> Iterator[JobView]:
        """The same, once."""
        for name, body in self._all():
            yield self[name] if body is None else _UNPACK.decode(unpacked(body))

    def _all(self, *, backwards: bool = False) -> Iterator[tuple[str, bytes | None]]:
        """All jobs by id, those on the shelf with what is there."""
        names = list(reversed(self._kept) if backwards else self._kept)
        if self._shelf is None or not self.shelved:
            yield from ((name, None) for name in names)
            return
        there = ((row.position, row.key, row.body) for row in self._shelf.all(backwards=backwards))
        here = ((self._position(name), name, None) for name in names)
        for _, name, body in merge(there, here, key=_POSITION, reverse=backwards):
            yield name, body

    def _shelved(self, job_id: str) -> bytes | None:
        return self._shelf.get(job_id) if self._shelf is not None and self.shelved else None

    def _position(self, name: str) -> int:
        position = self._positions.get(name)
        if position is None:
            job = self._open[name]
            position = self.resting[name].order if job is None else job.order
        return position


class _Jobs(ValuesView[JobView]):
    """The values of a table: those on the shelf are read in the order of their rows."""

    _mapping: JobTable

    def __iter__(self) -> Iterator[JobView]:
        return self._mapping.unpacked()


_POSITION: Final = itemgetter(0)
_PACK: Final = msgspec.msgpack.Encoder()
_UNPACK: Final = msgspec.msgpack.Decoder(JobView)
