"""Room made by stopping others for jobs that have the right to, or by moving few jobs that can checkpoint.

A move costs the job's devices the time to save (or the work since its last checkpoint) and the
restart; the gain is what the waiting gang's devices would otherwise stand idle for. A plan whose
price exceeds its gain is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from unidle.fleet.queues import Migration
from unidle.jobs import Reason
from unidle.place.actions.preempt import preempt, preempt_all
from unidle.place.actions.slices import stop_in_parts
from unidle.place.actions.solver import Solver, VictimChoice, cheapest_choice
from unidle.place.admission import affordable
from unidle.place.model import NS_PER_US, Demand, Domains, Fits, Hold, Running
from unidle.place.protocol import Attempt, Consolidation, Preemption, Session, StartRoom
from unidle.place.queue.state import Allocations, PendingLine
from unidle.place.queue.victims import Candidates, rights
from unidle.words import are, counted, device_time

HOLD_NS: Final = 600_000_000_000
TRIES: Final = 8  # how often jobs are chosen of which one then finds no other place


TOGETHER_MOST: Final = 64  # jobs for which others are stopped before another queue has its turn
LOOK_AGAIN_NS: Final = 60_000_000_000  # after a move that did not pay, at the earliest
LOOKS: Final = 8  # in the time that a job waits


class ReclaimSpares:
    """Filler leaves spares for a job that comes back after a fault."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        if not _helps(a) or a.like in s.learned.no_filler:
            return False
        made = s.stop_filler(a.demand)
        if made is None:
            s.learned.no_filler.add(a.like)
            return False
        _stopped(s, a.demand, made)
        return True


class Preempt:
    """Others are stopped for a job that has the right to; what they leave is held for it."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        # where only others' reservations are in its way, nobody is stopped
        a.in_the_way = a.refusal is None and _fits_without_reservations(s, a)
        s.draft.kept_back |= a.in_the_way
        if not _helps(a) or a.in_the_way or a.like in s.learned.no_victims:
            return False
        made = _stop_for(s, a.demand, a.line)
        for job, answer in made:
            if isinstance(answer, Preemption):
                _stopped(s, job, answer)
            elif job.job == a.demand.job:
                s.learned.no_victims[a.like] = answer
        if made and isinstance(made[0][1], Preemption):
            return True
        s.learned.no_victims.setdefault(a.like)
        return False


def _helps(a: Attempt) -> bool:
    """Whether it could start if others left.

    Stopping others neither raises a limit nor lets a firm job borrow, but for jobs of its own queue.
    """
    return a.refusal is None or a.refusal.rule in ("kept", "full") or a.demand.level == "high"


def _fits_without_reservations(s: Session, a: Attempt) -> bool:
    if s.planner is None or not s.planner.reserves:
        return False
    return s.find(affordable(s.state.shares, a.leaf, a.demand), None) is not None


def _stop_for(s: Session, demand: Demand, line: PendingLine) -> list[tuple[Demand, Preemption | Reason]]:
    """Stop others for the job and equal jobs after it: the answers, its own first; empty if none may be stopped."""
    state, hold_ns = s.state, s.rules.hold_ns
    leaves = rights(state.shares, demand).leaves()
    if not any(state.soft.get(leaf) for leaf in leaves):
        return []
    if s.candidates is None:
        s.candidates = Candidates(state, s.now_ns)
    known = s.candidates
    if demand.ranks and demand.most:  # which slices they leave is not known yet
        demand = replace(demand, charged=demand.most)

    def one(demand: Demand) -> Preemption | Reason:
        return preempt(
            state, demand, s.fits(demand), s.now_ns, hold_ns=hold_ns, domains=s.domains(demand), candidates=known
        )  # fmt: skip

    def whole_then(demand: Demand, _gone: frozenset[str]) -> StartRoom | None:
        """What a job that requests whole devices would start on."""
        found = state.find(demand, s.fits)
        return None if found is None else StartRoom(found, (), demand.charged)

    # where no job that may be stopped has a part, what is solved for whole devices is all there is
    if s.parts is not None and (not demand.ranks or known.in_parts(leaves)):
        return [(demand, stop_in_parts(state, known, s.parts, demand, one, whole_then, s.now_ns + hold_ns))]
    jobs = [demand]
    if demand.ranks == 1 and not demand.most and s.together:
        jobs += line.alike(demand, TOGETHER_MOST - 1)
    answers = preempt_all(
        state, jobs, s.fits, s.now_ns, domains_of=s.domains, allowed_of=s.allowed, hold_ns=hold_ns, candidates=known
    )  # fmt: skip
    line.back(job for job in jobs[1:] if job.job not in state.holds)
    return [(job, answers[job.job]) for job in jobs]


def _stopped(s: Session, demand: Demand, answer: Preemption) -> None:
    s.draft.stops.append(answer)
    s.learned.forget()
    if s.planner is not None:
        s.planner.tell(demand, answer.hold.devices)
    victims = len(answer.victims)
    text = f"{counted(victims, 'job')} {are(victims)} stopped for it"
    s.draft.waits[demand.job] = Reason("gathering", text, {"victims": len(answer.victims)})


def move_others(s: Session, demand: Demand, wait_ns: int) -> None:
    """Move others where that makes room at a price below that of waiting ``wait_ns`` longer."""
    if s.rules.migration is None:
        return
    s.learned.asked_to_move = True
    domains = s.domains(demand)
    answer = consolidate(
        s.state, demand, s.fits(demand), s.fits, s.now_ns, wait_ns, domains=domains, migration=s.rules.migration
    )  # fmt: skip
    draft = s.draft
    if isinstance(answer, Reason):  # prices fall with each save, and gains grow with waiting
        next_ns = s.now_ns + max(LOOK_AGAIN_NS, wait_ns // LOOKS)
        draft.again_ns = min(next_ns, draft.again_ns or next_ns)
        return
    draft.moves.append(answer)
    draft.waits[demand.job] = answer.because
    draft.planned_ns.pop(demand.job, None)  # it need not wait for that
    s.planner = s.candidates = None  # what they know of has moved
    s.learned.forget()


def consolidate(
    state: Allocations, demand: Demand, fits: Fits, fits_of: Callable[[Running], Fits], now_ns: int,
    wait_ns: int, *, domains: Domains | None = None, migration: Migration | None = None,
) -> Consolidation | Reason:  # fmt: skip
    """Make room by moving jobs. The cluster is changed (jobs moved to holds), or left as it was.

    ``wait_ns``: how long the job is expected to wait otherwise, which is what the moves can win. A job
    that was moved is left alone until it has worked for as long as that cost it (``Running.settled_ns``).
    """
    migration = migration or Migration()
    refusal = state.shares.refusal(state.shares.tree.leaf(demand.queue), demand.charged, firm=demand.firm)
    if refusal is not None and demand.job not in state.holds:
        return Reason("quota", f"{demand.queue} may not start it, wherever there is room")
    levels = frozenset(migration.levels)
    known = Candidates(
        state, now_ns, lambda run: run.checkpoints and run.level in levels and run.settled_ns <= now_ns
    )
    solver = Solver(known, state, demand, fits, domains)
    gain_us = demand.size * (wait_ns // NS_PER_US)
    eligible = known.alive.copy()
    for _ in range(TRIES):
        choice = cheapest_choice(solver, known, eligible, demand.ranks)
        if choice is None:
            return Reason("no_moves", "no jobs that can checkpoint could be moved to make room")
        if choice.cost * migration.gain_least_ppm > gain_us * 1_000_000:
            return _too_dear(choice, gain_us)
        if len(choice.rows) > migration.moves_most:
            text = f"{counted(len(choice.rows), 'job')} would have to move, more than {migration.moves_most}"
            return Reason("too_many_moves", text, {"moves": len(choice.rows)})
        moved = _move(state, known, demand, choice, fits_of, now_ns + HOLD_NS)
        if not isinstance(moved, int):
            cost = {known.jobs[k].job: int(known.cost[k]) for k in choice.rows}
            return _planned(demand, choice, moved, gain_us, cost)
        eligible[moved] = False  # this one finds no other place
    return Reason("no_moves", "the jobs in the way find no other place")


def _move(
    state: Allocations, known: Candidates, demand: Demand, choice: VictimChoice, fits_of: Callable[[Running], Fits],
    expires_ns: int,
) -> tuple[Hold, ...] | int:  # fmt: skip
    """The holds, that of the waiting job last; or the candidate that finds no other place."""
    before = state.log.checkpoint()
    runs = sorted(
        (-known.jobs[k].size, k) for k in choice.rows
    )  # large ones are the hardest to put elsewhere
    for _, k in runs:
        state.stop(known.jobs[k].job)
    places = {int(n): int(choice.counts[n]) * demand.each for n in np.flatnonzero(choice.counts)}
    kept = Hold.of(demand, places, expires_ns)
    state.hold(kept)
    holds: list[Hold] = []
    for _, k in runs:
        run = known.jobs[k]
        counts = fits_of(run)(state.room(run))
        if counts is None:
            state.log.rollback(before)
            return k
        devices = {int(n): int(counts[n]) * run.each for n in np.flatnonzero(counts)}
        holds.append(Hold.of(run, devices, expires_ns))
        state.hold(holds[-1])
    return (*holds, kept)


def _planned(
    demand: Demand, choice: VictimChoice, holds: Sequence[Hold], gain_us: int, cost: Mapping[str, int]
) -> Consolidation:
    text = (
        f"moving {counted(len(holds) - 1, 'job')} loses {device_time(choice.cost)} "
        f"and saves {counted(demand.size, 'device')} {device_time(gain_us)} of waiting"
    )
    figures: dict[str, int | float | str] = {
        "moves": len(holds) - 1, "price_us": choice.cost, "gain_us": gain_us,
    }  # fmt: skip
    because = Reason("consolidate", text, figures)
    lost = tuple(cost[hold.job] for hold in holds[:-1])
    return Consolidation(demand.job, tuple(holds[:-1]), choice.cost, gain_us, holds[-1], because, lost)


def _too_dear(choice: VictimChoice, gain_us: int) -> Reason:
    text = f"moving {counted(len(choice.rows), 'job')} would lose {device_time(choice.cost)} to win {device_time(gain_us)}"
    return Reason("too_dear", text, {"price_us": choice.cost, "gain_us": gain_us})
