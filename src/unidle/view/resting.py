"""Jobs that only wait: kept packed, with the few values of each that the queue is made of.

Most jobs of a long queue are neither read nor changed for hours. A snapshot with all of them unpacked takes a
reader most of its time, and Python's collector walks through each of their objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from unidle.jobs import JobSpec
from unidle.jobs.spec import Preemption
from unidle.view.waiting import Shape

if TYPE_CHECKING:
    from unidle.view.jobs import JobView


class Rest(NamedTuple):
    """What the queue needs of a waiting job: ``code`` is why it waits (empty: no reason was recorded yet), ``timed``
    whether its run time is known.
    """

    order: int
    priority: int
    since_ns: int
    timed: bool
    code: str
    name: str
    queue: str
    level: Preemption
    shape: Shape

    @classmethod
    def of(cls, job: JobView) -> Rest:
        spec, code = job.spec, job.verdict.code if job.verdict is not None else ""
        return cls(
            job.order, spec.priority, job.waiting_since_ns, job.run_time_ns is not None, intern(code),
            intern(spec.name), intern(spec.queue), spec.preemption, Shape.of(spec),
        )  # fmt: skip


def may_rest(job: JobView) -> bool:
    """Whether nothing but a decision about places, or a request, changes the job: it never started and has no timer."""
    spec: JobSpec = job.spec
    timer = job.not_before_ns or spec.queue_timeout_s is not None or spec.elastic is not None
    return job.state == "queued" and not job.attempts and job.cancel_by is None and not timer


class _Columns(msgspec.Struct, array_like=True):
    """Rows of :class:`Rest` by column: integers as an array's bytes, texts and shapes as places in a list of all.

    ``rows``: the event of each job's row in the store, 0 where it has none.
    """

    jobs: list[str]
    rows: bytes
    order: bytes
    priority: bytes
    since_ns: bytes
    timed: bytes
    values: list[list[Any]]
    at: list[bytes]


class _Block(NamedTuple):
    """Jobs as a snapshot has them (:class:`_Columns`, encoded), and those of them that do not rest any more."""

    jobs: int
    body: msgspec.Raw
    gone: list[str]

    @property
    def alive(self) -> int:
        return self.jobs - len(self.gone)


_TEXTS: Final = 4  # code, name, queue, level
_LITTLE: Final = array("q", [1]).tobytes()[0] == 1
_BLOCK: Final = 2_048  # jobs of a block at most
_BLOCKS: Final = 64  # beyond full ones
_ENCODER: Final = msgspec.msgpack.Encoder()


class RestingBlocks:
    """The jobs that rest as snapshots keep them. Most rest for hours: they are encoded once, in blocks."""

    __slots__ = ("_block_of", "_blocks", "_last")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._block_of: dict[str, int] = {}  # by job
        self._last = 0

    def remove(self, job: str) -> None:
        """The job does not rest any more."""
        number = self._block_of.pop(job, None)
        if number is not None:
            self._blocks[number].gone.append(job)

    def plain(self, resting: Mapping[str, Rest], rows: Mapping[str, int], seq: int) -> list[Any]:
        """As a snapshot keeps them; ``rows``: the events of their rows, ``seq`` that of a job that is not among them."""
        self._dissolve()
        new = [name for name in resting if name not in self._block_of]
        for first in range(0, len(new), _BLOCK):
            self._last += 1
            part = {name: resting[name] for name in new[first : first + _BLOCK]}
            body = _ENCODER.encode(_columns(part, [rows.get(name, seq) for name in part]))
            self._blocks[self._last] = _Block(len(part), msgspec.Raw(body), [])
            self._block_of.update(dict.fromkeys(part, self._last))
        return [[block.body, block.gone] for block in self._blocks.values()]

    def _dissolve(self) -> None:
        """Blocks of which less than half is left, and the smallest ones where there are many, are made again."""
        over = len(self._blocks) - _BLOCKS - 2 * (len(self._block_of) // _BLOCK)
        small = sorted(self._blocks, key=lambda number: self._blocks[number].alive)[: 2 * max(over, 0)]
        empty = [number for number, block in self._blocks.items() if 2 * block.alive < block.jobs]
        gone = {*small, *empty}
        for number in gone:
            del self._blocks[number]
        if gone:
            self._block_of = {job: number for job, number in self._block_of.items() if number not in gone}


def rows_of(plain: Any) -> tuple[dict[str, Rest], dict[str, int]]:
    """The jobs that rest and the events of their rows in the store, from :meth:`RestingBlocks.plain`, decoded.

    Errors: :class:`msgspec.ValidationError` for anything else.
    """
    resting: dict[str, Rest] = {}
    rows: dict[str, int] = {}
    for columns, gone in msgspec.convert(plain, list[tuple[_Columns, list[str]]]):
        there = _resting_of(columns)
        events = dict(zip(columns.jobs, _integers_of(columns.rows), strict=True))
        for job in gone:
            there.pop(job, None)
            events.pop(job, None)
        resting.update(there)
        rows.update(events if all(events.values()) else {job: seq for job, seq in events.items() if seq})
    return resting, rows


def _columns(resting: Mapping[str, Rest], events: Sequence[int]) -> _Columns:
    order, priority, since_ns, timed, *rest = zip(*resting.values(), strict=True)
    values, at = [], []
    for column in rest:
        # equal values are mostly one object; a shape's hash takes long
        few = {id(value): value for value in column}
        places = {key: place for place, key in enumerate(few)}
        values.append(list(few.values()))
        at.append(_integers(list(map(places.__getitem__, map(id, column)))))
    numbers = (_integers(events), _integers(order), _integers(priority), _integers(since_ns), bytes(timed))
    return _Columns(list(resting), *numbers, values, at)


def _resting_of(found: _Columns) -> dict[str, Rest]:
    values = [*found.values[:_TEXTS], [Shape(*shape) for shape in found.values[_TEXTS]]]
    try:
        texts = [[of[k] for k in _integers_of(places)] for of, places in zip(values, found.at, strict=True)]
        numbers = (
            _integers_of(found.order),
            _integers_of(found.priority),
            _integers_of(found.since_ns),
            map(bool, found.timed),
        )
        return dict(zip(found.jobs, map(Rest._make, zip(*numbers, *texts, strict=True)), strict=True))
    except (IndexError, TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"not rows of waiting jobs: {error}") from None


def _integers(values: Any) -> bytes:
    """As the bytes of an array, eight for each, little-endian."""
    numbers = array("q", values)
    if not _LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def _integers_of(kept: bytes) -> array[int]:
    """From :func:`integers`. Errors: ValueError."""
    numbers = array("q")
    numbers.frombytes(kept)
    if not _LITTLE:
        numbers.byteswap()
    return numbers
