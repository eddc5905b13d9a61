"""Whom to stop: the cheapest set of jobs whose devices make room for a gang, and takes from no queue more than it may.

Within one network domain gangs of several nodes are weighed by their devices on each, and queues are ignored (see
``preempt`` for the method). The search calls that repeatedly, by branch and bound with the cheapest bound first. Each
branch stops or spares a whole gang, or spares one of the jobs that together take too much. The choice is optimal if the
number of solves suffices; else it is the best that was found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.place.actions.knapsack import (
    HostNeeds,
    RankSteps,
    cheapest,
    choose,
    exact,
    exact_work,
    offers,
    rank_costs,
)
from unidle.place.model import NOTHING, Demand, Domains, Fits, Ints, Mask
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates, Items, Rights

DOMAINS_MOST: Final = 64
EXACT_WORK_MOST: Final = 1 << 18

_Made: TypeAlias = tuple[Ints, frozenset[int]]  # ranks by node, and whom to stop for them


class VictimChoice(NamedTuple):
    """Stop the candidates ``rows``, at ``cost`` device-microseconds, and put ``counts[node]`` ranks there."""

    counts: Ints
    rows: tuple[int, ...]
    cost: int


class SolverResult(NamedTuple):
    """A choice of some candidates; none that makes room with them loses less than ``least``.

    ``rows`` are the candidates chosen before those that are not needed were spared. If no gang of several nodes
    is among them and ``fits`` requires only room in a domain, the choice loses exactly ``least``.
    """

    choice: VictimChoice
    least: float
    rows: frozenset[int]


class _Way(NamedTuple):
    """One set of candidates: their items, the devices and hosts next to them, and ranks by node that may be there."""

    items: Items
    free: Ints
    hosts: HostNeeds | None
    bound: Ints
    stopped: tuple[int, ...]


class Solver:
    """Room for one demand, in one state of the cluster."""

    def __init__(
        self,
        known: Candidates,
        state: Allocations,
        demand: Demand,
        fits: Fits,
        domains: Domains | None = None,
    ) -> None:
        free, hosts = state.free_for(demand)
        self.free = free.copy()  # devices by node that the demand may use without stopping anyone
        self._known, self._demand, self._fits = known, demand, fits
        self._domains = domains or ((0, len(free)),)
        self._hosts: HostNeeds | None = None
        self._items = known.items
        if demand.asks != NOTHING:
            width = max(hosts.shape[1], 1)
            first = self._domains[0][0] // width * width
            self._hosts = HostNeeds(known, demand, np.tile(hosts, len(free) // width), first, width)
            self._items = self._hosts.items()

    def cheapest(self, eligible: Mask, stopped: Collection[int] = ()) -> SolverResult | None:
        """The cheapest found with these candidates, next to those that are ``stopped`` in any case.

        Gangs are weighed by their devices on each node alone. None where even all of them do not make room.
        """
        known, demand, free, hosts = self._known, self._demand, self.free, self._hosts
        if stopped:
            free, eligible = free.copy(), eligible.copy()
            eligible[list(stopped)] = False
            for k in stopped:
                for node, devices in known.jobs[k].devices.items():
                    free[node] += devices
                hosts = None if hosts is None else hosts.and_of(k)
        items = self._items.take(eligible[self._items.job])
        nodes = len(free)
        freed = np.bincount(items.node, items.devices, nodes).astype(np.int64)
        able = np.maximum(free + freed, 0) // demand.each
        bound = able if hosts is None else np.minimum(able, hosts.most(items))
        if int(bound.sum()) < demand.ranks:
            return None
        way = _Way(items, free, hosts, bound, tuple(stopped))
        most = min(int(freed.max(initial=0)), demand.size)
        cost = rank_costs(cheapest(items, nodes, most), free, demand.each, demand.ranks)
        if hosts is not None:
            cost = hosts.costs(cost, items, free, bound)
        return self._over_domains(cost, eligible, way)

    def _over_domains(self, cost: Ints, eligible: Mask, way: _Way) -> SolverResult | None:
        steps, ranks = offers(cost), self._demand.ranks
        paid = int(self._known.cost[list(way.stopped)].sum())
        gangs = bool(self._known.spread[eligible].any())
        best: VictimChoice | None = None
        rows: frozenset[int] = frozenset()
        low = float("inf")
        for tried, (least, start, end) in enumerate(self._by_bound(steps)):
            if best is not None and (least + paid >= best.cost or tried >= DOMAINS_MOST):
                low = min(low, least)
                break
            here = (steps.node >= start) & (steps.node < end)
            offered = RankSteps(steps.node[here], steps.ranks[here], steps.cost[here])
            ways = [self._on_steps(offered, way)]
            if ranks > 1 and exact_work(cost[start:end], ranks) <= EXACT_WORK_MOST:
                least, exactly = self._on_exact(cost, start, end, way)
                ways.append(exactly)
            if gangs:
                ways.append(self._on_jobs(eligible, way, start, end))
            if least < low:
                low, rows = least, frozenset()
            for made in ways:
                if made is not None:
                    best = _cheaper(best, self._pruned(*made))
                    rows |= made[1]
        return None if best is None else SolverResult(best, low + paid, rows)

    def _by_bound(self, steps: RankSteps) -> list[tuple[float, int, int]]:
        """Domains that could hold the gang, by the least that it costs there without its topology."""
        found = []
        for start, end in self._domains:
            here = (steps.node >= start) & (steps.node < end)
            ranks, cost = steps.ranks[here], steps.cost[here]
            total = np.cumsum(ranks)
            last = int(np.searchsorted(total, self._demand.ranks))
            if last < len(total):
                over = (total[last] - self._demand.ranks) / ranks[last]
                found.append((float(cost[: last + 1].sum() - over * cost[last]), start, end))
        return sorted(found)

    def _on_steps(self, steps: RankSteps, way: _Way) -> _Made | None:
        nodes = len(way.free)
        total = np.cumsum(steps.ranks)
        low = int(np.searchsorted(total, self._demand.ranks)) + 1

        def at(count: int) -> Ints | None:
            return self._fits(np.minimum(steps.room(count, nodes), way.bound))

        counts = _shortest(at, low, len(steps))
        return None if counts is None else self._freeing(counts, way)

    def _on_exact(self, cost: Ints, start: int, end: int, way: _Way) -> tuple[float, _Made | None]:
        """The least cost without the gang's topology, and how it is had where that allows it."""
        part = exact(cost[start:end], self._demand.ranks)
        if part is None:
            return float("inf"), None
        counts = np.zeros(len(way.free), np.int64)
        counts[start:end] = part
        least = float(cost[start + np.flatnonzero(part), part[part > 0]].sum())
        return least, None if self._fits(counts) is None else self._freeing(counts, way)

    def _freeing(self, counts: Ints, way: _Way) -> _Made:
        """The cheapest jobs that make room for these ranks, node by node."""
        items, free, hosts = way.items, way.free, way.hosts
        each = self._demand.each
        rows: set[int] = set()
        starts = np.searchsorted(items.node, np.arange(len(free) + 1))
        wanted = counts > 0 if hosts is not None else counts * each > free
        for node in np.flatnonzero(wanted).tolist():
            local, ranks = items.take(np.arange(starts[node], starts[node + 1])), int(counts[node])
            if hosts is not None:
                picked = hosts.choose(local, node, ranks, int(free[node]))
            else:
                picked = choose(local, ranks * each - int(free[node]))
            rows.update(local.job[picked].tolist())
        return self._completed(counts, rows, way)

    def _on_jobs(self, eligible: Mask, way: _Way, start: int, end: int) -> _Made | None:
        """Whole jobs in order of cost per device, as few of them as will do."""
        items, free = way.items, way.free
        nodes, each = len(free), self._demand.each
        inside = (items.node >= start) & (items.node < end)
        jobs = np.unique(items.job[inside])
        place = np.full(len(eligible), -1, np.int64)
        place[jobs[np.lexsort((jobs, self._known.density[jobs]))]] = np.arange(len(jobs))
        rank = place[items.job]

        def at(count: int) -> Ints | None:
            pick = inside & (rank < count)
            freed = np.bincount(items.node[pick], items.devices[pick], nodes).astype(np.int64)
            room = np.maximum(free + freed, 0) // each
            room[:start] = 0
            room[end:] = 0
            room = np.minimum(room, way.bound if way.hosts is None else way.hosts.most(items.take(pick)))
            return self._fits(room) if int(room.sum()) >= self._demand.ranks else None

        counts = _shortest(at, 0, len(jobs))
        if counts is None:
            return None
        need = counts * each - free
        useful = inside & (counts[items.node] > 0) & (need[items.node] > 0)
        order = np.argsort(rank[useful], kind="stable")
        rows: set[int] = set()
        for job, node, devices in zip(
            items.job[useful][order].tolist(), items.node[useful][order].tolist(),
            items.devices[useful][order].tolist(), strict=True,
        ):  # fmt: skip
            if need[node] > 0:
                rows.add(job)
                need[node] -= devices
        return self._completed(counts, rows, way)

    def _completed(self, counts: Ints, rows: set[int], way: _Way) -> _Made:
        if way.hosts is not None:
            way.hosts.complete(counts, rows, way.items)
        return counts, frozenset(rows).union(way.stopped)

    def _pruned(self, counts: Ints, rows: Collection[int]) -> VictimChoice:
        """Spare those that are not needed, the dearest first."""
        known = self._known
        spare = np.where(counts > 0, self.free - counts * self._demand.each, 1 << 40)
        for k in rows:
            for node, devices in known.jobs[k].devices.items():
                spare[node] += devices
        hosts = self._hosts
        host_spare = None if hosts is None else hosts.spare(counts, rows)
        kept = set(rows)
        for k in sorted(rows, key=lambda k: (-int(known.cost[k]), k)):
            held = known.jobs[k].devices
            if all(spare[node] >= devices for node, devices in held.items()):
                if hosts is not None and host_spare is not None and hosts.needed(host_spare, k):
                    continue
                kept.discard(k)
                for node, devices in held.items():
                    spare[node] -= devices
        return VictimChoice(counts, tuple(sorted(kept)), int(sum(int(known.cost[k]) for k in kept)))


def _cheaper(a: VictimChoice | None, b: VictimChoice | None) -> VictimChoice | None:
    """The cheaper one, the first of equals."""
    if a is None or b is None:
        return a or b
    return b if b.cost < a.cost else a


def _shortest(at: Callable[[int], Ints | None], low: int, high: int) -> Ints | None:
    """What ``at`` gives at the least count from ``low`` to ``high`` where it gives anything; more never hurts."""
    if low > high:
        return None
    step, reached, found = 1, low, at(low)
    while found is None:  # mostly near the low end
        if reached == high:
            return None
        low, reached = reached + 1, min(reached + step, high)
        step *= 4
        found = at(reached)
    while low < reached:
        middle = (low + reached) // 2
        better = at(middle)
        if better is None:
            low = middle + 1
        else:
            reached, found = middle, better
    return found


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
    found: SolverResult


def cheapest_choice(
    solver: Solver, known: Candidates, allowed: Mask, ranks: int, may: Rights | None = None
) -> VictimChoice | None:
    """The choice for a gang of so many ranks that loses least; ``may`` bounds what is taken by queue.

    It is optimal if no node with scarce CPU or memory has more than ``knapsack.JOBS_MOST`` jobs, the demand has
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
        self._best: VictimChoice | None = None
        self._left = SOLVES_MOST_OF_FEW if int(allowed.sum()) <= FEW else SOLVES_MOST

    def run(self, ranks: int) -> VictimChoice | None:
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

    def _dive(self, found: SolverResult | None) -> None:
        """Spare all jobs at once that take too much, until none does or there is no room."""
        known, spared = self._known, np.zeros(len(self._allowed), np.bool_)
        for _ in range(DIVES_MOST):
            if found is None or self._take(found.choice) or self._may is None:
                return
            rows = sorted(found.choice.rows, key=lambda k: (float(known.density[k]), k))
            good = self._may.within([known.jobs[k] for k in rows], [int(known.leaf[k]) for k in rows])
            spared[[k for k, ok in zip(rows, good, strict=True) if not ok]] = True
            found = self._solver.cheapest(self._allowed & ~spared)

    def _branch(self, first: SolverResult) -> None:
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

    def _take(self, choice: VictimChoice) -> bool:
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
