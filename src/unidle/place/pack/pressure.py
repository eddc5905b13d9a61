"""How scarce each shape of node is, for the pods that can use it.

Pods that can run on few shapes must find room there; the others can go elsewhere. Spread the demand of
the target workload over the free GPU share so that the most loaded shapes are as little loaded as
possible (then the next, and so on): what is left above the rest is demand that has no other place. The
shapes with the highest load run out first, and requests that can do without them should.

The spread minimises the sum of load squared over room, a separable convex flow, whose optimum is the
lexicographic one (Megiddo 1974); water-filling one kind of pod after another converges to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.request import WHOLE_MILLI, Floats, IntArray

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

    def __init__(self, nodes: Sequence[NodeSize], demands: Iterable[Demand]) -> None:
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


def _fits(demand: Demand, shape: NodeSize) -> bool:
    return (
        (not demand.models or shape.model in demand.models)
        and shape.gpus >= demand.gpus
        and shape.cpu_milli >= demand.cpu_milli
        and shape.memory_mib >= demand.memory_mib
    )
