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
    """Columns, in order of node: on ``node[i]`` item ``i`` frees ``devices[i]`` at ``cost[i]``; ``job[i]`` owns it.

    It has ``ranks[i]`` ranks there, each with its CPU and memory.
    """

    node: Ints
    devices: Ints
    cost: Ints
    job: Ints
    ranks: Ints

    def __len__(self) -> int:
        return len(self.node)

    def take(self, pick: Ints | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Items:
        """The items of a mask or of indexes."""
        return Items(self.node[pick], self.devices[pick], self.cost[pick], self.job[pick], self.ranks[pick])


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


def rank_costs(best: Ints, free: Ints, each: int, most: int) -> Ints:
    """``[nodes, k + 1]``: the least cost of room for 0, 1, ... ``k <= most`` ranks of ``each`` devices.

    ``best`` is from :func:`cheapest`.
    """
    width = best.shape[1]
    ranks = np.arange(min(most, (width - 1 + int(free.max(initial=0))) // each) + 1)
    missing = np.maximum(ranks[None, :] * each - free[:, None], 0)
    return np.where(missing < width, np.take_along_axis(best, np.minimum(missing, width - 1), 1), NEVER)


def offers(cost: Ints) -> Steps:
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
    return Steps(node[order], count[order], price[order])


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
