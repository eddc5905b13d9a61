"""The queues of a fleet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from unidle.errors import BadInput
from unidle.files.document import BadFile, Document, Path
from unidle.files.values import NAME_LENGTH, NAME_PATTERN, NAME_SAYS
from unidle.fleet.queues import UTC, History, Migration, QueueSpec, TimeWindow, Weekly, Zone

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
    """Amounts that hold instead of the queue's own at certain hours of the week."""

    when: Annotated[
        str, Meta(max_length=100, description="Days and times.", examples=["mon-fri 08:00-18:00"])
    ]
    guarantee: Annotated[Amounts, _amounts("Guarantee in these hours.")] = {}
    deserved: Annotated[Amounts, _amounts("Deserved share in these hours.")] = {}
    limit: Annotated[Amounts, _amounts("Limit in these hours.")] = {}


class QueuePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One queue. Amounts are devices by ``gpu``, ``cpu`` or ``gpu:MODEL``."""

    name: Annotated[QueueName, Meta(description="Name; jobs give it as their queue.", examples=["nlp"])]
    parent: Annotated[QueueName | None, Meta(description="The queue that it is a part of.")] = None
    weight: Annotated[int, Meta(ge=1, le=1_000_000, description="Its part of what its siblings share.")] = 1
    kind: Annotated[
        Literal["exclusive", "pooled", "public"],
        Meta(
            description="pooled lends and borrows; exclusive does neither; public deserves nothing unless it says so, and takes what is idle."
        ),
    ] = "pooled"
    guarantee: Annotated[Amounts, _amounts("Kept for it even while it is idle.")] = {}
    deserved: Annotated[
        Amounts, _amounts("What it gets back from borrowers; without it, its part by weight.")
    ] = {}
    limit: Annotated[Amounts, _amounts("Never exceeded.")] = {}
    lend: Annotated[Amounts, _amounts("How much of what it deserves others may use; without it, all.")] = {}
    borrow: Annotated[Amounts, _amounts("How much above what it deserves it may use; without it, all.")] = {}
    reclaimable: Annotated[
        bool,
        Meta(description="Whether low jobs on borrowed devices may be stopped for those who deserve them."),
    ] = True
    windows: Annotated[
        tuple[WindowPart, ...],
        Meta(
            max_length=64,
            description="Hours with other amounts.",
            examples=[[{"when": "sat,sun", "limit": {"gpu": 64}}]],
        ),
    ] = ()


class MigrationPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When running jobs may be moved to make room for a gang that waits."""

    moves_most: Annotated[
        int, Meta(ge=1, le=1_000, description="At most so many jobs are moved at once.")
    ] = 16
    levels: Annotated[
        tuple[Annotated[Literal["low", "medium"], Meta(extra={"says": "low or medium"})], ...],
        Meta(
            min_length=1,
            max_length=2,
            description="Which jobs may be moved, by preemption level.",
            examples=[["low"]],
        ),
    ] = ("low", "medium")
    gain_least: Annotated[
        float,
        Meta(
            ge=1,
            le=1_000,
            description="How many times the device time that it loses a move has to win.",
            examples=[2],
        ),
    ] = 1.0


def migration_of(part: MigrationPart | None) -> Migration | None:
    """The rule as it is used; None where jobs are not moved."""
    if part is None:
        return None
    return Migration(part.moves_most, tuple(dict.fromkeys(part.levels)), round(part.gain_least * 1_000_000))


class HistoryPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much it counts against a queue that it used much before."""

    half_life_days: Annotated[
        float,
        Meta(ge=0.01, le=3650, description="Days after which use counts half as much.", examples=[7]),
    ] = 1.0
    weight: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The part of the compared share that is the average over the past; the rest is what the queue"
            " uses now.",
        ),
    ] = 0.5


def history_of(part: HistoryPart) -> History:
    """The part as the fleet keeps it."""
    return History(round(part.half_life_days * _DAY_NS), round(part.weight * 1_000_000))


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
            dict(part.lend), dict(part.borrow), part.reclaimable, windows,
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
