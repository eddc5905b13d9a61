"""The packing policy of our own: two measures of fragments, and scarce shapes of nodes kept for who needs them.

A mix of the growth of FGD's measure (one pod of each specification) and of the measure by copies
(each specification fills the node): the first sees GPUs too small, the second CPU that runs out.
Next to these, a node of a shape that others cannot do without costs more, by how much faster than the
rest it runs out (:class:`Pressure`); where every pod can use every shape that is nothing. Either only what runs
out although all who can go elsewhere do, or, earlier, what runs out if all spread themselves evenly.

Pods that can run on few shapes must find room there; the others can go elsewhere. Spread the demand of
the target workload over the free GPU share so that the most loaded shapes are as little loaded as
possible (then the next, and so on): what is left above the rest is demand that has no other place. The
shapes with the highest load run out first, and requests that can do without them should.

The spread minimises the sum of load squared over room, a separable convex flow, whose optimum is the
lexicographic one (Megiddo 1974); water-filling one kind of pod after another converges to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.pack.fragmentation import Copies, CopiesLeft, Fragments, best_gpu
from unidle.place.pack.packer import WHOLE_MILLI, Floats, IntArray, NodePool, Nodes, PackRequest

_SWEEPS: Final = 16
_CLOSE_ENOUGH: Final = 0.002  # of load: a sweep that changes less is the last
_LEAST_ROOM: Final = 1.0 * WHOLE_MILLI  # a shape with less free is full


@dataclass(frozen=True, slots=True)
class _Kind:
    """Pods that can run on the same shapes (indices, ascending) and their share of the GPU demand."""

    shapes: IntArray
    share: float


class Pressure:
    """The kinds of pods of a workload on the shapes of a fleet; built once for both."""

    def __init__(self, nodes: Sequence[NodeSize], demands: Iterable[PodDemand]) -> None:
        self.shapes = tuple(sorted({_shape(node) for node in nodes}))
        asked: Counter[tuple[int, ...]] = Counter()
        for demand, count in Counter(demands).items():
            fits = tuple(s for s, shape in enumerate(self.shapes) if _fits(demand, shape))
            if fits:
                asked[fits] += count * demand.total_gpu_milli
        total = asked.total() or 1
        # Those with the least choice first: the rest is spread around them.
        self._kinds = tuple(
            _Kind(np.array(fits, np.int64), milli / total)
            for fits, milli in sorted(asked.items(), key=lambda item: (len(item[0]), item[0]))
            if milli
        )

    def codes(self, nodes: Sequence[NodeSize]) -> IntArray:
        """The shape of each node: (n,)."""
        code = {shape: s for s, shape in enumerate(self.shapes)}
        return np.array([code[_shape(node)] for node in nodes], np.int64)

    def spread(self, free_milli: Floats, start: Sequence[Floats] = ()) -> list[Floats]:
        """How the demand of each kind is spread over its shapes: (s,) milli free -> per kind (its shapes,).

        ``start`` is an earlier spread, from which a similar one is near.
        """
        room = np.maximum(free_milli, _LEAST_ROOM)
        load = np.zeros(len(room))
        spread = list(start) or [np.zeros(len(kind.shapes)) for kind in self._kinds]
        for kind, poured in zip(self._kinds, spread, strict=True):
            load[kind.shapes] += poured
        enough = _CLOSE_ENOUGH / room.sum()
        for _ in range(_SWEEPS):
            before = load.copy()
            for k, kind in enumerate(self._kinds):
                rest = load[kind.shapes] - spread[k]
                spread[k] = _fill(rest, room[kind.shapes], kind.share)
                load[kind.shapes] = rest + spread[k]
            if (np.abs(load - before) <= enough * room).all():
                break
        return spread

    def even(self, free_milli: Floats) -> list[Floats]:
        """The spread by room alone: each kind takes of its shapes in proportion to what is free there."""
        room = np.maximum(free_milli, _LEAST_ROOM)
        return [kind.share * room[kind.shapes] / room[kind.shapes].sum() for kind in self._kinds]

    def load(self, free_milli: Floats, spread: Sequence[Floats]) -> Floats:
        """Load of each shape under a spread, 1 where demand has the fleet's ratio to room: (s,)."""
        room = np.maximum(free_milli, _LEAST_ROOM)
        load = np.zeros(len(room))
        for kind, poured in zip(self._kinds, spread, strict=True):
            load[kind.shapes] += poured
        relative: Floats = load / room * room.sum()
        return relative


def _fill(load: Floats, room: Floats, amount: float) -> Floats:
    """How ``amount`` is poured so that the highest (load + poured) / room stays lowest."""
    if len(load) == 1:
        return np.array([amount])
    height = load / room
    order = height.argsort(kind="stable")
    level = (amount + load[order].cumsum()) / room[order].cumsum()
    # The first level that does not reach the next shape's.
    below = level[:-1] <= height[order[1:]]
    first = int(below.argmax()) if below.any() else len(below)
    poured: Floats = np.maximum(level[first] * room - load, 0.0)
    return poured


def _shape(node: NodeSize) -> NodeSize:
    return node._replace(name="")


def _fits(demand: PodDemand, shape: NodeSize) -> bool:
    return (
        (not demand.models or shape.model in demand.models)
        and shape.gpus >= demand.gpus
        and shape.cpu_milli >= demand.cpu_milli
        and shape.memory_mib >= demand.memory_mib
    )


_NOTHING_MILLI: Final = 0.001  # so that the rounding of sums that are 0 does not decide
_SCARCE: Final = 3  # GPUs of fragments that twice the mean pressure weighs
_MOST: Final = 3.0
_AGAIN_PPM: Final = 10_000  # pressures hold until so much of the capacity has changed hands


class Mix(NamedTuple):
    """FGD's part of the cost, in percent, how many levels tell costs apart, and how scarcity is priced.

    With few levels, near equals go to the first node and the rest stays empty. ``even`` prices the load of
    pods that spread evenly, in GPUs of fragments that twice the mean weighs; 0: that of the best spread.
    """

    fgd_pct: int
    levels: int
    even: int = 0


class ScarcityScorer:
    """The policy for one pool; ``fragments``, ``copies`` and ``pressure`` are of the target workload."""

    def __init__(
        self, pool: NodePool, fragments: Fragments, copies: Copies, pressure: Pressure, mix: Mix
    ) -> None:
        self._mix = mix
        self._fragments, self._left, self._pressure = fragments, CopiesLeft(copies, pool), pressure
        self._shape_of = pressure.codes(pool.sizes)
        self._extra: IntArray | None = None
        self._spread: list[Floats] = []
        self._free_milli = -1
        self._capacity_milli = int(pool.capacity_milli.sum())
        self._priced: dict[int, IntArray] = {}  # ``_extra`` for requests of so many milli GPU

    def key(self, request: PackRequest) -> Hashable:
        return request.cpu_milli, self._left.memory_mib(request), request.gpus, request.gpu_milli

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        fgd_pct, levels, _ = self._mix
        cost = self._fragments.growth(pool, request, nodes)
        if fgd_pct < 100:
            cost *= fgd_pct / 100
            cost += (100 - fgd_pct) / 100 * self._left.loss(request, nodes)
        scores = (levels / (1.0 + np.exp((cost - _NOTHING_MILLI) / WHOLE_MILLI))).astype(np.int64)
        if not request.part:
            return scores, np.zeros(len(nodes), np.int64)
        scores[np.isinf(cost)] = -1
        return best_gpu(scores)

    def pick(self, pool: NodePool, request: PackRequest, scores: IntArray, /) -> int:
        if not request.gpus or (extra := self._scarcity(pool)) is None:
            return int(scores.argmax())
        milli = min(request.total_gpu_milli, WHOLE_MILLI)
        price = self._priced.get(milli)
        if price is None:
            price = self._priced[milli] = extra * milli // WHOLE_MILLI
        return int(np.where(scores < 0, np.iinfo(np.int64).min, scores - price).argmax())

    def _scarcity(self, pool: NodePool) -> IntArray | None:
        """Levels that a whole GPU of each node costs for its scarcity: (n,); None where no node is scarce."""
        free_milli = int(pool.free_milli.sum())
        moved = abs(free_milli - self._free_milli) * 1_000_000
        if self._free_milli < 0 or moved > _AGAIN_PPM * self._capacity_milli:
            sums = np.bincount(self._shape_of, pool.free_milli, len(self._pressure.shapes))
            free = sums.astype(np.float64)
            if self._mix.even:
                self._spread = self._pressure.even(free)
            else:
                self._spread = self._pressure.spread(free, self._spread)
            load = np.minimum(self._pressure.load(free, self._spread), _MOST)
            least = load[free > 0].min() if (free > 0).any() else 0.0
            # A quarter of the levels is what one GPU of fragments costs where costs are small.
            extra = (self._mix.even or _SCARCE) * self._mix.levels / 4 * np.maximum(load - least, 0.0)
            levels = np.rint(extra).astype(np.int64)
            self._extra = levels[self._shape_of] if levels.any() else None
            self._free_milli = free_milli
            self._priced.clear()
        return self._extra
