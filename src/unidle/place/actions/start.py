"""A job starts, or waits for a reason that is known at once: what is held for it, its quota, or what was learned of its like."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unidle.jobs import Reason
from unidle.place.actions.reserve import wait_for_room
from unidle.place.admission import affordable
from unidle.place.explain.queue import behind
from unidle.place.model import Demand
from unidle.place.protocol import Attempt, Session
from unidle.place.queue.fair_share import Refusal
from unidle.words import are, counted


class StartHeld:
    """A job for which devices are held starts once all of them are free."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        demand, holds = a.demand, s.state.holds
        if demand.job not in holds:
            return False
        if s.ready(demand.job):
            because = Reason("freed", "the devices held for it are free", {"devices": demand.size})
            s.start(demand, dict(holds[demand.job].devices), because)
            return True
        text = "parts of devices are held for it, and not all of them are free yet"
        if demand.ranks:
            what = f"{counted(demand.size, 'device')} {are(demand.size)} held for it"
            text = f"{what}, and {'not all of them are' if demand.size > 1 else 'it is not'} free yet"
        s.draft.waits[demand.job] = Reason("gathering", text)
        return True


class KnownRefusal:
    """A job waits as others like it, as long as no job has left since."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        if (known := s.learned.refused.get(a.like)) is not None:
            s.draft.waits[a.demand.job] = known
            return True
        if a.like in s.learned.no_room or a.like in s.learned.no_part:
            wait_for_room(s, a, a.demand)
            return True
        return False


class WaitBehind:
    """The queue is asked; a job that only quota reserved for others refuses waits behind them."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        a.reserved = s.reservations.reserved(a.leaf, a.demand)
        a.refusal = s.state.shares.refusal(a.leaf, a.demand.charged, firm=a.demand.firm, reserved=a.reserved)
        return _is_behind(s, a, a.demand, a.refusal)


class Start:
    """A job that its queue lets start does, where the nodes hold it and no reservation is delayed."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        if a.refusal is not None:
            return False
        return _starts(s, a.demand, affordable(s.state.shares, a.leaf, a.demand, a.reserved))


class StartOtherKind:
    """A job that accepts any kind of devices starts on another kind, or waits for it where the first is refused."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        shares = s.state.shares
        may = [
            other
            for other in s.other_kinds(a.demand)
            if shares.refusal(a.leaf, other.charged, firm=other.firm, reserved=a.reserved) is None
        ]
        if any(_starts(s, a.demand, affordable(shares, a.leaf, other, a.reserved)) for other in may):
            return True
        if a.refusal is None or not may:
            return False
        wait_for_room(s, a, may[0])
        return True


@dataclass(frozen=True, slots=True)
class ChargeByPlace:
    """Where a charge depends on the place, the place that a job could have now may be charged too much.

    For whole devices that is found before others are stopped, for ``parts`` after.
    """

    parts: bool

    def attempt(self, s: Session, a: Attempt) -> bool:
        if a.refusal is not None or self.parts == bool(a.demand.ranks):
            return False
        charged = s.charge_there(a.demand) if a.demand.most else None
        if charged is None:
            return False
        a.refusal = s.state.shares.refusal(a.leaf, charged, firm=a.demand.firm, reserved=a.reserved)
        if a.refusal is None:
            return False
        a.as_charged = replace(a.demand, charged=charged)
        return _is_behind(s, a, a.as_charged, a.refusal)


def _starts(s: Session, demand: Demand, as_: Demand) -> bool:
    """Start the job if it can start now. ``as_`` is its request; its charge is an upper bound."""
    planner = s.planner
    room = planner.room_now(as_) if planner is not None and planner.reserves else None
    devices = s.find(as_, room)
    if devices is None:
        return False
    if planner is not None:
        planner.tell(as_, devices)
    where = f"{counted(len(devices), 'node')} with room for it"
    s.start(demand, devices, Reason("fits", where, {"nodes": len(devices)}), as_)
    return True


def _is_behind(s: Session, a: Attempt, demand: Demand, refusal: Refusal | None) -> bool:
    """Whether only what is reserved for others of its queues refuses it; if so, that is why it waits."""
    shares = s.state.shares
    if not refusal or not a.reserved or shares.refusal(a.leaf, demand.charged, firm=demand.firm):
        return False
    s.draft.waits[demand.job] = behind(shares.tree, refusal)
    s.draft.kept_back = True
    return True
