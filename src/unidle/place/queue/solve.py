"""The cheapest set of jobs whose devices make room for a gang, within one network domain.

See ``preempt`` for the method. What may be stopped is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.place.queue.cluster import Cluster
from unidle.place.queue.cover import (
    NEVER,
    Items,
    Steps,
    cheapest,
    choose,
    exact,
    exact_work,
    offers,
    rank_costs,
)  # fmt: skip
from unidle.place.queue.hosts import HostNeeds
from unidle.place.queue.model import NOTHING, Demand, Fits, Ints
from unidle.place.queue.victims import Candidates, Mask

DOMAINS_MOST: Final = 64
EXACT_WORK_MOST: Final = 1 << 18
# where gangs can be stopped, other sets of them are tried for gangs up to this size
SEARCH_RANKS_MOST: Final = 64
SEARCH_GANGS_MOST: Final = 6
SEARCH_ROUNDS: Final = 3

Domains: TypeAlias = Sequence[tuple[int, int]]


class Choice(NamedTuple):
    """Stop the candidates ``rows``, at ``cost`` device-microseconds, and put ``counts[node]`` ranks there."""

    counts: Ints
    rows: tuple[int, ...]
    cost: int


class _Way(NamedTuple):
    """One set of candidates: their items, the devices and hosts beside them, and ranks by node that may be there."""

    items: Items
    free: Ints
    hosts: HostNeeds | None
    bound: Ints


class Solver:
    """Room for one demand, in one state of the cluster."""

    def __init__(
        self, known: Candidates, cluster: Cluster, demand: Demand, fits: Fits, domains: Domains | None = None
    ) -> None:
        free, hosts = cluster.free_for(demand)
        self.free = free.copy()  # devices by node that the demand may use without stopping anyone
        self._known, self._demand, self._fits = known, demand, fits
        self._domains = domains or ((0, len(free)),)
        self._hosts: HostNeeds | None = None
        if demand.asks != NOTHING:
            self._hosts = HostNeeds(known, demand, np.tile(hosts, len(free) // max(hosts.shape[1], 1)))

    def cheapest(self, eligible: Mask) -> Choice | None:
        """The choice that loses least, of these candidates; None where even all of them do not make room."""
        best = self._without_search(eligible, self.free, self._hosts)
        if best is None or not best.rows or self._demand.ranks > SEARCH_RANKS_MOST:
            return best
        if not self._known.spread[eligible].any():
            return best
        for _ in range(SEARCH_ROUNDS):
            better = self._other_gangs(eligible, best)
            if better is None:
                break
            best = better
        return best

    def _other_gangs(self, eligible: Mask, best: Choice) -> Choice | None:
        """A cheaper choice that spares a gang of this one, or stops another gang whole."""
        known = self._known
        gangs = np.flatnonzero(eligible & known.spread)
        near = gangs[np.lexsort((gangs, known.density[gangs]))][:SEARCH_GANGS_MOST].tolist()
        found: Choice | None = None
        for k in [k for k in best.rows if known.spread[k]][:SEARCH_GANGS_MOST]:
            found = _cheaper(found, self._without_search(_but(eligible, k), self.free, self._hosts))
        for k in near:
            if k in best.rows or int(known.cost[k]) >= best.cost:
                continue
            free = self.free.copy()
            for node, devices in known.jobs[k].devices.items():
                free[node] += devices
            hosts = None if self._hosts is None else self._hosts.and_of(k)
            rest = self._without_search(_but(eligible, k), free, hosts)
            if rest is not None:
                found = _cheaper(found, self._pruned(rest.counts, {*rest.rows, k}))
        return found if found is not None and found.cost < best.cost else None

    def _without_search(self, eligible: Mask, free: Ints, hosts: HostNeeds | None) -> Choice | None:
        """The cheapest of the domains' choices, gangs weighed by their devices on each node alone."""
        known, demand = self._known, self._demand
        items = known.items.take(eligible[known.items.job])
        nodes = len(free)
        freed = np.bincount(items.node, items.devices, nodes).astype(np.int64)
        able = np.maximum(free + freed, 0) // demand.each
        bound = able if hosts is None else np.minimum(able, hosts.most(items))
        if int(bound.sum()) < demand.ranks:
            return None
        way = _Way(items, free, hosts, bound)
        most = min(int(freed.max(initial=0)), demand.size)
        cost = rank_costs(cheapest(items, nodes, most), free, demand.each, demand.ranks)
        if hosts is not None:
            cost[np.arange(cost.shape[1])[None, :] > bound[:, None]] = NEVER
        steps = offers(cost)
        gangs = bool(known.spread[eligible].any())
        best: Choice | None = None
        for least, start, end in self._by_bound(steps):
            if best is not None and least >= best.cost:
                break
            here = (steps.node >= start) & (steps.node < end)
            offered = Steps(steps.node[here], steps.ranks[here], steps.cost[here])
            best = _cheaper(best, self._on_steps(offered, way))
            if demand.ranks > 1 and exact_work(cost[start:end], demand.ranks) <= EXACT_WORK_MOST:
                best = _cheaper(best, self._on_exact(cost, start, end, way))
            if gangs:
                best = _cheaper(best, self._on_jobs(eligible, way, start, end))
        return best

    def _by_bound(self, steps: Steps) -> list[tuple[float, int, int]]:
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
        return sorted(found)[:DOMAINS_MOST]

    def _on_steps(self, steps: Steps, way: _Way) -> Choice | None:
        nodes = len(way.free)
        total = np.cumsum(steps.ranks)
        low = int(np.searchsorted(total, self._demand.ranks)) + 1

        def at(count: int) -> Ints | None:
            return self._fits(np.minimum(steps.room(count, nodes), way.bound))

        counts = _shortest(at, low, len(steps))
        return None if counts is None else self._freeing(counts, way)

    def _on_exact(self, cost: Ints, start: int, end: int, way: _Way) -> Choice | None:
        part = exact(cost[start:end], self._demand.ranks)
        if part is None:
            return None
        counts = np.zeros(len(way.free), np.int64)
        counts[start:end] = part
        return None if self._fits(counts) is None else self._freeing(counts, way)

    def _freeing(self, counts: Ints, way: _Way) -> Choice:
        """The cheapest jobs that free what these ranks need, node by node."""
        items, free = way.items, way.free
        need = counts * self._demand.each - free
        rows: set[int] = set()
        starts = np.searchsorted(items.node, np.arange(len(free) + 1))
        for node in np.flatnonzero((counts > 0) & (need > 0)).tolist():
            first, end = int(starts[node]), int(starts[node + 1])
            local = items.take(np.arange(first, end))
            rows.update(local.job[choose(local, int(need[node]))].tolist())
        return self._completed(counts, rows, way)

    def _on_jobs(self, eligible: Mask, way: _Way, start: int, end: int) -> Choice | None:
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
            room = np.minimum(room, way.bound)
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

    def _completed(self, counts: Ints, rows: set[int], way: _Way) -> Choice:
        if way.hosts is not None:
            way.hosts.complete(counts, rows, way.items)
        return self._pruned(counts, rows)

    def _pruned(self, counts: Ints, rows: set[int]) -> Choice:
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
        return Choice(counts, tuple(sorted(kept)), int(sum(int(known.cost[k]) for k in kept)))


def _cheaper(a: Choice | None, b: Choice | None) -> Choice | None:
    """The cheaper one, the first of equals."""
    if a is None or b is None:
        return a or b
    return b if b.cost < a.cost else a


def _but(eligible: Mask, row: int) -> Mask:
    rest = eligible.copy()
    rest[row] = False
    return rest


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
