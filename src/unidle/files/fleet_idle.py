"""The ``idle`` section of a fleet file: the policy for jobs that hold idle devices."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.fleet_queues import QueueName, QueuePart
from unidle.files.values import DurationBounds, DurationText, duration_field
from unidle.fleet.policies import IdlePolicy, IdleTerms

_TIMES: Final = DurationBounds(1_000_000_000, 365 * 86_400 * 1_000_000_000, "1 s to 365 days", "30m")
_TIME_FIELDS: Final = ("after", "start", "notice")
_USUAL: Final = IdleTerms()


After = Annotated[
    DurationText | None, duration_field("Time without work after which a job gets a notice.", _USUAL.after_ns)
]
Start = Annotated[
    DurationText | None,
    duration_field(
        "Time after which a job that has not worked yet gets a notice. Default: twice `after`.", example="1h"
    ),
]
Notice = Annotated[
    DurationText | None,
    duration_field("Time from the notice to the release of the devices.", _USUAL.notice_ns),
]
Release = Annotated[
    bool | None,
    Meta(description="Whether the devices are released after the notice. Default: only the notice is sent."),
]
ThenWhat = Annotated[
    Literal["end", "requeue"] | None,
    Meta(description="end: a released job ends. requeue: it waits again. Default: end."),
]


class IdleTermsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Policy of one queue and the queues below it. Fields that are not given are as for the fleet."""

    after: After = None
    start: Start = None
    notice: Notice = None
    release: Release = None
    then: ThenWhat = None


class IdlePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Policy for jobs that hold idle devices."""

    after: After = None
    start: Start = None
    notice: Notice = None
    release: Release = None
    then: ThenWhat = None
    busy_percent: Annotated[
        float,
        Meta(
            ge=0.1,
            le=100,
            description="Minimum utilization that counts as work, in percent of one CPU core or of a GPU's time.",
        ),
    ] = 5.0
    exempt: Annotated[
        tuple[QueueName, ...],
        Meta(max_length=10_000, description="Queues that are exempt.", examples=[["interactive"]]),
    ] = ()
    idle_ok: Annotated[
        tuple[QueueName, ...],
        Meta(
            max_length=10_000,
            description="Queues in which jobs with `idle_ok: true` are exempt.",
            examples=[["notebooks"]],
        ),
    ] = ()
    queues: Annotated[
        dict[QueueName, IdleTermsPart],
        Meta(
            max_length=10_000,
            description="Policies of single queues.",
            examples=[{"night": {"after": "2h", "release": True}}],
        ),
    ] = {}


def idle_of(document: Document, part: IdlePart, queues: tuple[QueuePart, ...]) -> IdlePolicy:
    """The policy; queues that it names must exist where the file declares any."""
    known = {queue.name for queue in queues}
    named: list[tuple[str, Path]] = [
        (name, ("idle", field, k))
        for field in ("exempt", "idle_ok")
        for k, name in enumerate(getattr(part, field))
    ]
    named += [(name, ("idle", "queues", name)) for name in part.queues]
    for name, path in named:
        if known and name not in known:
            raise document.error(
                path, "there is no such queue", value=name, remedy=f"for instance {min(known)}; or declare it"
            )
    for name in part.queues:
        if name in part.exempt:
            raise document.error(
                ("idle", "queues", name), "is exempt, so that its terms would never count", value=name,
                remedy="remove it from one",
            )  # fmt: skip
    terms = _terms(document, part, _USUAL, ("idle",))
    own = {
        name: _terms(document, given, terms, ("idle", "queues", name)) for name, given in part.queues.items()
    }
    return IdlePolicy(terms, round(part.busy_percent * 10_000), part.exempt, part.idle_ok, own)


def _terms(document: Document, part: IdlePart | IdleTermsPart, base: IdleTerms, path: Path) -> IdleTerms:
    """``base`` with what ``part`` gives."""
    times = {"after": base.after_ns, "start": base.start_ns, "notice": base.notice_ns}
    for field in _TIME_FIELDS:
        text: str | None = getattr(part, field)
        if text is not None:
            times[field] = _TIMES.ns(document, (*path, field), text)
    if part.after is not None and part.start is None:
        times["start"] = 2 * times["after"]
    release = base.release if part.release is None else part.release
    return IdleTerms(times["after"], times["start"], times["notice"], release, part.then or base.then)
