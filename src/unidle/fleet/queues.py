"""Queues as they are declared and checked: names, parents, weights, amounts, and time windows with other amounts."""

from __future__ import annotations

import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from unidle.errors import BadInput

Kind = Literal["exclusive", "pooled", "public"]
Order = Literal["attained", "predicted", "fair", "fifo"]
Given = Mapping[str, float]
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
MINUTE_NS: Final = 60_000_000_000
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME: Final = r"([01][0-9]|2[0-4]):([0-5][0-9])"
_REMEDY: Final = "write days, then times where not the whole day: mon-fri 08:00-18:00, or sat,sun"


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone: local time is UTC plus ``changes[k][1]`` seconds from ``changes[k][0]`` (UTC, ns) on.

    ``changes`` are in order of time; the first offset holds before it, too.
    """

    name: str = "UTC"
    changes: tuple[tuple[int, int], ...] = ((0, 0),)

    def offset_ns(self, now_ns: int) -> int:
        """What local time is ahead of UTC."""
        at = bisect_right(self.changes, now_ns, key=lambda change: change[0]) - 1
        return self.changes[max(at, 0)][1] * 1_000_000_000

    def next_change_ns(self, now_ns: int) -> int | None:
        """When the offset changes next; None where it is known to stay."""
        at = bisect_right(self.changes, now_ns, key=lambda change: change[0])
        return self.changes[at][0] if at < len(self.changes) else None


UTC: Final = Zone()


@dataclass(frozen=True, slots=True)
class UsageDecay:
    """Weight of past use in the comparison of queues; its half-life is ``half_life_ns``.

    ``weight_ppm`` of the share that is compared is its average over the past.
    """

    half_life_ns: int = 86_400_000_000_000
    weight_ppm: int = 500_000


DAILY: Final = UsageDecay()


@dataclass(frozen=True, slots=True)
class Weekly:
    """Spans of a week's local time, ``[start, end)`` in minutes from Monday 00:00; none crosses Sunday's end."""

    spans: tuple[tuple[int, int], ...]
    text: str = field(default="", compare=False)  # as it was written

    def holds(self, minute: int) -> bool:
        """Whether this minute of the week is inside."""
        return any(start <= minute < end for start, end in self.spans)

    def edges(self) -> set[int]:
        """The minutes of the week at which it may begin or end to hold."""
        return {edge % WEEK_MINUTES for span in self.spans for edge in span}


_EPOCH_MINUTES: Final = 3 * DAY_MINUTES  # the epoch was a Thursday, and weeks begin on Monday


def minute_of_week(now_ns: int, zone: Zone) -> int:
    """Local minutes since Monday 00:00."""
    return ((now_ns + zone.offset_ns(now_ns)) // MINUTE_NS + _EPOCH_MINUTES) % WEEK_MINUTES


def next_edge_ns(now_ns: int, zone: Zone, windows: Iterable[Weekly]) -> int | None:
    """The next time (UTC) at which one of the windows may open or close; None without windows.

    Where the zone's offset changes before, it is that time: one has to look again then.
    """
    edges = {edge for window in windows for edge in window.edges()}
    if not edges:
        return None
    minute = minute_of_week(now_ns, zone)
    wait = min((edge - minute - 1) % WEEK_MINUTES + 1 for edge in edges)
    into_minute = (now_ns + zone.offset_ns(now_ns)) % MINUTE_NS
    at_ns = now_ns - into_minute + wait * MINUTE_NS
    change_ns = zone.next_change_ns(now_ns)
    return at_ns if change_ns is None else min(at_ns, change_ns)


def weekly(text: str, field: str = "when") -> Weekly:
    """``mon-fri 08:00-18:00`` as spans; a time range may run over midnight. :class:`BadInput` if it is none."""
    found = re.fullmatch(rf"([a-z]{{3}}(?:[-,][a-z]{{3}})*)(?: {_TIME}-{_TIME})?", text.strip().casefold())
    if found is None:
        raise BadInput("not a weekly window", field=field, value=text, remedy=_REMEDY)
    days = _days(found[1], text, field)
    start, end = 0, DAY_MINUTES
    if found[2] is not None:
        start, end = int(found[2]) * 60 + int(found[3]), int(found[4]) * 60 + int(found[5])
    if start >= DAY_MINUTES or end > DAY_MINUTES or start == end:
        remedy = "times go from 00:00 to 24:00, and begin and end differ"
        raise BadInput("not a range of times", field=field, value=text, remedy=remedy)
    length = end - start if end > start else end - start + DAY_MINUTES
    spans: list[tuple[int, int]] = []
    for day in sorted(days):
        begin = day * DAY_MINUTES + start
        spans.append((begin, min(begin + length, WEEK_MINUTES)))
        if begin + length > WEEK_MINUTES:
            spans.append((0, begin + length - WEEK_MINUTES))
    return Weekly(tuple(sorted(spans)), text)


def _days(words: str, text: str, field: str) -> set[int]:
    days: set[int] = set()
    for part in words.split(","):
        ends = part.split("-")
        unknown = next((word for word in ends if word not in DAYS), None)
        if unknown is not None or len(ends) > 2:
            raise BadInput("not a day of the week", field=field, value=unknown or text, remedy=_REMEDY)
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days |= {(first + k) % 7 for k in range((last - first) % 7 + 1)}
    return days


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Inside ``when`` these amounts replace the queue's own, resource by resource."""

    when: Weekly
    guarantee: dict[str, float] = field(default_factory=dict)
    deserved: dict[str, float] = field(default_factory=dict)
    limit: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Migration:
    """Running jobs may be moved to make room for a gang that waits.

    At most ``moves_most`` of these levels at once, those that can checkpoint, where what is won is at
    least ``gain_least_ppm`` millionths of what is lost.
    """

    moves_most: int = 16
    levels: tuple[Literal["low", "medium"], ...] = ("low", "medium")
    gain_least_ppm: int = 1_000_000


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The order inside each queue that has none of its own (see ``place.queue.order``).

    99 jobs in 100 fall behind their turn by at most ``bound_ns``.
    """

    by: Order = "fifo"
    bound_ns: int = 12 * 3_600_000_000_000


USUAL_ORDER: Final = QueueOrder()


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue. Amounts are in devices (``gpu`` or ``gpu:MODEL``) and cores (``cpu``), by resource.

    ``guarantee`` is kept for the queue even while it is idle. ``deserved`` is what it can reclaim from borrowers;
    where it is not given, the queue deserves its part, by ``weight``, of what its siblings leave of what the
    parent deserves. ``limit`` is never exceeded. ``lend`` and ``borrow`` bound how much of what it deserves
    others may use, and how much above it the queue may use. What an ``exclusive`` queue deserves is for it alone,
    and it borrows nothing; a ``public`` queue deserves nothing unless given, and never takes back by stopping
    others. Where ``reclaimable`` is false, what it borrowed comes back only when its jobs end. ``order`` is that of its
    jobs; None: that of the fleet.
    """

    name: str
    parent: str | None = None
    weight: int = 1
    kind: Kind = "pooled"
    guarantee: dict[str, float] = field(default_factory=dict)
    deserved: dict[str, float] = field(default_factory=dict)
    limit: dict[str, float] = field(default_factory=dict)
    lend: dict[str, float] = field(default_factory=dict)
    borrow: dict[str, float] = field(default_factory=dict)
    reclaimable: bool = True
    windows: tuple[TimeWindow, ...] = ()
    order: Order | None = None


KINDS: Final = get_args(Kind)
AMOUNTS: Final = ("guarantee", "deserved", "limit", "lend", "borrow")
WEIGHT_MOST: Final = 1_000_000
AMOUNT_MOST: Final = 10**9
DEPTH_MOST: Final = 16


def check(specs: Sequence[QueueSpec], resources: Sequence[str]) -> list[QueueSpec]:
    """The queues with parents before children, else as given. :class:`BadInput` for the first mistake."""
    by_name: dict[str, QueueSpec] = {}
    for spec in specs:
        if not spec.name:
            raise BadInput("a queue has no name", field="queues", remedy="give each queue a name")
        if spec.name in by_name:
            raise BadInput(
                "two queues have this name", field="queues", value=spec.name, remedy="rename one of them"
            )
        by_name[spec.name] = spec
    for spec in specs:
        _check_one(spec, by_name, resources)
    return _parents_first(specs, by_name)


def _check_one(spec: QueueSpec, by_name: Mapping[str, QueueSpec], resources: Sequence[str]) -> None:
    at = f"queues.{spec.name}"
    if spec.parent is not None and spec.parent not in by_name:
        near = difflib.get_close_matches(spec.parent, by_name, n=1)
        remedy = f"the closest known queue is {near[0]}" if near else "declare it, or leave the parent out"
        raise BadInput("no such queue", field=f"{at}.parent", value=spec.parent, remedy=remedy)
    if (
        isinstance(spec.weight, bool)
        or not isinstance(spec.weight, int)
        or not 1 <= spec.weight <= WEIGHT_MOST
    ):
        remedy = f"a whole number from 1 to {WEIGHT_MOST:,}"
        raise BadInput("not a weight", field=f"{at}.weight", value=spec.weight, remedy=remedy)
    if spec.kind not in KINDS:
        raise BadInput(
            "no such kind of queue", field=f"{at}.kind", value=spec.kind, remedy="one of " + ", ".join(KINDS)
        )
    for where, amounts in amounts_of(spec):
        for resource, amount in amounts.items():
            _check_amount(f"{where}.{resource}", resource, amount, resources)
    if spec.kind == "exclusive" and any(spec.borrow.values()):
        remedy = "leave borrow out, or make the queue pooled"
        raise BadInput("an exclusive queue does not borrow", field=f"{at}.borrow", remedy=remedy)


def amounts_of(spec: QueueSpec) -> Iterator[tuple[str, Given]]:
    """Every mapping of amounts with its field path."""
    at = f"queues.{spec.name}"
    for name in AMOUNTS:
        yield f"{at}.{name}", getattr(spec, name)
    for k, window in enumerate(spec.windows):
        for name in ("guarantee", "deserved", "limit"):
            yield f"{at}.windows[{k}].{name}", getattr(window, name)


def _check_amount(at: str, resource: str, amount: object, resources: Sequence[str]) -> None:
    if resource not in resources:
        near = difflib.get_close_matches(resource, resources, n=1, cutoff=0.0)
        remedy = f"the fleet has {', '.join(resources)}" + (f"; the closest is {near[0]}" if near else "")
        raise BadInput("no such resource", field=at, value=resource, remedy=remedy)
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount):
        raise BadInput("not an amount", field=at, value=amount, remedy="give a number from 0 on")
    if not 0 <= amount <= AMOUNT_MOST:
        remedy = f"give a number from 0 to {AMOUNT_MOST:,}"
        raise BadInput("an amount out of range", field=at, value=amount, remedy=remedy)


def _parents_first(specs: Sequence[QueueSpec], by_name: Mapping[str, QueueSpec]) -> list[QueueSpec]:
    depth: dict[str, int] = {}
    for spec in specs:
        path: list[str] = []
        at: str | None = spec.name
        while at is not None and at not in depth:
            if at in path:
                loop = " -> ".join([*path[path.index(at) :], at])
                raise BadInput(
                    "a queue is its own ancestor", field=f"queues.{at}.parent", value=loop,
                    remedy="give one of them another parent, or none",
                )  # fmt: skip
            path.append(at)
            at = by_name[at].parent
        base = depth[at] if at is not None else 0
        for k, name in enumerate(reversed(path)):
            depth[name] = base + k + 1
        if depth[spec.name] > DEPTH_MOST:
            raise BadInput(
                "the tree of queues is too deep", field=f"queues.{spec.name}.parent", value=depth[spec.name],
                remedy=f"at most {DEPTH_MOST} levels",
            )  # fmt: skip
    return sorted(specs, key=lambda spec: depth[spec.name])  # stable: else in the order given
