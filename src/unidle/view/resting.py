"""Jobs that only wait: kept packed, with the few values of each that the queue is made of.

Most jobs of a long queue are neither read nor changed for hours. A snapshot with all of them unpacked takes a
reader most of its time, and Python's collector walks through each of their objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
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
    """Rows of :class:`Rest` by column: integers as an array's bytes, texts and shapes as places in a list of all."""

    jobs: list[str]
    order: bytes
    priority: bytes
    since_ns: bytes
    timed: bytes
    values: list[list[Any]]
    at: list[bytes]


_TEXTS: Final = 4  # code, name, queue, level
_LITTLE: Final = array("q", [1]).tobytes()[0] == 1


def columns(resting: Mapping[str, Rest]) -> Any:
    """The rows as a snapshot keeps them."""
    order, priority, since_ns, timed, *rest = zip(*resting.values(), strict=True) if resting else ((),) * 9
    values, at = [], []
    for column in rest:
        few = {
            id(value): value for value in column
        }  # equal values are mostly one object; a shape's hash takes long
        places = {key: place for place, key in enumerate(few)}
        values.append(list(few.values()))
        at.append(_integers(list(map(places.__getitem__, map(id, column)))))
    integers = (_integers(order), _integers(priority), _integers(since_ns), bytes(timed))
    return _Columns(list(resting), *integers, values, at)


def rows(kept: Any) -> dict[str, Rest]:
    """The rows of :func:`columns`, as they were decoded. Errors: :class:`msgspec.ValidationError` for anything else."""
    found = msgspec.convert(kept, _Columns)
    values = [*found.values[:_TEXTS], [Shape(*shape) for shape in found.values[_TEXTS]]]
    try:
        texts = [[of[k] for k in _read(places)] for of, places in zip(values, found.at, strict=True)]
        numbers = (_read(found.order), _read(found.priority), _read(found.since_ns), map(bool, found.timed))
        return dict(zip(found.jobs, map(Rest._make, zip(*numbers, *texts, strict=True)), strict=True))
    except (IndexError, TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"not rows of waiting jobs: {error}") from None


def _integers(values: Any) -> bytes:
    numbers = array("q", values)
    if not _LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def _read(kept: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(kept)
    if not _LITTLE:
        numbers.byteswap()
    return numbers
