"""The cheapest set of jobs whose devices make room for a gang, within one network domain.

See ``preempt`` for the method. What may be stopped is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.place.queue.cluster import Cluster
from unidle.place.queue.cover import Items, Steps, cheapest, choose, offers
from unidle.place.queue.model import Demand, Fits, Ints
from unidle.place.queue.victims import Candidates, Mask

DOMAINS_MOST: Final = 64

Domains: TypeAlias = Sequence[tuple[int, int]]


class Choice(NamedTuple):
    """Stop the candidates ``rows``, at ``cost`` device-microseconds, and put ``counts[node]`` ranks there."""

    counts: Ints
    rows: tuple[int, ...]
    cost: int


class Solver:
    """Room for one demand, in one state of the cluster."""

    def __init__(
        self, known: Candidates, free: Ints, demand: Demand, fits: Fits, domains: Domains | None = None
    ) -> None:
        """``free``: devices by node that the demand may use without stopping anyone."""
        self.free = free
        self._known, self._demand, self._fits = known, demand, fits
        self._domains = domains or ((0, len(free)),)

    def cheapest(self, eligible: Mask) -> Choice | None:
        """The choice that loses least, of these candidates; None where even all of them do not make room."""
        known, demand, free = self._known, self._demand, self.free
        items = known.items.take(eligible[known.items.job])
        nodes = len(free)
        freed = np.bincount(items.node, items.devices, nodes).astype(np.int64)
        if int((np.maximum(free + freed, 0) // demand.each).sum()) < demand.ranks:
            return None
        most = min(int(freed.max(initial=0)), demand.size)
        steps = offers(cheapest(items, nodes, most), free, demand.each, demand.ranks)
        gangs = bool(known.spread[eligible].any())
        best: Choice | None = None
        for bound, start, end in self._by_bound(steps):
            if best is not None and bound >= best.cost:
                break
            here = (steps.node >= start) & (steps.node < end)
            offered = Steps(steps.node[here], steps.ranks[here], steps.cost[here])
            found = [self._on_steps(offered, items)]
            if gangs:
                found.append(self._on_jobs(eligible, items, start, end))
            for choice in found:
                if choice is not None and (best is None or choice.cost < best.cost):
                    best = choice
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

    def _on_steps(self, steps: Steps, items: Items) -> Choice | None:
        nodes = len(self.free)
        total = np.cumsum(steps.ranks)
        low = int(np.searchsorted(total, self._demand.ranks)) + 1

        def at(count: int) -> Ints | None:
            return self._fits(steps.room(count, nodes))

        counts = _shortest(at, low, len(steps))
        if counts is None:
            return None
        need = counts * self._demand.each - self.free
        rows: set[int] = set()
        starts = np.searchsorted(items.node, np.arange(nodes + 1))
        for node in np.flatnonzero((counts > 0) & (need > 0)).tolist():
            first, end = int(starts[node]), int(starts[node + 1])
            local = items.take(np.arange(first, end))
            rows.update(local.job[choose(local, int(need[node]))].tolist())
        return self._pruned(counts, rows)

    def _on_jobs(self, eligible: Mask, items: Items, start: int, end: int) -> Choice | None:
        """Whole jobs in order of cost per device, as few of them as will do."""
        nodes, each = len(self.free), self._demand.each
        inside = (items.node >= start) & (items.node < end)
        jobs = np.unique(items.job[inside])
        place = np.full(len(eligible), -1, np.int64)
        place[jobs[np.lexsort((jobs, self._known.density[jobs]))]] = np.arange(len(jobs))
        rank = place[items.job]

        def at(count: int) -> Ints | None:
            pick = inside & (rank < count)
            freed = np.bincount(items.node[pick], items.devices[pick], nodes).astype(np.int64)
            room = np.maximum(self.free + freed, 0) // each
            room[:start] = 0
            room[end:] = 0
            return self._fits(room) if int(room.sum()) >= self._demand.ranks else None

        counts = _shortest(at, 0, len(jobs))
        if counts is None:
            return None
        need = counts * each - self.free
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
        return self._pruned(counts, rows)

    def _pruned(self, counts: Ints, rows: set[int]) -> Choice:
        """Spare those that are not needed, the dearest first."""
        known = self._known
        spare = np.where(counts > 0, self.free - counts * self._demand.each, 1 << 40)
        for k in rows:
            for node, devices in known.jobs[k].devices.items():
                spare[node] += devices
        kept = set(rows)
        for k in sorted(rows, key=lambda k: (-int(known.cost[k]), k)):
            held = known.jobs[k].devices
            if all(spare[node] >= devices for node, devices in held.items()):
                kept.discard(k)
                for node, devices in held.items():
                    spare[node] -= devices
        return Choice(counts, tuple(sorted(kept)), int(sum(int(known.cost[k]) for k in kept)))


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


def free_for(cluster: Cluster, demand: Demand) -> Ints:
    free = cluster.free.copy()
    kept = cluster.holds.get(demand.job)
    if kept is not None:
        for node, devices in kept.devices.items():
            free[node] += devices
    return free
