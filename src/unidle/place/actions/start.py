"""A job starts, or waits: behind others of its queues, for quota, or for room at a planned start.

The first of a queue gets the next quota, and the first of all have room reserved, which no later job may delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from unidle.jobs import Reason
from unidle.place.actions.make_room import move_others
from unidle.place.explain import behind, refused
from unidle.place.model import Demand, Running
from unidle.place.queue.backfill import FreeProfile, Planner
from unidle.place.queue.fair_share import Refusal
from unidle.place.queue.reservations import affordable
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import ROOT
from unidle.place.session import Attempt, Parts, Session
from unidle.place.slices.fit import PARTS_WAIT
from unidle.words import are, counted

PARTS_LATER: Final = "parts_later"  # code of the reason of one that waits for a part, with its planned start


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


class ReserveQuota:
    """The first job of a queue that its quota refuses gets the next quota; others may not delay it."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        refusal, demand = a.refusal, a.asked
        if refusal is None or (refusal.rule == "full" and refusal.queue == ROOT):
            return False
        shares = s.state.shares
        # without what is planned
        shown = shares.refusal(a.leaf, demand.charged, firm=demand.firm) or refusal
        s.draft.waits[demand.job] = why = refused(shares.tree, shown)
        s.learned.refused[a.like] = why
        if a.leaf in s.reservations.heads or refusal.asked > refusal.bound:
            return True
        s.reservations.heads.add(a.leaf)
        start_ns = s.reservations.free_ns(refusal)
        if start_ns is not None:
            s.draft.planned_ns[demand.job] = start_ns
            s.reservations.reserve(a.leaf, demand.charged, start_ns)
        return True


class ReserveRoom:
    """The job waits for room, at a planned start; the first ones with room reserved, which no later job may delay."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        if not a.in_the_way:
            (s.learned.no_room if a.demand.ranks else s.learned.no_part).add(a.like)
        after_ns = s.reservations.free_ns(a.refusal) if a.refusal is not None else 0
        wait_for_room(s, a, a.demand, after_ns or 0)
        return True


def wait_for_room(s: Session, a: Attempt, demand: Demand, after_ns: int = 0) -> None:
    """The job waits for devices, not before ``after_ns``; others are moved where that pays."""
    draft, job = s.draft, demand.job
    if not demand.ranks:
        _wait_for_part(s, a, demand)
        return
    planned = _planner_of(s).later(demand, after_ns, wanted=s.wants_time(job))
    draft.waits[job] = planned.because
    if planned.start_ns is not None:
        draft.planned_ns[job] = planned.start_ns
    if planned.start_ns is not None and planned.reserved:
        s.reservations.reserve(a.leaf, demand.charged, planned.start_ns)
        move_others(s, demand, planned.start_ns - s.now_ns)
    elif not s.rules.backfill.heads and not s.learned.asked_to_move:
        # when others end is not known: the first to wait is expected to wait as long again
        move_others(s, demand, max(s.now_ns - demand.submitted_ns, 0))


def _wait_for_part(s: Session, a: Attempt, demand: Demand) -> None:
    """It waits for a part; predicted as running jobs are expected to end, each way in which that is known."""
    s.draft.waits[demand.job] = PARTS_WAIT
    if not s.wants_time(demand.job) or s.parts is None:
        return
    like, known = s.like(demand), s.learned.part_ns
    if like not in known:
        known[like] = part_free_ns(s.state, s.parts, a.leaf, demand, s.reservations.ends())
    start_ns = known[like]
    if start_ns is not None:
        s.draft.waits[demand.job] = starts_in(start_ns - s.now_ns)
        s.draft.planned_ns[demand.job] = start_ns


def _planner_of(s: Session) -> Planner:
    if s.planner is None:
        s.planner = Planner(
            lambda: _profile(s), s.fits, s.now_ns, s.rules.backfill,
            not_before_ns=lambda demand: s.reservations.hosts_free_ns(demand, s.fits(demand)),
            late=lambda demand: s.pending.late(demand, s.now_ns) and not s.overtakes(demand),
        )  # fmt: skip
    return s.planner


def _profile(s: Session) -> FreeProfile:
    """What is free over time, as running jobs are expected to end and holds to be used."""
    state, ends = s.state, [(end_ns, run.devices) for end_ns, run in s.reservations.ends()]
    ends += [(s.now_ns + s.rules.backfill.otherwise_ns, hold.devices) for hold in state.holds.values()]
    ends += whole_again(s.reservations.ends())
    return FreeProfile(state.free, s.now_ns, ends)


def part_free_ns(
    state: Allocations, parts: Parts, leaf: int, demand: Demand, expected: Iterable[tuple[int, Running]]
) -> int | None:
    """When enough running jobs are expected to have left for its parts; None where no known end is enough."""
    ends = [(end_ns, run.job) for end_ns, run in expected if run.estimate_ns is not None]
    before = state.log.checkpoint()
    low, high, found = 1, len(ends), None
    while low <= high:
        middle = (low + high) // 2
        gone = frozenset(job for _, job in ends[:middle])
        for _, job in ends[:middle]:
            state.stop(job)
        if parts.then(affordable(state.shares, leaf, demand), gone) is None:
            low = middle + 1
        else:
            found, high = ends[middle - 1][0], middle - 1
        state.log.rollback(before)
    return found


def starts_in(wait_ns: int) -> Reason:
    """Why one waits for a part that is expected to be free by then."""
    wait_s = wait_ns // 1_000_000_000
    text = f"as running jobs are expected to end, it starts in {wait_s} s"
    return Reason(PARTS_LATER, text, {"wait_s": wait_s})


def whole_again(ends: Iterable[tuple[int, Running]]) -> list[tuple[int, Mapping[int, int]]]:
    """When devices in parts are expected to be whole: when the last of those on them ends."""
    last: dict[str, tuple[int, int]] = {}
    for end_ns, run in ends:
        last.update((device, (end_ns, node)) for device, node in run.parts.items())
    return [(end_ns, {node: 1}) for end_ns, node in last.values()]
