"""CPU and memory that a gang's ranks need of their nodes, when room is made by stopping jobs.

Devices decide who is cheapest to stop; where the jobs stopped for them leave too little CPU or memory on a
node, others there are stopped as well, the cheapest for what they free first.
"""

from __future__ import annotations

import numpy as np

from unidle.place.queue.cluster import ranks_on
from unidle.place.queue.cover import Items
from unidle.place.queue.model import Demand, Ints
from unidle.place.queue.victims import Candidates


class HostNeeds:
    """What one demand needs of hosts. ``free`` is (2, nodes): CPU and memory that nobody holds, by node."""

    def __init__(self, known: Candidates, demand: Demand, free: Ints) -> None:
        self._known, self._demand, self._free = known, demand, free
        self._asks: Ints = np.array(demand.asks, np.int64)

    def and_of(self, row: int) -> HostNeeds:
        """The same where this candidate is stopped already."""
        other = HostNeeds(self._known, self._demand, self._free.copy())
        for node, devices in self._known.jobs[row].devices.items():
            other._free[:, node] += self._gain(row, devices)
        return other

    def most(self, items: Items) -> Ints:
        """Ranks for which each node has CPU and memory when all these items are stopped. Shape (nodes,)."""
        known, have = self._known, self._free.copy()
        ranks = items.devices // known.each[items.job]
        for r in range(2):
            np.add.at(have[r], items.node, known.asks[r, items.job] * ranks)
        return ranks_on(have, self._demand.asks, have.shape[1])

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
                    if row not in rows
                    and (share := self._share(row, int(items.devices[i]), missing[:, node]))
                }
                if not price:
                    break  # a gang that was stopped for another node frees the rest
                row = min(price, key=lambda row: (price[row], row))
                rows.add(row)
                for at, devices in self._known.jobs[row].devices.items():
                    missing[:, at] -= self._gain(row, devices)

    def spare(self, counts: Ints, rows: set[int]) -> Ints:
        """What is left on each node when these are stopped and the ranks are there. Shape (2, nodes)."""
        return -self._missing(counts, rows)

    def needed(self, spare: Ints, row: int) -> bool:
        """Whether the candidate cannot be spared; where it can, its part is taken off ``spare``."""
        held = self._known.jobs[row].devices
        gains = {node: self._gain(row, devices) for node, devices in held.items()}
        if any((spare[:, node] < gain).any() for node, gain in gains.items()):
            return True
        for node, gain in gains.items():
            spare[:, node] -= gain
        return False

    def _missing(self, counts: Ints, rows: set[int]) -> Ints:
        missing: Ints = self._asks[:, None] * counts - self._free
        missing[:, counts == 0] = -(1 << 61)  # nothing is needed there
        for row in rows:
            for node, devices in self._known.jobs[row].devices.items():
                missing[:, node] -= self._gain(row, devices)
        missing[self._asks == 0] = -(1 << 61)
        return missing

    def _gain(self, row: int, devices: int) -> Ints:
        gain: Ints = self._known.asks[:, row] * (devices // self._known.each[row])
        return gain

    def _share(self, row: int, devices: int, missing: Ints) -> float:
        """How much of what is missing the candidate frees, at most all of it of each."""
        wanted = missing > 0
        gain = np.minimum(self._gain(row, devices)[wanted] / missing[wanted], 1.0)
        return float(gain.sum())
