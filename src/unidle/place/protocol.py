"""The page to begin with: what a policy returns, what a decision under way looks like, and what an action is.

A policy turns a view into a plan: who starts where, who waits and why, who is stopped for whom, and which devices are
cut again. Under queues a decision is a session (``session``), on which actions (``actions``) are tried for one job after
the other (``scheduler.decide``), and the draft that they leave becomes the plan. Nothing here needs NumPy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from unidle.fleet import Cut
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.place.explain.queue import Learned, Like
    from unidle.place.model import (
        Amounts,
        Demand,
        Domains,
        Fits,
        Hold,
        Ints,
        Mask,
        OpLog,
        RoundRules,
        Running,
    )
    from unidle.place.queue.backfill import Planner
    from unidle.place.queue.fair_share import Refusal
    from unidle.place.queue.reservations import QuotaReservations
    from unidle.place.queue.state import Allocations, PendingJobs, PendingLine
    from unidle.place.queue.victims import Candidates


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


@dataclass(frozen=True, slots=True)
class Start:
    """The job starts with these devices by node."""

    job: str
    devices: Mapping[int, int]
    because: Reason


@dataclass(slots=True)
class Draft:
    """What was decided, each list in order. ``planned_ns``: expected starts of jobs that wait.

    Jobs beyond the depth of their queue have no entry in ``waits``.
    """

    starts: list[Start] = field(default_factory=list)
    stops: list[Preemption] = field(default_factory=list)
    moves: list[Consolidation] = field(default_factory=list)
    waits: dict[str, Reason] = field(default_factory=dict)
    planned_ns: dict[str, int] = field(default_factory=dict)
    no_victims: dict[str, Reason] = field(default_factory=dict)  # why no job is stopped for one that waits
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


class StartRoom(NamedTuple):
    """What a job would start on: whole devices by node, those that it gets parts of, and what it is charged."""

    devices: Mapping[int, int]
    parts: tuple[str, ...]
    charged: Amounts


class Parts(Protocol):
    """What actions need if devices are cut on demand."""

    def then(self, demand: Demand, gone: frozenset[str]) -> StartRoom | None:
        """What the job would start on, once these jobs, which the state has stopped, have left."""

    def apart(self, job: str) -> Hashable:
        """What sets jobs apart that ask for the same part."""

    def parts_of(self, job: str) -> Iterable[str]:
        """Devices that a running job has parts of."""

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """These devices are in parts: from now on no other job gets one of them."""


class Session(Protocol):
    """A decision under way, as actions see it. Whatever they try or do is recorded in ``log``."""

    now_ns: int
    rules: RoundRules
    log: OpLog
    state: Allocations  # who runs, what is free or held for whom, what queues use
    pending: PendingJobs
    draft: Draft
    learned: Learned
    reservations: QuotaReservations
    planner: Planner | None  # starts over time; made when a job first waits
    candidates: Candidates | None  # who may be stopped; found when somebody is first stopped
    parts: Parts | None
    together: bool  # whether equal jobs of one rank may be solved together: ``allowed`` is known

    def open(self) -> None:
        """Begin: holds expire, and queues that were blocked before have their turn again."""

    def close(self) -> None:
        """End: all that was tried or decided is taken back."""

    def like(self, demand: Demand) -> Like:
        """The class of jobs with the same outcome."""

    def fits(self, demand: Demand | Running) -> Fits:
        """Where its ranks would be placed in room that others might leave."""

    def domains(self, demand: Demand) -> Domains | None:
        """Ranges of nodes of which one must hold it whole; None: all nodes."""

    def allowed(self, demand: Demand) -> Mask | None:
        """The nodes of which any holds it, a job of one rank; None where only ``fits`` can tell."""

    def find(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """Devices by node on which it could start now, on no more than ``room`` (ranks by node); None where it could not."""

    def other_kinds(self, demand: Demand) -> Sequence[Demand]:
        """What it would take instead, on other kinds of devices."""

    def charge_there(self, demand: Demand) -> Amounts | None:
        """What it would be charged where it could start now but for its quota; None where it could not."""

    def ready(self, job: str) -> bool:
        """Whether what is held for the job is really free by now."""

    def start(
        self, demand: Demand, devices: Mapping[int, int], because: Reason, as_: Demand | None = None
    ) -> None:
        """The job starts on these devices by node; ``as_``: with another charge, or on another kind of devices."""

    def stop_filler(self, demand: Demand) -> Preemption | None:
        """Stop filler on spares for a job that comes back after a fault, if it is one and that makes room."""

    def wants_time(self, job: str) -> bool:
        """Whether a start is predicted for the job even if no room is reserved for it."""


@dataclass(slots=True)
class Attempt:
    """One job that is tried: the next of its queue."""

    leaf: int
    demand: Demand
    like: Like
    line: PendingLine  # of its queue, from the next job on
    reserved: Mapping[int, Amounts] = field(default_factory=dict)  # by queue, for others before its end
    refusal: Refusal | None = None  # the bound of a queue that is in its way
    as_charged: Demand | None = (
        None  # the job with the charge that was refused, where that depends on its place
    )
    in_the_way: bool = False  # whether only reservations of others are

    @property
    def asked(self) -> Demand:
        """The job, with the charge that was refused."""
        return self.as_charged or self.demand


class Action(Protocol):
    """What may be done for a job."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        """Whether the job is decided on; else the next action is tried."""
