"""Room made by moving few jobs that can checkpoint, or by stopping others for parts of devices.

A move costs the job's devices the time to save (or the work since its last checkpoint) and the
restart; the gain is what the waiting gang's devices would otherwise stand idle for. A plan whose
price exceeds its gain is refused.

A device that several have parts of is whole only when all of them have left, and a part is there as soon as those
left that it needs: neither is a sum over jobs, so a set of victims is tried as a whole, in the state in which they
have left. Sets are prefixes of the candidates in order of cost per device, of all that may be stopped and of those of
each device by itself; of the cheapest set that makes room, who is not needed is spared, the dearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.fleet.queues import Migration
from unidle.jobs import Reason
from unidle.place.actions.solver import Solver, VictimChoice, cheapest_choice
from unidle.place.model import HOLD_NS, NS_PER_US, Demand, Domains, Fits, Hold, Running
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates, rights
from unidle.place.session import Consolidation, Parts, Preemption, Session
from unidle.place.slices.fit import StartRoom
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


# -- parts of devices ----------------------------------------------------------------------------------

PLACES_MOST: Final = 64


Then: TypeAlias = Callable[[Demand, frozenset[str]], StartRoom | None]
"""``then(demand, gone)``: what the job would start on, once these jobs, which the state has stopped, have left."""


class PartRelief(NamedTuple):
    """Stop these jobs, at ``cost`` device-microseconds, and the job starts on ``room``."""

    victims: tuple[str, ...]
    cost: int
    room: StartRoom


def cheapest_relief(state: Allocations, known: Candidates, demand: Demand, then: Then) -> PartRelief | None:
    """The set of jobs that loses least of those that were tried; the cluster is left as it was."""
    known.refresh()
    may = rights(state.shares, demand)
    allowed = known.alive & np.isin(known.leaf, may.leaves())
    order = np.lexsort((np.arange(len(allowed)), known.density))
    rows = order[allowed[order]]
    good = np.array(may.within([known.jobs[k] for k in rows], known.leaf[rows].tolist()), np.bool_)
    search = _Search(state, known, demand, then)
    best: PartRelief | None = None
    for some in _places(known, rows[good].tolist()):
        if best is None or min(int(known.cost[k]) for k in some) < best.cost:
            found = search.among(some)
            best = found if found is not None and (best is None or found.cost < best.cost) else best
    known.stopped(())
    return best


def stop_for(state: Allocations, demand: Demand, found: PartRelief, expires_ns: int) -> Preemption:
    """Carry it out: the victims are stopped, and what they leave is held for the job and charged to its queue."""
    victims = found.victims
    for victim in victims:
        state.stop(victim)
    hold = Hold.of(replace(demand, charged=found.room.charged), found.room.devices, expires_ns)
    state.hold(hold)
    what = "a device whole again" if demand.ranks else "a part of a device"
    text = f"stopping {counted(len(victims), 'low job')} makes room for it ({what}) and loses {device_time(found.cost)}, the least that was found"
    because = Reason(
        "preempt", text, {"victims": len(victims), "lost_us": found.cost, "parts": len(found.room.parts)}
    )
    return Preemption(demand.job, victims, found.cost, hold, because)


def _places(known: Candidates, rows: Sequence[int]) -> Iterator[list[int]]:
    """Those of each device in parts, and of whole ones of each node, the cheapest first; and all of them."""
    found: dict[tuple[str, int], list[int]] = {}
    for k in rows:
        run = known.jobs[k]
        for key in [*run.parts.items(), *(("", node) for node in run.devices)]:
            found.setdefault(key, []).append(k)
    some = sorted(found.items(), key=lambda item: (float(known.density[item[1][0]]), item[0]))
    yield from (local for _, local in some[:PLACES_MOST])
    if len(found) > 1:
        yield list(rows)


class _Search:
    def __init__(self, state: Allocations, known: Candidates, demand: Demand, then: Then) -> None:
        self._state, self._known, self._demand, self._then = state, known, demand, then
        self._leaf = state.shares.tree.leaf(demand.queue)

    def among(self, rows: Sequence[int]) -> PartRelief | None:
        """The shortest prefix that makes room, without those that it does not need."""
        low, high, room = 1, len(rows), self._without(rows)
        if room is None:
            return None
        while low < high:
            middle = (low + high) // 2
            found = self._without(rows[:middle])
            if found is None:
                low = middle + 1
            else:
                high, room = middle, found
        kept = list(rows[:high])
        for k in sorted(kept, key=lambda k: (-int(self._known.cost[k]), k)):
            rest = [row for row in kept if row != k]
            found = self._without(rest) if rest else None
            if found is not None:
                kept, room = rest, found
        victims = tuple(sorted(self._known.jobs[k].job for k in kept))
        return PartRelief(victims, sum(int(self._known.cost[k]) for k in kept), room)

    def _without(self, rows: Sequence[int]) -> StartRoom | None:
        state, demand = self._state, self._demand
        before = state.log.checkpoint()
        gone = [self._known.jobs[k].job for k in rows]
        for job in gone:
            state.stop(job)
        room = None
        if state.shares.refusal(self._leaf, demand.charged, firm=demand.firm) is None:
            room = self._then(demand, frozenset(gone))
        state.log.rollback(before)
        return room


NO_PART: Final = Reason(
    "no_victims", "stopping all jobs that may be stopped frees no part of a device for it"
)


def stop_in_parts(
    state: Allocations, known: Candidates, parts: Parts, demand: Demand,
    preempt_one: Callable[[Demand], Preemption | Reason], whole_then: Then, expires_ns: int,
) -> Preemption | Reason:  # fmt: skip
    """Stop the job that loses least, whether on whole devices or on parts; what they leave is held for the job. Or why not."""
    then = whole_then if demand.ranks else parts.then
    found = cheapest_relief(state, known, demand, then)
    before = state.log.checkpoint()
    answer = preempt_one(demand) if demand.ranks else None
    if found is not None and not (isinstance(answer, Preemption) and answer.lost_us <= found.cost):
        state.log.rollback(before)
        answer = stop_for(state, demand, found, expires_ns)
        parts.keep(demand.job, found.room.parts)
    if not isinstance(answer, Preemption):
        return answer or NO_PART
    for victim in answer.victims:
        parts.keep(demand.job, parts.parts_of(victim))
    return answer
