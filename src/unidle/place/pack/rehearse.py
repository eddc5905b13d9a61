"""Which of several policies packs most on a fleet: found out in rehearsals, before the first pod.

A rehearsal packs pods of the same distribution, in an order of its own, on the empty fleet; all candidates
meet the same arrivals, so that their differences are compared, which chance moves less than their shares.
Some candidates are plain policies. Whatever is taken should be below none of them, neither when the
capacity has been requested nor at the end, by more than chance: that comes first, then what is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.replay import WHOLE_FLEET, Prepared, replay
from unidle.place.pack.request import WHOLE_MILLI, Floats

_REQUESTED: Final = 1.3  # times the capacity
_AT_THE_END: Final = 3  # times as much as what is packed when the capacity has been requested
_SEED: Final = 1 << 40  # far from seeds that anyone would name
_STAGE: Final = 1_500  # nodes; a larger fleet is represented by every k-th
_WORK, _LESS, _LITTLE = 300_000, 200_000, 20_000  # decisions in all, but for the first round
# Rehearsals of each candidate that is left, and after how many decisions there are no more.
_ROUNDS: Final = ((2, _WORK), (2, _WORK), (4, _LESS), (8, _LITTLE), (16, _LITTLE))
_BEHIND_POINTS: Final = 0.15  # of the capacity: less is not worth dropping a candidate for
_SURE: Final = 2.0  # standard errors
_SAFE: Final = 1.0  # standard errors that the gain over the plain policies must exceed
NOTHING_POINTS: Final = 0.03  # of the capacity: less than that is no loss


@dataclass(slots=True)
class Standing:
    """What the candidates packed so far, in percent of the capacity; the first ``plain`` are the plain ones."""

    plain: int
    shares: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # one pair a rehearsal

    def of(self, k: int) -> Floats:
        """Shares of a candidate: (rehearsals, 2), when the capacity has been requested and at the end."""
        return np.array(self.shares[k])

    def worth(self, k: int) -> Floats:
        """One figure for both marks: (rehearsals,)."""
        weighed: Floats = self.of(k) @ np.array([1.0, _AT_THE_END]) / (1 + _AT_THE_END)
        return weighed

    def gain(self, k: int, errors: float) -> float:
        """The least mean difference to a plain policy at a mark, plus so many standard errors."""
        sums = (_bounds(self.of(k) - self.of(p), errors) for p in range(self.plain))
        return min(float(ends.min()) for ends in sums)

    def rank(self, k: int) -> tuple[float, float]:
        """Higher is better: safely not below the plain ones, then what is packed."""
        return min(0.0, self.gain(k, -_SAFE) + NOTHING_POINTS), float(self.worth(k).mean())

    def best(self, of: Sequence[int]) -> int:
        """The first where several are as good."""
        return max(of, key=self.rank)

    def left(self, of: Sequence[int]) -> list[int]:
        """Those that may still turn out the best, best first."""
        best = self.best(of)
        safe, _ = self.rank(best)
        kept: list[int] = []
        for k in sorted(of, key=self.rank, reverse=True):
            behind = self.worth(best) - self.worth(k)
            surely = float(_bounds(behind[:, None], -_SURE)[0])
            less = min(surely, float(behind.mean()) - _BEHIND_POINTS) > 0 and self.rank(k)[0] <= safe
            alike = any(self.shares[k] == self.shares[other] for other in kept)
            if k == best or not (less or alike or self.gain(k, _SURE) < safe - _BEHIND_POINTS):
                kept.append(k)
        return kept


def rehearsed(
    candidates: Sequence[Prepared], nodes: Sequence[NodeSize], demands: Sequence[Demand], plain: int
) -> Prepared:
    """The best of the candidates, of which the first ``plain`` are the plain ones (at least one)."""
    standing = rehearse(candidates, nodes, demands, plain)
    return candidates[standing.best(sorted(standing.shares))] if standing.shares else candidates[0]


def rehearse(
    candidates: Sequence[Prepared], nodes: Sequence[NodeSize], demands: Sequence[Demand], plain: int
) -> Standing:
    """The results of the candidates, in as many rehearsals as their variance and cost justify.

    Only candidates that were in all rehearsals are listed; the others were dropped because they were behind.
    Empty if no GPU is requested or the nodes have none.
    """
    standing = Standing(plain)
    stage = nodes[:: -(-len(nodes) // _STAGE) or 1]
    asked_milli = sum(demand.total_gpu_milli for demand in demands)
    capacity_milli = sum(node.gpus for node in stage) * WHOLE_MILLI
    if not asked_milli or not capacity_milli:
        return standing
    decisions = _REQUESTED * capacity_milli * len(demands) / asked_milli  # of one rehearsal, about
    left = list(range(len(candidates)))
    seed, spent = _SEED, 0.0
    for seeds, work in _ROUNDS:
        if spent:
            paid_for = int((work - spent) / (decisions * seeds))
            left = standing.left(left)[: max(0, paid_for - plain)]
            if len(left) < 2:
                break
        taking_part = sorted({*range(plain), *left})
        for k in taking_part:
            own = standing.shares.setdefault(k, [])
            for shift in range(seeds):
                outcome = replay(candidates[k], stage, demands, _REQUESTED, seed + shift)
                low, high = (outcome.allocated_pct.get(mark, 0.0) for mark in (WHOLE_FLEET, _REQUESTED))
                own.append((low, high))
        for k in standing.shares.keys() - set(taking_part):
            del standing.shares[k]
        seed += seeds
        spent += decisions * seeds * len(taking_part)
    return standing


def _bounds(differences: Floats, errors: float) -> Floats:
    """Means over rehearsals (axis 0) plus so many standard errors."""
    spread = differences.std(axis=0, ddof=1) / len(differences) ** 0.5
    bounds: Floats = differences.mean(axis=0) + errors * spread
    return bounds
