"""A job waits: the first of its queue gets the next quota, and the first of all have room reserved, at a planned start."""

from __future__ import annotations

from unidle.place.actions.make_room import move_others
from unidle.place.actions.slices import part_free_ns, starts_in, whole_again
from unidle.place.explain.queue import refused
from unidle.place.model import Demand
from unidle.place.protocol import Attempt, Session
from unidle.place.queue.backfill import FreeProfile, Planner
from unidle.place.queue.tree import ROOT
from unidle.place.slices.fit import PARTS_WAIT


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


class Backfill:
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
        )  # fmt: skip
    return s.planner


def _profile(s: Session) -> FreeProfile:
    """What is free over time, as running jobs are expected to end and holds to be used."""
    state, ends = s.state, [(end_ns, run.devices) for end_ns, run in s.reservations.ends()]
    ends += [(s.now_ns + s.rules.backfill.otherwise_ns, hold.devices) for hold in state.holds.values()]
    ends += whole_again(s.reservations.ends())
    return FreeProfile(state.free, s.now_ns, ends)
