"""The packing policy of our own: two measures of fragments, and scarce shapes of nodes kept for who needs them.

A mix of the growth of FGD's measure (one pod of each specification) and of the measure by copies
(each specification fills the node): the first sees GPUs too small, the second CPU that runs out.
Next to these, a node of a shape that others cannot do without costs more, by how much faster than the
rest it runs out (``pressure``); where every pod can use every shape that is nothing. Either only what runs
out although all who can go elsewhere do, or, earlier, what runs out if all spread themselves evenly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from unidle.place.pack.copies import Copies, CopiesLeft
from unidle.place.pack.engine import Nodes
from unidle.place.pack.fgd import best_gpu
from unidle.place.pack.fragments import Fragments
from unidle.place.pack.pool import Pool
from unidle.place.pack.pressure import Pressure
from unidle.place.pack.request import WHOLE_MILLI, Floats, IntArray, Request

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


class Unidle:
    """The policy for one pool; ``fragments``, ``copies`` and ``pressure`` are of the target workload."""

    def __init__(
        self, pool: Pool, fragments: Fragments, copies: Copies, pressure: Pressure, mix: Mix
    ) -> None:
        self._mix = mix
        self._fragments, self._left, self._pressure = fragments, CopiesLeft(copies, pool), pressure
        self._shape_of = pressure.codes(pool.sizes)
        self._extra: IntArray | None = None
        self._spread: list[Floats] = []
        self._free_milli = -1
        self._capacity_milli = int(pool.capacity_milli.sum())
        self._priced: dict[int, IntArray] = {}  # ``_extra`` for requests of so many milli GPU

    def key(self, request: Request) -> Hashable:
        return request.cpu_milli, self._left.memory_mib(request), request.gpus, request.gpu_milli

    def score(self, pool: Pool, request: Request, nodes: Nodes) -> tuple[IntArray, IntArray]:
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

    def pick(self, pool: Pool, request: Request, scores: IntArray, /) -> int:
        if not request.gpus or (extra := self._scarcity(pool)) is None:
            return int(scores.argmax())
        milli = min(request.total_gpu_milli, WHOLE_MILLI)
        price = self._priced.get(milli)
        if price is None:
            price = self._priced[milli] = extra * milli // WHOLE_MILLI
        return int(np.where(scores < 0, np.iinfo(np.int64).min, scores - price).argmax())

    def _scarcity(self, pool: Pool) -> IntArray | None:
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
