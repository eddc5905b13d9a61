"""The inputs and rules of a round of decisions, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from unidle.fleet.queues import Migration
from unidle.jobs import Reason
from unidle.place.queue.backfill import Backfill
from unidle.place.queue.consolidate import Consolidation
from unidle.place.queue.model import Amounts, Demand, Ints
from unidle.place.queue.preempt import HOLD_NS, Preemption

AtOnce: TypeAlias = Callable[[Demand, Ints | None], Mapping[int, int] | None]
"""``at_once(demand, room)``: devices by node on which the job could start now, using no more than ``room`` where
that is given (ranks by node); None where it could not."""
ByPlace: TypeAlias = Callable[[Demand], Amounts | None]
"""``by_place(demand)``: what the job would be charged where it could start now but for its quota, or None."""
FromSpares: TypeAlias = Callable[[Demand], Preemption | None]
"""``from_spares(demand)``: whom of those that fill spares to stop for a job that comes back, or None."""


@dataclass(frozen=True, slots=True)
class Rules:
    """In each queue at most ``backfill.depth`` jobs that cannot start are passed over in a round."""

    backfill: Backfill = field(default_factory=Backfill)
    migration: Migration | None = None
    hold_ns: int = HOLD_NS


@dataclass(frozen=True, slots=True)
class Start:
    """The job starts with these devices by node."""

    job: str
    devices: Mapping[int, int]
    because: Reason


@dataclass(slots=True)
class Round:
    """What was decided, each list in order. ``planned_ns``: expected starts of jobs that wait.

    Jobs beyond the depth of their queue have no entry in ``waits``.
    """

    starts: list[Start] = field(default_factory=list)
    stops: list[Preemption] = field(default_factory=list)
    moves: list[Consolidation] = field(default_factory=list)
    waits: dict[str, Reason] = field(default_factory=dict)
    planned_ns: dict[str, int] = field(default_factory=dict)
    nobody: dict[str, Reason] = field(default_factory=dict)  # why nobody is stopped for one that waits
    expired: tuple[str, ...] = ()
    again_ns: int | None = None  # when time alone may change the answer
    kept_back: bool = (
        False  # reservations of this round were in somebody's way: another round may see it otherwise
    )
