"""Whom to stop: the cheapest choice that takes from no queue more than it may.

``solve`` weighs gangs of several nodes by their devices on each, and ignores queues. Here it is called
repeatedly, by branch and bound with the cheapest bound first. Each branch stops or spares a whole gang, or
spares one of the jobs that together take too much. The choice is optimal if the number of solves suffices;
else it is the best that was found.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np

from unidle.place.queue.solve import Choice, Found, Solver
from unidle.place.queue.victims import Candidates, Mask, Rights

DIVES_MOST: Final = 16  # how often a choice that takes too much of a queue is repaired in one go
SOLVES_MOST: Final = 24
FEW: Final = 12
SOLVES_MOST_OF_FEW: Final = 1024  # of up to so many candidates
RANKS_MOST: Final = 64  # larger gangs take the first choice that may be made


class _Node(NamedTuple):
    least: float
    serial: int
    spared: frozenset[int]
    stopped: frozenset[int]
    found: Found


def cheapest(
    solver: Solver, known: Candidates, allowed: Mask, ranks: int, may: Rights | None = None
) -> Choice | None:
    """The choice for a gang of so many ranks that loses least; ``may`` bounds what is taken by queue.

    It is optimal if no node with scarce CPU or memory has more than ``hosts.JOBS_MOST`` jobs, the demand has
    no topology constraint beyond a domain, and the number of solves suffices.
    """
    return _Search(solver, known, allowed, may).run(ranks)


def prefix(known: Candidates, may: Rights, allowed: Mask) -> Mask:
    """The jobs that can all be stopped together, taken in order of cost per device."""
    order = np.lexsort((np.arange(len(allowed)), known.density))
    order = order[allowed[order]]
    good = may.within([known.jobs[k] for k in order], known.leaf[order].tolist())
    eligible = np.zeros(len(allowed), np.bool_)
    eligible[order[np.array(good, np.bool_)]] = True
    return eligible


class _Search:
    def __init__(self, solver: Solver, known: Candidates, allowed: Mask, may: Rights | None) -> None:
        self._solver, self._known, self._allowed, self._may = solver, known, allowed, may
        self._best: Choice | None = None
        self._left = SOLVES_MOST_OF_FEW if int(allowed.sum()) <= FEW else SOLVES_MOST

    def run(self, ranks: int) -> Choice | None:
        first = self._solver.cheapest(self._allowed)
        if first is None:
            return None
        self._dive(first)
        if ranks <= RANKS_MOST:
            self._branch(first)
        if self._best is None and self._may is not None:
            found = self._solver.cheapest(prefix(self._known, self._may, self._allowed))
            self._best = None if found is None else found.choice
        return self._best

    def _dive(self, found: Found | None) -> None:
        """Spare all jobs at once that take too much, until none does or there is no room."""
        known, spared = self._known, np.zeros(len(self._allowed), np.bool_)
        for _ in range(DIVES_MOST):
            if found is None or self._take(found.choice) or self._may is None:
                return
            rows = sorted(found.choice.rows, key=lambda k: (float(known.density[k]), k))
            good = self._may.within([known.jobs[k] for k in rows], [int(known.leaf[k]) for k in rows])
            spared[[k for k, ok in zip(rows, good, strict=True) if not ok]] = True
            found = self._solver.cheapest(self._allowed & ~spared)

    def _branch(self, first: Found) -> None:
        heap = [_Node(first.least, 0, frozenset(), frozenset(), first)]
        serial = 0
        while heap and self._left > 0:
            node = heapq.heappop(heap)
            if self._best is not None and node.least >= self._best.cost:
                return
            for spared, stopped in self._children(node):
                self._left -= 1
                eligible = self._allowed.copy()
                eligible[list(spared)] = False
                found = self._solver.cheapest(eligible, sorted(stopped))
                if found is not None and (self._best is None or found.least < self._best.cost):
                    self._take(found.choice)
                    serial += 1
                    heapq.heappush(heap, _Node(found.least, serial, spared, stopped, found))

    def _children(self, node: _Node) -> list[tuple[frozenset[int], frozenset[int]]]:
        """What to spare and whom to stop in any case: together they leave out nothing that may be chosen."""
        known = self._known
        split = [k for k in self._excess(node.found.choice.rows) if k not in node.stopped]
        if not split:
            gangs = [k for k in node.found.rows if known.spread[k] and k not in node.stopped]
            gangs.sort(key=lambda k: (-int(known.cost[k]), k))
            if not gangs:
                return []
            return [
                (node.spared | {gangs[0]}, node.stopped),
                (node.spared, node.stopped | {gangs[0]}),
            ]
        return [(node.spared | {k}, node.stopped.union(split[:at])) for at, k in enumerate(split)]

    def _take(self, choice: Choice) -> bool:
        """Whether this choice may be made; kept where it is the best so far."""
        if self._excess(choice.rows):
            return False
        if self._best is None or choice.cost < self._best.cost:
            self._best = choice
        return True

    def _excess(self, rows: tuple[int, ...]) -> list[int]:
        if self._may is None:
            return []
        known = self._known
        found = self._may.excess([known.jobs[k] for k in rows], [int(known.leaf[k]) for k in rows])
        return [rows[at] for at in found]
