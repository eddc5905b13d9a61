"""What an action sees: a decision under way, in which actions are tried for one job after the other (``scheduler``).

A session is opened on a state of all queues. What actions try or do there is in one log of operations. The draft that
they leave becomes the plan, and closing takes all back. Here nothing but devices counts; ``fleet_session`` adds the fleet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from unidle.jobs import Reason
from unidle.place.model import (
    Amounts,
    Demand,
    Domains,
    Fits,
    Hold,
    Ints,
    Mask,
    RoundRules,
    Running,
    started,
)
from unidle.place.queue.backfill import Planner
from unidle.place.queue.fair_share import Refusal
from unidle.place.queue.pending import PassesOver, PendingJobs, PendingLine
from unidle.place.queue.reservations import QuotaReservations
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates, why_no_victims
from unidle.place.slices.fit import StartRoom


@dataclass(frozen=True, slots=True)
class DraftStart:
    """The job starts with these devices by node."""

    job: str
    devices: Mapping[int, int]
    because: Reason


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


@dataclass(slots=True)
class Draft:
    """What was decided, each list in order. ``planned_ns``: expected starts of jobs that wait.

    Jobs beyond the depth of their queue have no entry in ``waits``.
    """

    starts: list[DraftStart] = field(default_factory=list)
    stops: list[Preemption] = field(default_factory=list)
    moves: list[Consolidation] = field(default_factory=list)
    waits: dict[str, Reason] = field(default_factory=dict)
    planned_ns: dict[str, int] = field(default_factory=dict)
    no_victims: dict[str, Reason] = field(default_factory=dict)  # why no job is stopped for one that waits
    expired: tuple[str, ...] = ()
    again_ns: int | None = None  # when time alone may change the answer
    # reservations of this round were in somebody's way: another round may see it otherwise
    kept_back: bool = False


Like: TypeAlias = tuple[str, str, int, int, Amounts, str, Hashable]
"""The class of jobs with the same outcome as long as no job leaves, see :meth:`Session.like`."""


class NoVictims(dict[Like, Reason | None]):
    """Kinds of jobs for which no other job may be stopped, with the reason if it is known already."""

    def __init__(self, state: Allocations) -> None:
        super().__init__()
        self._state = state
        self._looked: set[Like] = set()

    def why(self, like: Like, demand: Demand) -> Reason | None:
        """The reason for a job of this kind; None if others may be stopped for it, or if no reason is needed."""
        if like in self and self[like] is None and like not in self._looked:
            self._looked.add(like)
            self[like] = why_no_victims(self._state, demand)
        return self.get(like)

    def clear(self) -> None:
        super().clear()
        self._looked.clear()


class Learned:
    """What a decision has learned of equal jobs, so that nothing is asked twice. Void once others leave."""

    def __init__(self, state: Allocations) -> None:
        self.refused: dict[Like, Reason] = {}  # jobs like this may not start, and none may stop for them
        self.no_room: set[Like] = set()  # the nodes do not hold jobs like this, and none may stop for them
        self.no_part: set[Like] = set()  # no device has a part for jobs like this
        self.no_filler: set[Like] = set()  # no filler can make room for jobs like this
        self.part_ns: dict[Like, int | None] = {}  # when a part is expected to be free for them
        self.no_victims = NoVictims(state)  # none may be stopped for jobs like this
        self.no_overtaking: set[tuple[Like, int]] = (
            set()
        )  # nor any of their queue that comes after their class
        self.asked_to_move = False  # whether moving others was weighed for any job
        self.version = 0  # changes when less is known

    def started(self, demand: Demand) -> None:
        """The job starts: what is free shrinks, but others may join it on a device that they could not open."""
        self.part_ns.clear()
        if not demand.ranks:
            self.version += 1
            self.no_part.clear()
            self.refused = {like: why for like, why in self.refused.items() if like[2]}

    def forget(self) -> None:
        """Others leave: what was learned of those that wait is void."""
        self.version += 1
        for memo in (self.refused, self.no_room, self.no_part, self.no_filler, self.part_ns, self.no_victims,
                     self.no_overtaking):  # fmt: skip
            memo.clear()


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


@dataclass(slots=True)
class Attempt:
    """One job that is tried: the next of its queue."""

    leaf: int
    demand: Demand
    like: Like
    line: PendingLine  # of its queue, from the next job on
    reserved: Mapping[int, Amounts] = field(default_factory=dict)  # by queue, for others before its end
    refusal: Refusal | None = None  # the bound of a queue that is in its way
    as_charged: Demand | None = None  # with the charge that was refused, where that depends on its place
    in_the_way: bool = False  # whether only reservations of others are

    @property
    def asked(self) -> Demand:
        """The job, with the charge that was refused."""
        return self.as_charged or self.demand


class Session(ABC):
    """A decision under way, as actions see it. Whatever they try or do is recorded in ``log``.

    ``state`` and ``pending`` are changed as decided. A job that starts stays in its line until that is committed, so that
    no job is offered twice; the caller adds stopped jobs to ``pending`` when they have ended.
    """

    parts: Parts | None = None
    explains = True  # whether any job's reason to wait is asked for
    together = False  # whether equal jobs of one rank may be solved together: ``allowed`` is known

    def __init__(
        self, state: Allocations, pending: PendingJobs, now_ns: int, rules: RoundRules | None = None
    ) -> None:
        """``state``: who runs, what is free or held for whom, what queues use."""
        self.state, self.pending, self.now_ns, self.log = state, pending, now_ns, state.log
        self.rules = rules or RoundRules()
        self.draft, self.learned = Draft(), Learned(state)
        self.reservations = QuotaReservations(state, now_ns, self.rules.backfill.otherwise_ns)
        self.planner: Planner | None = None  # starts over time; made when a job first waits
        self.candidates: Candidates | None = None  # who may be stopped; found when somebody is first stopped

    def open(self, capacity: Amounts | None = None) -> None:
        """Begin: holds expire, and queues that were blocked before have their turn again."""
        self.state.shares.begin(self.now_ns, capacity)
        self.draft.expired = self.state.expire(self.now_ns)

    def attempts(self) -> Iterator[Attempt]:
        """The next job of the queue whose turn it is. A queue is passed over when it has none, or many that cannot start.

        Beyond the depth of a queue, or where no reason is asked for, only jobs are tried of which it is not known yet that
        they cannot start.
        """
        shares, lines, misses = self.state.shares, dict[int, PendingLine](), dict[int, int]()
        depth, over = self.rules.backfill.depth, dict[int, PassesOver]()
        while (leaf := shares.next_queue()) is not None:
            if leaf not in lines:
                over[leaf] = PassesOver(self._known_to_wait, lambda: self.learned.version)
                lines[leaf] = PendingLine(self.pending.of(leaf, self.now_ns, over[leaf]))
            over[leaf].begun = misses.get(leaf, 0) > depth or not self.explains
            demand = lines[leaf].next()
            if demand is None or misses.get(leaf, 0) > 2 * depth:
                shares.block(leaf)
                continue
            yield Attempt(leaf, demand, self.like(demand), lines[leaf])
            if demand.job in self.draft.waits and demand.job not in self.state.holds:
                misses[leaf] = misses.get(leaf, 0) + 1

    def _known_to_wait(self, demand: Demand) -> bool:
        """Whether a job waits as others like it do, so that it need not be tried (``KnownRefusal``)."""
        if not demand.ranks or demand.job in self.state.holds:
            return False
        like = self.like(demand)
        return like in self.learned.refused or like in self.learned.no_room

    def again_ns(self) -> int | None:
        """When time alone may change the decision."""
        times = [hold.expires_ns for hold in self.state.holds.values()]
        later = [self.state.shares.tree.next_window_ns(self.now_ns), self.draft.again_ns]
        if self.draft.waits and self.learned.no_victims:  # somebody may have run for its minimum by then
            later.append(self.state.next_stoppable_ns(self.now_ns))
        if self.draft.waits:
            later.append(self.pending.next_late_ns(self.now_ns))
        return min([*times, *(at for at in later if at is not None)], default=None)

    def overtakes(self, demand: Demand) -> bool:
        """Whether a job of its queue that comes after it may be stopped for it, by its queue's order."""
        order = self.pending.order(self.state.shares.tree.leaf(demand.queue))
        return order != "fifo" and demand.level == "low" and demand.ranks > 0

    def close(self) -> None:
        """End: all that was tried or decided is taken back."""
        self.log.rollback()
        self.planner = self.candidates = None

    def like(self, demand: Demand) -> Like:
        """The class of jobs with the same outcome; those for parts are also set apart by what the parts say."""
        apart = None if demand.ranks or self.parts is None else self.parts.apart(demand.job)
        return demand.queue, demand.level, demand.ranks, demand.each, demand.charged, demand.alike, apart

    @abstractmethod
    def fits(self, demand: Demand | Running) -> Fits:
        """Where its ranks would be placed in room that others might leave."""

    def domains(self, demand: Demand) -> Domains | None:  # noqa: ARG002
        """Ranges of nodes of which one must hold it whole; None: all nodes."""
        return None

    def allowed(self, demand: Demand) -> Mask | None:  # noqa: ARG002
        """The nodes of which any holds it, a job of one rank; None where only ``fits`` can tell."""
        return None

    def find(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """Devices by node on which it could start now, on no more than ``room`` (ranks by node); None where it could not."""
        return self.state.find(demand, self.fits, room)

    def other_kinds(self, demand: Demand) -> Sequence[Demand]:  # noqa: ARG002
        """What it would take instead, on other kinds of devices."""
        return ()

    def charge_there(self, demand: Demand) -> Amounts | None:  # noqa: ARG002
        """What it would be charged where it could start now but for its quota; None where it could not."""
        return None

    def ready(self, job: str) -> bool:  # noqa: ARG002
        """Whether what is held for the job is really free by now."""
        return True

    def start(
        self, demand: Demand, devices: Mapping[int, int], because: Reason, as_: Demand | None = None
    ) -> None:
        """The job starts on these devices by node; ``as_``: with another charge, or on another kind of devices."""
        self.pending.count(demand, -1)
        self.log.record(lambda: self.pending.count(demand, +1))
        self.state.start(self.charged(started(as_ or demand, devices, self.now_ns)))
        self.learned.started(demand)
        self.draft.starts.append(DraftStart(demand.job, devices, because))

    def charged(self, run: Running) -> Running:
        """The job that starts, with what it is charged for the slices that it gets."""
        return run

    def filler(self, demand: Demand) -> Candidates | None:  # noqa: ARG002
        """Filler on spares, for a job that comes back after a fault; None if it is none, or there is no filler."""
        return None

    def took_spares(self, nodes: Iterable[int]) -> None:  # noqa: B027
        """Work that may not be stopped at once is to be on these nodes: others become spares instead."""

    def wants_time(self, job: str) -> bool:  # noqa: ARG002
        """Whether a start is predicted for the job even if no room is reserved for it."""
        return True


class Action(Protocol):
    """What may be done for a job."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        """Whether the job is decided on; else the next action is tried."""
