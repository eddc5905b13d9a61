"""The plan of a placement policy, and what speculation and outcomes of a round look like: the page to begin with.

A policy turns a view into a plan: who starts where, who waits and why, who is stopped for whom, and which devices are
cut again. Nothing here needs NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from unidle.fleet import Cut
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.place.model import Hold


@dataclass(frozen=True, slots=True)
class Place:
    """Give these slices to this job's gang; one entry per rank, in rank order."""

    job: str
    places: tuple[RankPlace, ...]
    because: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """The job keeps waiting."""

    job: str
    because: Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this job's attempt and let it wait again, to make room for ``for_job``.

    ``why`` is ``moved`` where devices are kept for it elsewhere. ``grace_ns``: it has no longer than that to stop.
    """

    job: str
    because: Reason
    for_job: str | None = None
    why: Literal["preempted", "moved"] = "preempted"
    grace_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep so many devices of a kind on these nodes for a job that waits, or is moved there, until ``expires_ns``."""

    job: str
    kind: str
    devices: dict[str, int]
    expires_ns: int
    because: Reason


@dataclass(frozen=True, slots=True)
class Recut:
    """Cut a device again, before anything is placed; parts in use stay as they are."""

    device: str
    cut: Cut
    because: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they were made.

    ``again_ns``: when time alone may change them; now, where a decision on what this one leaves may add to it.
    """

    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()
    keeps: tuple[Keep, ...] = ()
    stops: tuple[Stop, ...] = ()
    again_ns: int | None = None
    cuts: tuple[Recut, ...] = ()


class Policy(Protocol):
    """Turns what is known into what to do. Pure: no clock, no I/O, the view is only read."""

    def decide(self, view: View, now_ns: int) -> Plan: ...

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        """Why a gang of this job cannot be placed now; None where it can."""

    def ever(self, view: View, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, holds a gang of this job."""


class OpLog:
    """The one way to try something and take it back: how to undo each operation, in order. Nothing is copied."""

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def record(self, undo: Callable[[], None]) -> None:
        """An operation was done, and this undoes it."""
        self._undo.append(undo)

    def checkpoint(self) -> int:
        """The present, to come back to."""
        return len(self._undo)

    def rollback(self, to: int = 0) -> None:
        """Undo what was done since the checkpoint, the last first."""
        while len(self._undo) > to:
            self._undo.pop()()

    def commit(self) -> None:
        """What was done stays; earlier checkpoints are void."""
        self._undo.clear()


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


@dataclass(frozen=True, slots=True)
class Preemption:
    """Stop ``victims``, which loses ``lost_us`` device-microseconds; the job starts on what ``hold`` keeps.

    ``spares``: they are filler on spares, and the job comes back after a fault.
    """

    job: str
    victims: tuple[str, ...]
    lost_us: int
    hold: Hold
    because: Reason
    spares: bool = False


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Move jobs to ``moves`` (each a hold for the job that moves); the waiting job then starts on ``hold``.

    ``lost_us`` is the part of the price of each move.
    """

    job: str
    moves: tuple[Hold, ...]
    price_us: int
    gain_us: int
    hold: Hold
    because: Reason
    lost_us: tuple[int, ...] = ()
