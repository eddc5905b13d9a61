"""The published packing experiment with the policies by name: pods arrive one after another, none leaves.

For each seed the pods of the trace are shuffled, then drawn with replacement until a multiple of the
fleet's GPU capacity has been requested. If the trace requests more than that, the rest is dropped. A
pod that fits on some node is never refused; one that does not is not tried again.

Which of several policies packs most on a fleet is found out in rehearsals, before the first pod. A rehearsal packs pods
of the same distribution, in an order of its own, on the empty fleet; all candidates
meet the same arrivals, so that their differences are compared, which chance moves less than their shares.
Some candidates are plain policies. Whatever is taken should be below none of them, neither when the
capacity has been requested nor at the end, by more than chance: that comes first, then what is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from unidle.control.replay.packing_peers import (
    BestFit,
    Clustering,
    DotProduct,
    Fgd,
    FirstFitScorer,
    Packing,
    Random,
)
from unidle.errors import BadInput
from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.pack.fragmentation import Copies, Fragments
from unidle.place.pack.packer import (
    WHOLE_MILLI,
    Floats,
    IntArray,
    NodeChoice,
    NodePool,
    Packer,
    Scorer,
    target_workload,
)
from unidle.place.pack.scarcity import Mix, Pressure, ScarcityScorer

WHOLE_FLEET: Final = 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy with what it derived from fleet and workload; ``scorer`` makes one for a run."""

    name: str
    scorer: Callable[[NodePool, np.random.Generator], Scorer]
    file_order: bool = False  # ties go to the first node of the file, not of the seed's order


@dataclass(frozen=True, slots=True)
class PodArrival:
    """One pod (index in the trace) and where it went; ``node`` is an index in the node file, -1 for none."""

    pod: int
    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackOutcome:
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
    demands: Sequence[PodDemand],
    requested: float,
    seed: int,
    seen: Callable[[PodArrival], object] | None = None,
) -> PackOutcome:
    """Run one seed of one policy; ``seen`` is called for every arrival, in order."""
    order = np.arange(len(nodes)) if prepared.file_order else node_order(len(nodes), seed)
    pool = NodePool([nodes[k] for k in order])
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
    return PackOutcome(seed, shares)


def _arrival(pod: int, choice: NodeChoice | None, order: IntArray) -> PodArrival:
    return PodArrival(pod, int(order[choice.node]), choice.gpus) if choice else PodArrival(pod, -1, ())


_REQUESTED: Final = 1.3  # times the capacity
_AT_THE_END: Final = 3  # times as much as what is packed when the capacity has been requested
_SEED: Final = 1 << 40  # far from seeds that anyone would name
_STAGE: Final = 1_500  # nodes; a larger fleet is represented by every k-th
_WORK, _LESS, _LITTLE = 300_000, 200_000, 20_000  # decisions in all, but for the first round
# Rehearsals of each candidate that is left, and after how many decisions there are no more.
_ROUNDS: Final = ((2, _WORK), (2, _WORK), (4, _LESS), (8, _LITTLE), (16, _LITTLE))
_BEHIND_POINTS: Final = 0.15  # of the capacity: less is not worth dropping a candidate for
_SURE: Final = 2.0  # standard errors
_SAFE: Final = 1.0  # standard errors that the gain over the plain policies must exceed
NOTHING_POINTS: Final = 0.03  # of the capacity: less than that is no loss


@dataclass(slots=True)
class Standing:
    """What the candidates packed so far, in percent of the capacity; the first ``plain`` are the plain ones."""

    plain: int
    shares: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # one pair a rehearsal

    def of(self, k: int) -> Floats:
        """Shares of a candidate: (rehearsals, 2), when the capacity has been requested and at the end."""
        return np.array(self.shares[k])

    def worth(self, k: int) -> Floats:
        """One figure for both marks: (rehearsals,)."""
        weighed: Floats = self.of(k) @ np.array([1.0, _AT_THE_END]) / (1 + _AT_THE_END)
        return weighed

    def gain(self, k: int, errors: float) -> float:
        """The least mean difference to a plain policy at a mark, plus so many standard errors."""
        sums = (_bounds(self.of(k) - self.of(p), errors) for p in range(self.plain))
        return min(float(ends.min()) for ends in sums)

    def rank(self, k: int) -> tuple[float, float]:
        """Higher is better: safely not below the plain ones, then what is packed."""
        return min(0.0, self.gain(k, -_SAFE) + NOTHING_POINTS), float(self.worth(k).mean())

    def best(self, of: Sequence[int]) -> int:
        """The first where several are as good."""
        return max(of, key=self.rank)

    def left(self, of: Sequence[int]) -> list[int]:
        """Those that may still turn out the best, best first."""
        best = self.best(of)
        safe, _ = self.rank(best)
        kept: list[int] = []
        for k in sorted(of, key=self.rank, reverse=True):
            behind = self.worth(best) - self.worth(k)
            surely = float(_bounds(behind[:, None], -_SURE)[0])
            less = min(surely, float(behind.mean()) - _BEHIND_POINTS) > 0 and self.rank(k)[0] <= safe
            alike = any(self.shares[k] == self.shares[other] for other in kept)
            if k == best or not (less or alike or self.gain(k, _SURE) < safe - _BEHIND_POINTS):
                kept.append(k)
        return kept


def rehearsed(
    candidates: Sequence[Prepared], nodes: Sequence[NodeSize], demands: Sequence[PodDemand], plain: int
) -> Prepared:
    """The best of the candidates, of which the first ``plain`` are the plain ones (at least one)."""
    standing = rehearse(candidates, nodes, demands, plain)
    return candidates[standing.best(sorted(standing.shares))] if standing.shares else candidates[0]


def rehearse(
    candidates: Sequence[Prepared], nodes: Sequence[NodeSize], demands: Sequence[PodDemand], plain: int
) -> Standing:
    """The results of the candidates, in as many rehearsals as their variance and cost justify.

    Only candidates that were in all rehearsals are listed; the others were dropped because they were behind.
    Empty if no GPU is requested or the nodes have none.
    """
    standing = Standing(plain)
    stage = nodes[:: -(-len(nodes) // _STAGE) or 1]
    asked_milli = sum(demand.total_gpu_milli for demand in demands)
    capacity_milli = sum(node.gpus for node in stage) * WHOLE_MILLI
    if not asked_milli or not capacity_milli:
        return standing
    decisions = _REQUESTED * capacity_milli * len(demands) / asked_milli  # of one rehearsal, about
    left = list(range(len(candidates)))
    seed, spent = _SEED, 0.0
    for seeds, work in _ROUNDS:
        if spent:
            paid_for = int((work - spent) / (decisions * seeds))
            left = standing.left(left)[: max(0, paid_for - plain)]
            if len(left) < 2:
                break
        taking_part = sorted({*range(plain), *left})
        for k in taking_part:
            own = standing.shares.setdefault(k, [])
            for shift in range(seeds):
                outcome = replay(candidates[k], stage, demands, _REQUESTED, seed + shift)
                low, high = (outcome.allocated_pct.get(mark, 0.0) for mark in (WHOLE_FLEET, _REQUESTED))
                own.append((low, high))
        for k in standing.shares.keys() - set(taking_part):
            del standing.shares[k]
        seed += seeds
        spent += decisions * seeds * len(taking_part)
    return standing


def _bounds(differences: Floats, errors: float) -> Floats:
    """Means over rehearsals (axis 0) plus so many standard errors."""
    spread = differences.std(axis=0, ddof=1) / len(differences) ** 0.5
    bounds: Floats = differences.mean(axis=0) + errors * spread
    return bounds


_PLAIN: Final[dict[str, Callable[[], Scorer]]] = {
    "bestfit": BestFit,
    "dotprod": DotProduct,
    "packing": Packing,
    "clustering": Clustering,
    "firstfit": FirstFitScorer,
}
# The first two do best where models are asked for or CPU is short, the next where pods take many GPUs, then
# those where few pods can do without their model, and the fleet is small or has many shapes; the last where
# what a node runs out of first is memory.
MIXES: Final = (
    Mix(50, 50), Mix(70, 50), Mix(60, 30), Mix(100, 100), Mix(50, 50, 3), Mix(100, 400, 10), Mix(10, 50, 3),
)  # fmt: skip
POLICIES: Final = ("unidle", "fgd", *_PLAIN, "random")


def prepare(name: str, nodes: Sequence[NodeSize], demands: Sequence[PodDemand]) -> Prepared:
    """The policy ``name``; what it may know of the workload is the distribution of ``demands``.

    Errors: :class:`BadInput` for an unknown name.
    """
    if name in _PLAIN:
        return Prepared(name, partial(_plain, name), file_order=name == "firstfit")
    if name == "random":
        return Prepared(name, _random)
    if name not in POLICIES:
        raise BadInput("is not a policy", field="--policy", value=name, remedy=", ".join(POLICIES))
    pool = NodePool(nodes)
    target = target_workload(map(pool.request, demands), len(pool.model_names))
    fragments = Fragments(target, pool.widest)
    fgd = Prepared("fgd", partial(_fgd, Fgd(fragments)))
    if name == "fgd":
        return fgd
    plain = [fgd, prepare("firstfit", nodes, demands)]
    made = partial(_unidle, fragments, Copies(target), Pressure(nodes, demands))
    mixes = [Prepared(name, partial(made, mix)) for mix in MIXES]
    return replace(rehearsed([*plain, *mixes], nodes, demands, len(plain)), name=name)


# Functions of modules, so that a policy can be sent to another process.
def _plain(name: str, _pool: NodePool, _chance: np.random.Generator) -> Scorer:
    return _PLAIN[name]()


def _random(_pool: NodePool, chance: np.random.Generator) -> Scorer:
    return Random(chance)


def _fgd(fgd: Fgd, _pool: NodePool, _chance: np.random.Generator) -> Scorer:
    return fgd


def _unidle(
    fragments: Fragments,
    copies: Copies,
    pressure: Pressure,
    mix: Mix,
    pool: NodePool,
    _chance: np.random.Generator,
) -> Scorer:
    return ScarcityScorer(pool, fragments, copies, pressure, mix)
