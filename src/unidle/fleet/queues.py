"""Queues as they are declared: names, parents, weights, amounts, and the hours at which others hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["exclusive", "pooled", "public"]
Given = Mapping[str, float]
WEEK_MINUTES: Final = 7 * 24 * 60


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
class Weekly:
    """Spans of a week's local time, ``[start, end)`` in minutes from Monday 00:00; none crosses Sunday's end."""

    spans: tuple[tuple[int, int], ...]

    def holds(self, minute: int) -> bool:
        """Whether this minute of the week is inside."""
        return any(start <= minute < end for start, end in self.spans)

    def edges(self) -> set[int]:
        """The minutes of the week at which it may begin or end to hold."""
        return {edge % WEEK_MINUTES for span in self.spans for edge in span}


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Inside ``when`` these amounts replace the queue's own, resource by resource."""

    when: Weekly
    guarantee: dict[str, float] = field(default_factory=dict)
    deserved: dict[str, float] = field(default_factory=dict)
    limit: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue. Amounts are in devices (``gpu`` or ``gpu:MODEL``) and cores (``cpu``), by resource.

    ``guarantee`` is kept for the queue even while it is idle. ``deserved`` is what it gets back from
    borrowers when it wants it; where it is not given, the queue deserves its part, by ``weight``, of
    what its siblings leave of what the parent deserves. ``limit`` is never exceeded. ``lend`` and
    ``borrow`` bound how much of what it deserves others may use, and how much above it the queue may
    use. What an ``exclusive`` queue deserves is for it alone, and it borrows nothing; a ``public``
    queue deserves nothing unless given, and never takes back by stopping others. Where
    ``reclaimable`` is false, what it borrowed comes back only when its jobs end.
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
