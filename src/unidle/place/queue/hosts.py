"""CPU and memory that a gang's ranks need of their nodes, when room is made by stopping jobs.

A set of jobs on a node makes room for as many ranks as its devices, CPU and memory allow. On a node with few
jobs all sets are evaluated. On others the cheapest jobs to stop are chosen by devices alone. If that leaves
too little CPU or memory, more jobs there are stopped, first those that cost the least for what they free.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from unidle.place.queue.cluster import ranks_on
from unidle.place.queue.cover import NEVER, Items, choose
from unidle.place.queue.model import Demand, Ints
from unidle.place.queue.victims import Candidates, Mask

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
