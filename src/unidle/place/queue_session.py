"""A decision over all queues as actions see it, where nothing but devices counts; ``session`` adds the fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from unidle.jobs import Reason
from unidle.place.explain.queue import Learned, Like, like_of
from unidle.place.model import Amounts, Demand, Domains, Fits, Ints, Mask, RoundRules, Running, started
from unidle.place.protocol import Draft, Parts, Preemption, Start
from unidle.place.queue.backfill import Planner
from unidle.place.queue.reservations import QuotaReservations
from unidle.place.queue.state import Allocations, PendingJobs
from unidle.place.queue.victims import Candidates


class QueueSession(ABC):
    """See :class:`protocol.Session`. ``state`` and ``pending`` are changed as decided, and recorded in the log.

    A job that starts stays in its line until that is committed, so that no job is offered twice; the caller adds
    stopped jobs to ``pending`` when they have ended.
    """

    parts: Parts | None = None
    together = False

    def __init__(
        self, state: Allocations, pending: PendingJobs, now_ns: int, rules: RoundRules | None = None
    ) -> None:
        self.state, self.pending, self.now_ns, self.log = state, pending, now_ns, state.log
        self.rules = rules or RoundRules()
        self.draft, self.learned = Draft(), Learned(state)
        self.reservations = QuotaReservations(state, now_ns, self.rules.backfill.otherwise_ns)
        self.planner: Planner | None = None
        self.candidates: Candidates | None = None

    def open(self, capacity: Amounts | None = None) -> None:
        self.state.shares.begin(self.now_ns, capacity)
        self.draft.expired = self.state.expire(self.now_ns)

    def close(self) -> None:
        """End: all that was tried or decided is taken back."""
        self.log.rollback()
        self.planner = self.candidates = None

    def like(self, demand: Demand) -> Like:
        return like_of(demand, None if demand.ranks or self.parts is None else self.parts.apart(demand.job))

    @abstractmethod
    def fits(self, demand: Demand | Running) -> Fits: ...

    def domains(self, demand: Demand) -> Domains | None:  # noqa: ARG002
        return None

    def allowed(self, demand: Demand) -> Mask | None:  # noqa: ARG002
        return None

    def find(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        return self.state.find(demand, self.fits, room)

    def other_kinds(self, demand: Demand) -> Sequence[Demand]:  # noqa: ARG002
        return ()

    def charge_there(self, demand: Demand) -> Amounts | None:  # noqa: ARG002
        return None

    def ready(self, job: str) -> bool:  # noqa: ARG002
        return True

    def start(
        self, demand: Demand, devices: Mapping[int, int], because: Reason, as_: Demand | None = None
    ) -> None:
        self.pending.count(demand, -1)
        self.log.record(lambda: self.pending.count(demand, +1))
        self.state.start(self.charged(started(as_ or demand, devices, self.now_ns)))
        self.learned.started(demand)
        self.draft.starts.append(Start(demand.job, devices, because))

    def charged(self, run: Running) -> Running:
        """The job that starts, with what it is charged for the slices that it gets."""
        return run

    def stop_filler(self, demand: Demand) -> Preemption | None:  # noqa: ARG002
        return None

    def wants_time(self, job: str) -> bool:  # noqa: ARG002
        return True
