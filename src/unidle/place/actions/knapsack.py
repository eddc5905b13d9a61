"""The cheapest jobs on one node that free so many devices, and so much CPU and memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.place.model import Demand, Ints, Mask
from unidle.place.queue.state import ranks_on
from unidle.place.queue.victims import Candidates, Items

NEVER: Final = np.int64(1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class RankSteps:
    """Offers of room, the cheapest per rank first: ``ranks[s]`` more on ``node[s]`` for ``cost[s]`` more."""

    node: Ints
    ranks: Ints
    cost: Ints

    def __len__(self) -> int:
        return len(self.node)

    def room(self, count: int, nodes: int) -> Ints:
        """Ranks per node when the first ``count`` offers are taken."""
        room = np.zeros(nodes, np.int64)
        np.add.at(room, self.node[:count], self.ranks[:count])
        return room


def cheapest(items: Items, nodes: int, most: int) -> Ints:
    """``[nodes, most + 1]``: the least cost of freeing at least ``x`` devices on each node.

    Exact where every job is on one node. Work: items of the fullest node x nodes x most.
    """
    best = np.full((nodes, most + 1), NEVER, np.int64)
    best[:, 0] = 0
    if not len(items) or not most:
        return best
    first = np.flatnonzero(np.concatenate(([True], items.node[1:] != items.node[:-1])))
    sizes = np.diff(np.append(first, len(items)))
    owner = items.node[first]
    wanted = np.arange(most + 1)
    for k in range(int(sizes.max())):
        there = sizes > k
        at, rows = first[there] + k, owner[there]
        rest = np.maximum(wanted[None, :] - items.devices[at][:, None], 0)
        before = best[rows]
        with_item = np.take_along_axis(before, rest, 1) + items.cost[at][:, None]
        best[rows] = np.minimum(before, with_item)
    return np.minimum(best, NEVER)


def rank_costs(best: Ints, free: Ints, each: int, most: int) -> Ints:
    """``[nodes, k + 1]``: the least cost of room for 0, 1, ... ``k <= most`` ranks of ``each`` devices.

    ``best`` is from :func:`cheapest`.
    """
    width = best.shape[1]
    ranks = np.arange(min(most, (width - 1 + int(free.max(initial=0))) // each) + 1)
    missing = np.maximum(ranks[None, :] * each - free[:, None], 0)
    return np.where(missing < width, np.take_along_axis(best, np.minimum(missing, width - 1), 1), NEVER)


def offers(cost: Ints) -> RankSteps:
    """Room by cost: the lower convex hull of each node's cost of 1, 2, ... ranks, as steps in order of cost.

    ``cost`` is from :func:`rank_costs`. Along a hull the cost per rank only grows, so taking steps
    in order is best for every node alone.
    """
    nodes, width = cost.shape
    ranks = np.arange(width)
    at = np.zeros(nodes, np.int64)
    found: list[tuple[Ints, Ints, Ints]] = []
    alive = np.arange(nodes)
    while len(alive):
        base = cost[alive, at[alive]]
        gained = ranks[None, :] - at[alive][:, None]
        more = cost[alive] - base[:, None]
        open_ = (gained > 0) & (cost[alive] < NEVER)
        slope = np.where(open_, more / np.maximum(gained, 1), np.inf)
        # of equal slopes the farthest, so that a hull has as few steps as can be
        to = slope.shape[1] - 1 - np.argmin(slope[:, ::-1], axis=1)
        some = open_.any(axis=1)
        alive, to = alive[some], to[some]
        found.append((alive, ranks[to] - at[alive], cost[alive, to] - cost[alive, at[alive]]))
        at[alive] = to
    node, count, price = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((node, price / np.maximum(count, 1)))
    return RankSteps(node[order], count[order], price[order])


def exact(cost: Ints, ranks: int) -> Ints | None:
    """Ranks per node that sum to ``ranks`` at the least cost (dynamic programming); None where they do not fit.

    Work: nodes that can matter x their ranks x ``ranks``, see :func:`exact_work`.
    """
    kept = _that_matter(cost, ranks)
    best = np.full(ranks + 1, NEVER, np.int64)
    best[0] = 0
    back = np.zeros((len(kept), ranks + 1), np.int64)
    width = min(cost.shape[1], ranks + 1)
    for row, node in enumerate(kept.tolist()):
        tried = np.full((width, ranks + 1), NEVER, np.int64)
        for k in range(width):
            if cost[node, k] < NEVER:
                tried[k, k:] = best[: ranks + 1 - k] + cost[node, k]
        back[row] = np.argmin(tried, axis=0)
        best = np.minimum(tried.min(axis=0), NEVER)
    if best[ranks] >= NEVER:
        return None
    counts = np.zeros(len(cost), np.int64)
    left = ranks
    for row in range(len(kept) - 1, -1, -1):
        counts[kept[row]] = back[row, left]
        left -= int(back[row, left])
    return counts


def exact_work(cost: Ints, ranks: int) -> int:
    """About how many elementary steps :func:`exact` takes."""
    width = min(cost.shape[1], ranks + 1)
    return int(min(len(cost), ranks * (width - 1)) * width * (ranks + 1))


def _that_matter(cost: Ints, ranks: int) -> Ints:
    """Nodes that are among the cheapest for some number of ranks; others are never needed."""
    kept: set[int] = set()
    for k in range(1, min(cost.shape[1], ranks + 1)):
        cheapest_first = np.argsort(cost[:, k], kind="stable")[:ranks]
        kept.update(cheapest_first[cost[cheapest_first, k] < NEVER].tolist())
    return np.array(sorted(kept), np.int64)


def choose(items: Items, need: int) -> list[int]:
    """Indexes of the cheapest items, all of one node, that free at least ``need`` devices; [] if none do."""
    if need <= 0:
        return []
    best = [0] + [int(NEVER)] * need
    taken: list[tuple[int, ...]] = [()] * (need + 1)
    sizes, costs = items.devices.tolist(), items.cost.tolist()
    for k, (size, cost) in enumerate(zip(sizes, costs, strict=True)):
        for want in range(need, 0, -1):
            rest = max(want - size, 0)
            if best[rest] + cost < best[want]:
                best[want], taken[want] = best[rest] + cost, (*taken[rest], k)
    return list(taken[need])


JOBS_MOST: Final = 12
"""Of a node with up to so many jobs that could be stopped, the cheapest set is found; with more, a good one."""
_CELLS: Final = 1 << 20  # looked at together


class HostNeeds:
    """What one demand needs of hosts. ``free`` is (2, nodes): CPU and memory that no job holds, by node.

    The nodes are those of the demand's kind of devices: ``hosts`` of them, starting at ``first``. A job that
    holds devices of another kind on the same host is counted there.
    """

    def __init__(self, known: Candidates, demand: Demand, free: Ints, first: int, hosts: int) -> None:
        self._known, self._demand, self._free = known, demand, free
        self._first, self._hosts = first, hosts
        self._asks: Ints = np.array(demand.asks, np.int64)

    def items(self) -> Items:
        """All candidates, those of other kinds of devices with what they hold of the demand's hosts."""
        items = self._known.items
        other = items.node // self._hosts != self._first // self._hosts
        if not other.any():
            return items
        node = self._first + items.node % self._hosts
        order = np.lexsort((items.job, self._known.density[items.job], node))
        devices = np.where(other, 0, items.devices)
        return Items(node, devices, items.cost, items.job, items.ranks).take(order)

    def and_of(self, row: int) -> HostNeeds:
        """The same where this candidate is stopped already."""
        other = HostNeeds(self._known, self._demand, self._free.copy(), self._first, self._hosts)
        for node, gain in self._held(row):
            other._free[:, node] += gain
        return other

    def most(self, items: Items) -> Ints:
        """Ranks for which each node has CPU and memory when all these items are stopped. Shape (nodes,)."""
        have = self._free.copy()
        for r, gain in enumerate(self._gains(items)):
            np.add.at(have[r], items.node, gain)
        return ranks_on(have, self._demand.asks, have.shape[1])

    def costs(self, cost: Ints, items: Items, devices: Ints, bound: Ints) -> Ints:
        """``cost[node, k]`` of room for ``k`` ranks by devices alone, made right for CPU and memory.

        ``devices`` are free by node, and ``bound`` ranks are the most that each could hold.
        """
        made = cost.copy()
        made[np.arange(cost.shape[1])[None, :] > bound[:, None]] = NEVER
        starts = np.searchsorted(items.node, np.arange(len(devices) + 1))
        count = np.diff(starts)
        tight = self._tight(items, devices, bound) & (count <= JOBS_MOST)
        for jobs in np.unique(count[tight]).tolist():
            nodes = np.flatnonzero(tight & (count == jobs))
            step = max(_CELLS >> jobs, 1)
            for at in range(0, len(nodes), step):
                some = nodes[at : at + step]
                picked = items.take((starts[some][:, None] + np.arange(jobs)).reshape(-1))
                made[some] = self._cheapest_sets(picked, some, devices, made.shape[1])
        return made

    def choose(self, items: Items, node: int, ranks: int, devices: int) -> list[int]:
        """Indexes of the cheapest of these items, all of ``node``, that make room for so many ranks next to the
        free ``devices``; by devices alone where there are too many jobs."""
        need = ranks * self._demand.each - devices
        if len(items) > JOBS_MOST:
            return choose(items, need)
        if (self._asks * ranks <= self._free[:, node]).all():
            return choose(items, need)
        room, price = self._sets(items, np.array([node]), np.array([devices]))
        best = int(np.argmin(np.where(room[0] >= ranks, price[0], NEVER)))
        return [k for k in range(len(items)) if best >> k & 1]

    def complete(self, counts: Ints, rows: set[int], items: Items) -> None:
        """Add candidates until each node has what its ranks need; to be called within :meth:`most` only."""
        missing = self._missing(counts, rows)
        starts = np.searchsorted(items.node, np.arange(len(counts) + 1))
        for node in np.flatnonzero((missing > 0).any(axis=0)).tolist():
            local = range(int(starts[node]), int(starts[node + 1]))
            others = {int(items.job[i]): i for i in local}
            while (missing[:, node] > 0).any():
                price = {
                    row: int(items.cost[i]) / share
                    for row, i in others.items()
                    if row not in rows and (share := self._share(row, int(items.ranks[i]), missing[:, node]))
                }
                if not price:
                    break  # a gang that was stopped for another node frees the rest
                row = min(price, key=lambda row: (price[row], row))
                rows.add(row)
                for at, gain in self._held(row):
                    missing[:, at] -= gain

    def spare(self, counts: Ints, rows: Collection[int]) -> Ints:
        """What is left on each node when these are stopped and the ranks are there. Shape (2, nodes)."""
        return -self._missing(counts, rows)

    def needed(self, spare: Ints, row: int) -> bool:
        """Whether the candidate cannot be spared; where it can, its part is taken off ``spare``."""
        held = self._held(row)
        if any((spare[:, node] < gain).any() for node, gain in held):
            return True
        for node, gain in held:
            spare[:, node] -= gain
        return False

    def _tight(self, items: Items, devices: Ints, bound: Ints) -> Mask:
        """Nodes that may have too little CPU or memory for the room by devices. Shape (nodes,).

        A node has enough if it suffices for the bound now. It also has enough if the free part and each job
        have at least as much per device as a rank requests.
        """
        each, asks = self._demand.each, self._asks[:, None]
        short = (self._free < asks * bound).any(axis=0)
        thin: Mask = np.any(self._free * each < asks * np.maximum(devices, 0), axis=0)
        thin[items.node[(self._gains(items) * each < asks * items.devices).any(axis=0)]] = True
        return np.logical_and(short, thin)

    def _cheapest_sets(self, items: Items, nodes: Ints, devices: Ints, width: int) -> Ints:
        """``[nodes, width]``: the least cost of room for 0, 1, ... ranks; as many items of each node, node by node."""
        room, price = self._sets(items, nodes, devices[nodes])
        cost = np.full((len(nodes), width), NEVER, np.int64)
        for k in range(width):
            cost[:, k] = np.where(room >= k, price, NEVER).min(axis=1)
        cost[:, 0] = 0
        return cost

    def _sets(self, items: Items, nodes: Ints, devices: Ints) -> tuple[Ints, Ints]:
        """Ranks that fit, and the cost, of each set of a node's items. Shapes (nodes, sets)."""
        jobs = len(items) // len(nodes)
        member = (np.arange(1 << jobs)[None, :] >> np.arange(jobs)[:, None] & 1).astype(np.int64)

        def of(each: Ints) -> Ints:
            total: Ints = each.reshape(len(nodes), jobs) @ member
            return total

        room = np.maximum(devices[:, None] + of(items.devices), 0) // self._demand.each
        for have, asked, gain in zip(self._free, self._asks.tolist(), self._gains(items), strict=True):
            if asked:
                room = np.minimum(room, np.maximum(have[nodes][:, None] + of(gain), 0) // asked)
        return room, of(items.cost)

    def _missing(self, counts: Ints, rows: Collection[int]) -> Ints:
        missing: Ints = self._asks[:, None] * counts - self._free
        missing[:, counts == 0] = -(1 << 61)  # nothing is needed there
        for row in rows:
            for node, gain in self._held(row):
                missing[:, node] -= gain
        missing[self._asks == 0] = -(1 << 61)
        return missing

    def _gains(self, items: Items) -> Ints:
        """CPU and memory that each item frees. Shape (2, items)."""
        gains: Ints = self._known.asks[:, items.job] * items.ranks
        return gains

    def _held(self, row: int) -> list[tuple[int, Ints]]:
        """CPU and memory that a candidate holds, by node."""
        asks, each = self._known.asks[:, row], int(self._known.each[row])
        held = self._known.jobs[row].devices.items()
        return [(self._first + node % self._hosts, asks * (devices // each)) for node, devices in held]

    def _share(self, row: int, ranks: int, missing: Ints) -> float:
        """How much of what is missing the candidate frees, at most all of it of each."""
        wanted = missing > 0
        gain = np.minimum((self._known.asks[:, row] * ranks)[wanted] / missing[wanted], 1.0)
        return float(gain.sum())
