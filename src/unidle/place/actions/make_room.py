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
from unidle.place.actions.slices import Parts, StartRoom, stop_in_parts
from unidle.place.actions.solver import Domains, Solver, VictimChoice, cheapest_choice
from unidle.place.model import NS_PER_US, Demand, Fits, Hold, Running
from unidle.place.protocol import Consolidation, Preemption
from unidle.place.queue.state import Allocations, PendingLine
from unidle.place.queue.victims import Candidates, Mask, rights
from unidle.words import counted, device_time

TOGETHER_MOST: Final = 64  # jobs for which others are stopped before another queue has its turn


class Stopping:
    """Stops jobs for others. Which jobs may be stopped is found at the first call, and kept from then on.

    ``domains_of`` and ``allowed_of`` are those of ``preempt_all``. ``whole_now(demand)`` is where a job
    for whole devices could start now.
    """

    def __init__(
        self, state: Allocations, fits_of: Callable[[Demand], Fits], now_ns: int, hold_ns: int,
        domains_of: Callable[[Demand], Domains | None] | None, allowed_of: Callable[[Demand], Mask | None] | None,
        parts: Parts | None, whole_now: Callable[[Demand], Mapping[int, int] | None],
    ) -> None:  # fmt: skip
        self._state, self._fits_of, self._now_ns, self._hold_ns = state, fits_of, now_ns, hold_ns
        self._domains_of, self._allowed_of = domains_of, allowed_of
        self._parts, self._whole_now = parts, whole_now
        self._candidates: Candidates | None = None

    def stop_for(self, demand: Demand, line: PendingLine) -> list[tuple[Demand, Preemption | Reason]]:
        """Stop others for the job and equal jobs after it: the answers, its own first; empty if none may be stopped."""
        leaves = rights(self._state.shares, demand).leaves()
        if not any(self._state.soft.get(leaf) for leaf in leaves):
            return []
        if self._candidates is None:
            self._candidates = Candidates(self._state, self._now_ns)
        if demand.ranks and demand.most:  # which slices they leave is not known yet
            demand = replace(demand, charged=demand.most)
        # where nobody who may be stopped has a part, what is solved for whole devices is all there is
        if self._parts is not None and (not demand.ranks or self._candidates.in_parts(leaves)):
            made = stop_in_parts(
                self._state, self._candidates, self._parts, demand, self._preempt_one, self._whole_then,
                self._now_ns + self._hold_ns,
            )  # fmt: skip
            return [(demand, made)]
        jobs = [demand]
        if demand.ranks == 1 and not demand.most and self._allowed_of is not None:
            jobs += line.alike(demand, TOGETHER_MOST - 1)
        answers = preempt_all(
            self._state, jobs, self._fits_of, self._now_ns, domains_of=self._domains_of,
            allowed_of=self._allowed_of, hold_ns=self._hold_ns, candidates=self._candidates,
        )  # fmt: skip
        line.back(job for job in jobs[1:] if job.job not in self._state.holds)
        return [(job, answers[job.job]) for job in jobs]

    def _preempt_one(self, demand: Demand) -> Preemption | Reason:
        return preempt(
            self._state, demand, self._fits_of(demand), self._now_ns, hold_ns=self._hold_ns,
            domains=self._domains_of(demand) if self._domains_of else None, candidates=self._candidates,
        )  # fmt: skip

    def _whole_then(self, demand: Demand, _gone: frozenset[str]) -> StartRoom | None:
        """What a job that requests whole devices would start on."""
        found = self._whole_now(demand)
        return None if found is None else StartRoom(found, (), demand.charged)


HOLD_NS: Final = 600_000_000_000
TRIES: Final = 8  # how often jobs are chosen of which one then finds no other place


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
