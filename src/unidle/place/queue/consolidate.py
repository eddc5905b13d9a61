"""Consolidation: move few jobs that can checkpoint, so that a gang fits into what is free.

A move costs the job's devices the time to save (or the work since its last checkpoint) and the
restart; the gain is what the waiting gang's devices would otherwise stand idle for. A plan whose
price exceeds its gain is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.jobs import Preemption, Reason
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.model import NS_PER_US, Demand, Fits, Hold, Running
from unidle.place.queue.solve import Choice, Domains, Solver
from unidle.place.queue.victims import Candidates

HOLD_NS: Final = 600_000_000_000
US_PER_HOUR: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Migration:
    """At most ``moves_most`` jobs of these levels are moved, if that wins ``gain_least_ppm`` of the price."""

    moves_most: int = 16
    levels: tuple[Preemption, ...] = ("low", "medium")
    gain_least_ppm: int = 1_000_000
    tries: int = 8
    hold_ns: int = HOLD_NS


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Move jobs to ``moves`` (each a hold for the job that moves); the waiting job then starts on ``hold``."""

    job: str
    moves: tuple[Hold, ...]
    price_us: int
    gain_us: int
    hold: Hold
    because: Reason


def consolidate(
    cluster: Cluster, demand: Demand, fits: Fits, fits_of: Callable[[Running], Fits], now_ns: int,
    wait_ns: int, *, domains: Domains | None = None, migration: Migration | None = None,
) -> Consolidation | Reason:  # fmt: skip
    """Make room by moving jobs. The cluster is changed (jobs moved to holds), or left as it was.

    ``wait_ns``: how long the job is expected to wait otherwise, which is what the moves can win.
    """
    migration = migration or Migration()
    refusal = cluster.shares.refusal(cluster.shares.tree.leaf(demand.queue), demand.charged, firm=demand.firm)
    if refusal is not None and demand.job not in cluster.holds:
        return Reason("quota", f"{demand.queue} may not start it, wherever there is room")
    known = Candidates(cluster, now_ns, lambda run: run.checkpoints and run.level in migration.levels)
    solver = Solver(known, cluster, demand, fits, domains)
    gain_us = demand.size * (wait_ns // NS_PER_US)
    eligible = known.alive.copy()
    for _ in range(migration.tries):
        choice = solver.cheapest(eligible)
        if choice is None:
            return Reason("no_moves", "no jobs that can checkpoint could be moved to make room")
        if choice.cost * migration.gain_least_ppm > gain_us * 1_000_000:
            return _too_dear(choice, gain_us)
        if len(choice.rows) > migration.moves_most:
            text = f"{len(choice.rows)} jobs would have to move, more than {migration.moves_most}"
            return Reason("too_many_moves", text, {"moves": len(choice.rows)})
        moved = _move(cluster, known, demand, choice, fits_of, now_ns + migration.hold_ns)
        if not isinstance(moved, int):
            return _planned(demand, choice, moved, gain_us)
        eligible[moved] = False  # this one finds no other place
    return Reason("no_moves", "the jobs in the way find no other place")


def _move(
    cluster: Cluster, known: Candidates, demand: Demand, choice: Choice, fits_of: Callable[[Running], Fits],
    expires_ns: int,
) -> tuple[Hold, ...] | int:  # fmt: skip
    """The holds, that of the waiting job last; or the candidate that finds no other place."""
    before = cluster.journal.mark()
    runs = sorted(
        (-known.jobs[k].size, k) for k in choice.rows
    )  # large ones are the hardest to put elsewhere
    for _, k in runs:
        cluster.stop(known.jobs[k].job)
    places = {int(n): int(choice.counts[n]) * demand.each for n in np.flatnonzero(choice.counts)}
    kept = Hold.of(demand, places, expires_ns)
    cluster.hold(kept)
    holds: list[Hold] = []
    for _, k in runs:
        run = known.jobs[k]
        counts = fits_of(run)(np.maximum(cluster.free, 0) // run.each)
        if counts is None:
            cluster.journal.back_to(before)
            return k
        devices = {int(n): int(counts[n]) * run.each for n in np.flatnonzero(counts)}
        holds.append(Hold.of(run, devices, expires_ns))
        cluster.hold(holds[-1])
    return (*holds, kept)


def _planned(demand: Demand, choice: Choice, holds: Sequence[Hold], gain_us: int) -> Consolidation:
    price, gain = choice.cost / US_PER_HOUR, gain_us / US_PER_HOUR
    text = (
        f"moving {len(holds) - 1} job{'s' if len(holds) != 2 else ''} loses {price:.2f} device-hours "
        f"and saves {demand.size} devices {gain:.2f} device-hours of waiting"
    )
    figures: dict[str, int | float | str] = {
        "moves": len(holds) - 1, "price_us": choice.cost, "gain_us": gain_us,
    }  # fmt: skip
    because = Reason("consolidate", text, figures)
    return Consolidation(demand.job, tuple(holds[:-1]), choice.cost, gain_us, holds[-1], because)


def _too_dear(choice: Choice, gain_us: int) -> Reason:
    price, gain = choice.cost / US_PER_HOUR, gain_us / US_PER_HOUR
    text = f"moving {len(choice.rows)} jobs would lose {price:.2f} device-hours to win {gain:.2f}"
    return Reason("too_dear", text, {"price_us": choice.cost, "gain_us": gain_us})
