"""Which GPUs of one node a rank gets: several the best connected set that fits, one the worst connected."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.fleet.links import SELF, GpuLinks, closeness
from unidle.jobs import Reason

# All sets are looked at up to here (16 choose 8 is 12,870), beyond that they are grown one by one.
_SETS: Final = 20_000

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """GPUs by their index on the node, ascending."""

    gpus: tuple[int, ...]
    because: Reason


def choose_gpus(links: GpuLinks, free: Sequence[int], count: int) -> Choice | None:
    """``count`` of the ``free`` GPUs (indices on the node), or None where there are fewer.

    Sets compare by their weakest link, then by the sum of their links, then by how few NUMA nodes they
    touch, then by how well connected those that stay free are; the lowest indices break the tie. Of
    single GPUs the one goes whose loss costs the others least.
    """
    given = sorted(set(free))
    if count < 1 or len(given) < count:
        return None
    near = _near(links, given)
    numa = _numa(links, given)
    sets = _all_sets(len(given), count) if comb(len(given), count) <= _SETS else _grown(near, count)
    weakest, total = _inside(near, sets)
    spread = np.array([len(set(numa[row].tolist())) for row in sets])
    rest = _rest(near, sets)
    order = np.lexsort((np.arange(len(sets)), -rest, spread, -total, -weakest))
    best = sets[order[0]]
    gpus = tuple(given[k] for k in best)
    return Choice(gpus, _because(links, gpus, len(given)))


def _near(links: GpuLinks, gpus: Sequence[int]) -> Ints:
    at = [links.gpus.index(gpu) for gpu in gpus]
    rows = [[0 if links.ways[i][k] == SELF else closeness(links.ways[i][k]) for k in at] for i in at]
    return np.array(rows, dtype=np.int64).reshape(len(at), len(at))


def _numa(links: GpuLinks, gpus: Sequence[int]) -> Ints:
    known = links.numa or (None,) * len(links.gpus)
    nodes = (known[links.gpus.index(gpu)] for gpu in gpus)
    return np.array([-1 if node is None else node for node in nodes], dtype=np.int64)


def _all_sets(n: int, count: int) -> Ints:
    return np.array(list(itertools.combinations(range(n), count)), dtype=np.int64).reshape(-1, count)


def _grown(near: Ints, count: int) -> Ints:
    """One set from each GPU: the next is the one with the best links to those chosen."""
    sets = []
    for first in range(len(near)):
        chosen = [first]
        while len(chosen) < count:
            gain = near[chosen].min(axis=0) * (1 << 32) + near[chosen].sum(axis=0)
            gain[chosen] = -1
            chosen.append(int(gain.argmax()))
        sets.append(sorted(chosen))
    return np.array(sorted(sets), dtype=np.int64)


def _inside(near: Ints, sets: Ints) -> tuple[Ints, Ints]:
    """The weakest link and the sum of links of each set; zero for sets of one."""
    count = sets.shape[1]
    pairs = list(itertools.combinations(range(count), 2))
    if not pairs:
        zero = np.zeros(len(sets), dtype=np.int64)
        return zero, zero
    a, b = np.array(pairs).T
    links = near[sets[:, a], sets[:, b]]
    return links.min(axis=1), links.sum(axis=1)


def _rest(near: Ints, sets: Ints) -> Ints:
    """The sum of links among those that stay free."""
    stays = np.ones((len(sets), len(near)), dtype=np.int64)
    np.put_along_axis(stays, sets, 0, axis=1)
    found: Ints = ((stays @ near) * stays).sum(axis=1)
    return found


def _because(links: GpuLinks, gpus: tuple[int, ...], free: int) -> Reason:
    named = ", ".join(map(str, gpus))
    figures: dict[str, int | float | str] = {"gpus": len(gpus), "free": free}
    if len(gpus) == 1:
        return Reason(
            "worst_connected", f"GPU {named}: of {free} free, the one whose links are missed least", figures
        )
    ways = {links.way(a, b) for a, b in itertools.combinations(gpus, 2)}
    weakest = min(ways, key=closeness)
    figures["weakest"] = weakest
    return Reason(
        "best_connected", f"GPUs {named}: of {free} free, the best connected ({weakest} or better)", figures
    )
