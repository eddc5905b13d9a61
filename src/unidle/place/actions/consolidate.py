"""Room made by moving few jobs that can checkpoint.

A move costs the job's devices the time to save (or the work since its last checkpoint) and the
restart; the gain is what the waiting gang's devices would otherwise stand idle for. A plan whose
price exceeds its gain is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from unidle.fleet.queues import Migration
from unidle.jobs import Reason
from unidle.place.actions.solver import Solver, VictimChoice, cheapest_choice
from unidle.place.model import HOLD_NS, NS_PER_US, Demand, Domains, Fits, Hold, Running
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates
from unidle.place.session import Consolidation, Session
from unidle.words import counted, device_time

TRIES: Final = 8  # how often jobs are chosen of which one then finds no other place
LOOK_AGAIN_NS: Final = 60_000_000_000  # after a move that did not pay, at the earliest
LOOKS: Final = 8  # in the time that a job waits


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
