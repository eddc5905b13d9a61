"""The jobs of a view by id: those that are open, and packed or in the store those that are rarely read."""

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
from operator import itemgetter
from typing import Any, Final, cast

import msgspec

from unidle.store.protocol import ViewRow
from unidle.view.jobs import JobView
from unidle.view.packed import packed, unpacked
from unidle.view.resting import Rest, RestingBlocks, may_rest, rows_of
from unidle.view.stored_rows import Shelf
from unidle.view.waiting import Shape
from unidle.view.waiting_records import WaitingRecords

ENDED_JOBS: Final = "ended job"
"""The part of the view whose rows are ended jobs."""
_FEW: Final = 64  # rows that are looked up one by one


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
        self._table.load()
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
    Jobs that a snapshot leaves out are not in memory: an ended one is not known here at all, of one that rests only the
    packed record is missing (empty). Both are looked up in the store.
    """

    __slots__ = (
        "_blocks", "_kept", "_open", "_positions", "_shapes", "_shelf", "open", "records", "resting", "shelved",
    )  # fmt: skip

    def __init__(
        self, kept: dict[str, JobView | bytes] | None = None, resting: dict[str, Rest] | None = None,
        positions: dict[str, int] | None = None, shelved: int = 0, rows: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._kept = kept if kept is not None else {}
        self.resting = resting if resting is not None else {}
        self._positions = positions if positions is not None else {}  # of ended jobs in memory
        self.shelved = shelved  # how many ended jobs are on the shelf
        self._shelf: Shelf | None = None
        self.records = WaitingRecords(rows)
        self._blocks = RestingBlocks()
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

    def unwritten(self) -> dict[str, bytes]:
        """The packed records of jobs that rest and have no row in the store yet."""
        rows = self.records.rows
        return {name: cast("bytes", self._kept[name]) for name in self.resting if name not in rows}

    def leave(self, jobs: Collection[str], seq: int) -> None:
        """The store has the records of these as rows of a snapshot up to event ``seq``: they leave memory."""
        self.records.rows.update(dict.fromkeys(jobs, seq))
        self._kept.update(dict.fromkeys(jobs, b""))

    def load(self) -> None:
        """Have the records of all jobs that rest in memory, for who reads them all."""
        missing = {name for name in self.records.rows if not self._kept[name]}
        if len(missing) > _FEW:
            self._kept.update(self.records.all(missing))

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
        record = cast("bytes", self._kept[job_id]) or self.records.get(job_id)
        job = _UNPACK.decode(unpacked(record))
        self._kept[job_id] = self._open[job_id] = job
        del self.resting[job_id]
        self._blocks.remove(job_id)
        self.records.forget(job_id)
        return job

    def rest_of(self, job_id: str) -> Rest:
        """What the queue needs of an open job. One that rests is not unpacked."""
        return self.resting.get(job_id) or Rest.of(self.open[job_id])

    def name_of(self, job_id: str) -> str:
        """The name of an open job. One that rests is not unpacked."""
        job = self._open[job_id]
        return self.resting[job_id].name if job is None else job.spec.name

    def plain(self, gone: Collection[str] = (), seq: int | None = None) -> dict[str, Any]:
        """As a snapshot keeps it that leaves out ended jobs: those on the shelf, and ``gone``, which go there with it.

        ``seq``: those that are :meth:`unwritten` also go, as rows of it; without it they stay in the snapshot.
        """
        return {
            "jobs": {n: job for n, job in self._kept.items() if n not in self.resting and n not in gone},
            "resting": self._blocks.plain(self.resting, self.records.rows, seq or 0),
            "records": self.unwritten() if seq is None else {},
            "positions": {name: position for name, position in self._positions.items() if name not in gone},
            "shelved": self.shelved + len(gone),
        }

    def forget_blocks(self) -> None:
        """A snapshot was not kept, so rows that its blocks name are not in the store."""
        self._blocks = RestingBlocks()

    @classmethod
    def of(cls, plain: dict[str, Any]) -> JobTable:
        """From :meth:`plain`. Errors: :class:`msgspec.ValidationError`, KeyError, TypeError, ValueError."""
        resting, rows = rows_of(plain["resting"])
        records = msgspec.convert(plain["records"], dict[str, bytes])
        positions = msgspec.convert(plain["positions"], dict[str, int])
        jobs = {
            name: job if type(job) is bytes else msgspec.convert(job, JobView)
            for name, job in plain["jobs"].items()
        }
        if positions.keys() != {name for name, job in jobs.items() if type(job) is bytes}:
            raise msgspec.ValidationError("an ended job has no position in a snapshot")
        if resting.keys() & jobs.keys() or resting.keys() != rows.keys() | records.keys():
            raise msgspec.ValidationError("a waiting job has no record or no row")
        order = {name: rest.order for name, rest in resting.items()} | positions
        order.update((name, job.order) for name, job in jobs.items() if isinstance(job, JobView))
        kept = {
            name: jobs[name] if name in jobs else records.get(name, b"")
            for name in sorted(order, key=order.__getitem__)
        }
        return cls(kept, resting, positions, msgspec.convert(plain["shelved"], int), rows)

    def __getitem__(self, job_id: str) -> JobView:
        if job_id in self.resting:
            return self.wake(job_id)
        job = self._kept.get(job_id) or self._shelved(job_id)
        if job is None:
            raise KeyError(job_id)
        return _UNPACK.decode(unpacked(job)) if isinstance(job, bytes) else job

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
        self.load()
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
