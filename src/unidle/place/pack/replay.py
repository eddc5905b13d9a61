"""The published packing experiment: pods arrive one after another, none leaves.

For each seed the pods of the trace are shuffled, then drawn with replacement until a multiple of the
fleet's GPU capacity has been requested. If the trace requests more than that, the rest is dropped. A
pod that fits on some node is never refused; one that does not is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.engine import Choice, Packer, Scorer
from unidle.place.pack.pool import Pool
from unidle.place.pack.request import IntArray

WHOLE_FLEET: Final = 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy with what it derived from fleet and workload; ``scorer`` makes one for a run."""

    name: str
    scorer: Callable[[Pool, np.random.Generator], Scorer]
    file_order: bool = False  # ties go to the first node of the file, not of the seed's order


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod (index in the trace) and where it went; ``node`` is an index in the node file, -1 for none."""

    pod: int
    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Allocated share of the GPU capacity, in percent, when so much of it had been requested."""

    seed: int
    allocated_pct: dict[float, float]


def marks(requested: float) -> tuple[float, ...]:
    """When the allocated share is reported: at the whole fleet's capacity and at the end."""
    return tuple(sorted({WHOLE_FLEET, requested})) if requested >= WHOLE_FLEET else (requested,)


def arrivals(total_gpu_milli: IntArray, capacity_milli: int, requested: float, seed: int) -> IntArray:
    """The order of pods (indices) for a seed, until ``requested`` times the capacity is asked for."""
    chance = np.random.default_rng([seed, 0])
    order = chance.permutation(len(total_gpu_milli))
    until = requested * capacity_milli
    asked = np.cumsum(total_gpu_milli[order])
    while asked.size and asked[-1] < until and asked[-1] > 0:
        more = chance.integers(len(total_gpu_milli), size=max(1024, len(order)))
        order = np.concatenate([order, more])
        asked = np.cumsum(total_gpu_milli[order])
    return order[: int(np.searchsorted(asked, until)) + 1]


def node_order(nodes: int, seed: int) -> IntArray:
    """The order in which a seed's ties are broken."""
    return np.random.default_rng([seed, 1]).permutation(nodes)


def replay(
    prepared: Prepared,
    nodes: Sequence[NodeSize],
    demands: Sequence[Demand],
    requested: float,
    seed: int,
    seen: Callable[[Arrival], object] | None = None,
) -> Outcome:
    """Run one seed of one policy; ``seen`` is called for every arrival, in order."""
    order = np.arange(len(nodes)) if prepared.file_order else node_order(len(nodes), seed)
    pool = Pool([nodes[k] for k in order])
    packer = Packer(pool, prepared.scorer(pool, np.random.default_rng([seed, 2])))
    interned = {demand: pool.request(demand) for demand in dict.fromkeys(demands)}
    requests = [interned[demand] for demand in demands]
    capacity = int(pool.capacity_milli.sum())
    totals = np.array([demand.total_gpu_milli for demand in demands], np.int64)
    left = list(marks(requested))
    asked = given = 0
    shares: dict[float, float] = {}
    for pod in arrivals(totals, capacity, requested, seed).tolist():
        request = requests[pod]
        choice = packer.decide(request)
        asked += request.total_gpu_milli
        if choice is not None:
            packer.bind(request, choice)
            given += request.total_gpu_milli
        if seen is not None:
            seen(_arrival(pod, choice, order))
        while left and asked >= left[0] * capacity:
            shares[left.pop(0)] = 100.0 * given / capacity
    return Outcome(seed, shares)


def _arrival(pod: int, choice: Choice | None, order: IntArray) -> Arrival:
    return Arrival(pod, int(order[choice.node]), choice.gpus) if choice else Arrival(pod, -1, ())
