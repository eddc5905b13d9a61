"""The queues of a fleet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from unidle.errors import BadInput
from unidle.files.document import BadFile, Document, Path
from unidle.files.values import (
    NAME_LENGTH,
    NAME_PATTERN,
    NAME_SAYS,
    DurationBounds,
    DurationText,
    duration_field,
)
from unidle.fleet.queues import (
    USUAL_ORDER,
    UTC,
    Migration,
    Order,
    QueueOrder,
    QueueSpec,
    TimeWindow,
    UsageDecay,
    Weekly,
    Zone,
)

QueueName = Annotated[
    str, Meta(pattern=NAME_PATTERN, min_length=1, max_length=NAME_LENGTH, extra={"says": NAME_SAYS})
]
Amounts = dict[
    Annotated[str, Meta(max_length=300)],
    Annotated[float, Meta(ge=0, le=1e9)],
]
_FIRST_YEAR, _LAST_YEAR = 2020, 2045
_DAY_NS = 86_400_000_000_000


def _amounts(text: str) -> Meta:
    return Meta(max_length=64, description=text, examples=[{"gpu": 8}])


class WindowPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Amounts that replace those of the queue at certain times of the week."""

    when: Annotated[
        str,
        Meta(
            max_length=100, description="Days of the week and times of day.", examples=["mon-fri 08:00-18:00"]
        ),
    ]
    guarantee: Annotated[Amounts, _amounts("Guarantee at these times.")] = {}
    deserved: Annotated[Amounts, _amounts("Deserved share at these times.")] = {}
    limit: Annotated[Amounts, _amounts("Limit at these times.")] = {}


class QueuePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One queue. Amounts are numbers of devices, by ``gpu``, ``cpu`` or ``gpu:MODEL``."""

    name: Annotated[
        QueueName, Meta(description="Name of the queue, for the field queue of jobs.", examples=["nlp"])
    ]
    parent: Annotated[QueueName | None, Meta(description="Parent queue. Default: none.")] = None
    weight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Share of the queue, relative to its siblings.")
    ] = 1
    kind: Annotated[
        Literal["exclusive", "pooled", "public"],
        Meta(
            description="pooled: lends and borrows devices. exclusive: does neither. public: uses idle devices, and has a "
            "deserved share only if deserved is given."
        ),
    ] = "pooled"
    guarantee: Annotated[
        Amounts, _amounts("Devices that are reserved for the queue even while it is idle.")
    ] = {}
    deserved: Annotated[
        Amounts, _amounts("Devices that the queue can reclaim from borrowers. Default: its share by weight.")
    ] = {}
    limit: Annotated[Amounts, _amounts("Maximum number of devices. Default: unlimited.")] = {}
    lend: Annotated[
        Amounts,
        _amounts("Maximum number of its deserved devices that other queues may borrow. Default: all."),
    ] = {}
    borrow: Annotated[
        Amounts,
        _amounts(
            "Maximum number of devices that it may borrow above its deserved share. Default: unlimited."
        ),
    ] = {}
    reclaimable: Annotated[
        bool,
        Meta(
            description="Whether low jobs on borrowed devices may be stopped when the queue that deserves the devices "
            "reclaims them."
        ),
    ] = True
    windows: Annotated[
        tuple[WindowPart, ...],
        Meta(
            max_length=64,
            description="Times of the week with other amounts.",
            examples=[[{"when": "sat,sun", "limit": {"gpu": 64}}]],
        ),
    ] = ()
    order: Annotated[
        Order | None, Meta(description="Order of its jobs, as in order.by. Default: that of the fleet.")
    ] = None


class OrderPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Order of the jobs inside each queue."""

    by: Annotated[
        Order,
        Meta(
            description="attained: jobs that have had little service first. predicted: jobs with a short predicted run time "
            "first. fair: the users of the queue in turn. fifo: order of submission. With all but fifo a job of "
            "level low may be stopped for one of its queue that comes before it.",
        ),
    ] = USUAL_ORDER.by
    bound: Annotated[
        DurationText | None,
        duration_field(
            "Time by which a job may fall behind its turn, which 99 jobs in 100 keep.", USUAL_ORDER.bound_ns
        ),
    ] = None


_BOUNDS = DurationBounds(60_000_000_000, 365 * _DAY_NS, "1 m to 365 days", "12h")


def order_of(document: Document, part: OrderPart) -> QueueOrder:
    """The part as the fleet keeps it."""
    bound_ns = USUAL_ORDER.bound_ns
    if part.bound is not None:
        bound_ns = _BOUNDS.ns(document, ("order", "bound"), part.bound)
    return QueueOrder(part.by, bound_ns)


class MigrationPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions for moving running jobs to make room for a waiting gang."""

    moves_most: Annotated[
        int, Meta(ge=1, le=1_000, description="Maximum number of jobs that are moved at once.")
    ] = 16
    levels: Annotated[
        tuple[Annotated[Literal["low", "medium"], Meta(extra={"says": "low or medium"})], ...],
        Meta(
            min_length=1,
            max_length=2,
            description="Preemption levels of the jobs that may be moved.",
            examples=[["low"]],
        ),
    ] = ("low", "medium")
    gain_least: Annotated[
        float,
        Meta(
            ge=1,
            le=1_000,
            description="Minimum ratio of the device time that a move gains to the device time that it costs.",
            examples=[2],
        ),
    ] = 1.0


def migration_of(part: MigrationPart | None) -> Migration | None:
    """The rule as it is used; None where jobs are not moved."""
    if part is None:
        return None
    return Migration(part.moves_most, tuple(dict.fromkeys(part.levels)), round(part.gain_least * 1_000_000))


class HistoryPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How past use of a queue counts against it."""

    half_life_days: Annotated[
        float,
        Meta(ge=0.01, le=3650, description="Half-life of past use, in days.", examples=[7]),
    ] = 1.0
    weight: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Weight of the past average in the compared share, from 0 to 1. The rest is the current use of "
            "the queue.",
        ),
    ] = 0.5


def history_of(part: HistoryPart) -> UsageDecay:
    """The part as the fleet keeps it."""
    return UsageDecay(round(part.half_life_days * _DAY_NS), round(part.weight * 1_000_000))


def queues_of(document: Document, parts: tuple[QueuePart, ...]) -> Iterator[QueueSpec]:
    """The queues; what only all of them together can break is checked by who places (:func:`pointed`)."""
    for index, part in enumerate(parts):
        if part.kind == "exclusive" and any(part.lend.values()):
            raise document.error(
                ("queues", index, "lend"),
                "an exclusive queue does not lend",
                remedy="leave lend out, or make the queue pooled",
            )
        windows = tuple(
            TimeWindow(_weekly(document, w.when, ("queues", index, "windows", k, "when")), dict(w.guarantee),
                       dict(w.deserved), dict(w.limit))
            for k, w in enumerate(part.windows)
        )  # fmt: skip
        yield QueueSpec(
            part.name, part.parent, part.weight, part.kind, dict(part.guarantee), dict(part.deserved), dict(part.limit),
            dict(part.lend), dict(part.borrow), part.reclaimable, windows, part.order,
        )  # fmt: skip


def _weekly(document: Document, text: str, path: Path) -> Weekly:
    from unidle.fleet.queues import weekly

    try:
        return weekly(text)
    except BadInput as error:
        raise document.error(path, error.problem, value=error.value, remedy=error.remedy) from None


def zone_of(document: Document, name: str) -> Zone:
    """The time zone of this name as data: its offset from UTC and when that changes."""
    if name == UTC.name:
        return UTC
    import datetime as dt
    import zoneinfo

    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise document.error(
            ("timezone",),
            "there is no such time zone",
            value=name,
            remedy="for instance Europe/Berlin, or UTC",
        ) from None

    def offset_s(hour: int) -> int:
        moment = dt.datetime.fromtimestamp(hour * 3600, dt.UTC).astimezone(zone)
        return int((moment.utcoffset() or dt.timedelta()).total_seconds())

    first, last = (
        int(dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()) // 3600 for year in (_FIRST_YEAR, _LAST_YEAR)
    )
    changes = [(0, offset_s(first))]
    for day in range(first, last, 24):
        if offset_s(day + 24) != changes[-1][1]:
            hour = next(h for h in range(day + 1, day + 25) if offset_s(h) != changes[-1][1])
            changes.append((hour * 3600 * 1_000_000_000, offset_s(hour)))
    return Zone(name, tuple(changes))


def pointed(path: str | os.PathLike[str], error: BadInput) -> BadInput:
    """The error about a queue (``queues.NAME.FIELD...``), pointing at its line of the file."""
    from unidle.files.fleet import BOUNDS
    from unidle.files.load import load_document

    document = load_document(path, what="fleet", bounds=BOUNDS)
    if not (error.field or "").startswith("queues") or not isinstance(document.data, dict):
        return error
    names = [part.get("name") for part in document.data.get("queues", ()) if isinstance(part, dict)]
    rest = (error.field or "").removeprefix("queues.")
    index = next((k for k, name in enumerate(names) if rest == name or rest.startswith(f"{name}.")), None)
    where: Path = (
        ("queues",) if index is None else ("queues", index, *rest.removeprefix(f"{names[index]}.").split("."))
    )
    mark = document.mark(where)
    place = f"{document.source}:{mark.line}" if mark else document.source
    return BadFile(place, error.problem, field=error.field, value=error.value, remedy=error.remedy)
