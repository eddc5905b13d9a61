"""The cheapest way to free devices on every node at once, by dynamic programming over NumPy arrays.

``items`` are what can be stopped on a node: each frees some devices there at a cost. A job on
several nodes is an item on each, at its cost by devices; the choice that follows counts it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.place.queue.model import Ints

NEVER: Final = np.int64(1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Columns, in order of node: on ``node[i]`` item ``i`` frees ``devices[i]`` at ``cost[i]``; ``job[i]`` owns it."""

    node: Ints
    devices: Ints
    cost: Ints
    job: Ints

    def __len__(self) -> int:
        return len(self.node)

    def take(self, pick: Ints | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Items:
        """The items of a mask or of indexes."""
        return Items(self.node[pick], self.devices[pick], self.cost[pick], self.job[pick])


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
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


def offers(best: Ints, free: Ints, each: int, most: int) -> Steps:
    """Room by cost: the lower convex hull of each node's cost of 1, 2, ... ranks, as steps in order of cost.

    ``best`` is from :func:`cheapest`; a node offers at most ``most`` ranks of ``each`` devices.
    Along a hull the cost per rank only grows, so taking steps in order is best for every node alone.
    """
    nodes, width = best.shape
    ranks = np.arange(min(most, (width - 1 + int(free.max(initial=0))) // each) + 1)
    missing = np.maximum(ranks[None, :] * each - free[:, None], 0)
    cost = np.where(missing < width, np.take_along_axis(best, np.minimum(missing, width - 1), 1), NEVER)
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
    return Steps(node[order], count[order], price[order])


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
