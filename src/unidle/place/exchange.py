"""Local search over orders of ranks: exchanges of two ranks, or of two whole groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unidle.place.traffic import Floats, Model
from unidle.place.tree import Ints


@dataclass(slots=True)
class Walk:
    """A walk over layouts that steps to the best neighbour not visited yet, even if that is no improvement.

    The cost of the bottleneck has wide plateaus, so among equal costs the layout with the smaller total load
    is taken. ``work`` is how many ranks may still be evaluated, over all walks. A walk ends after
    ``patience`` steps without an improvement.
    """

    model: Model
    work: int
    patience: int
    seen: set[bytes] = field(default_factory=set)
    exchanges: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.exchanges = exchanges(self.model.shape())

    def best_from(self, grid: Ints) -> Ints:
        """The best layout found on a walk from ``grid``."""
        here = found = grid.reshape(-1)
        best, patience = (float("inf"), float("inf")), self.patience
        while patience and self.work > 0:
            self.seen.add(here.tobytes())
            step = self._step(here)
            if step is None:
                break
            here, reached = step
            patience = self.patience if reached[0] < best[0] else patience - 1
            if reached < best:
                best, found = reached, here
        return found.reshape(grid.shape)

    def _step(self, here: Ints) -> tuple[Ints, tuple[float, float]] | None:
        moves = here[self.exchanges]
        moves = moves[(moves != here).any(axis=1)]
        self.work -= moves.size
        prices, seconds = self.model.priced(moves.reshape(-1, *self.model.shape()))
        costs, loads = rounded(prices), rounded(np.square(seconds).sum(axis=(1, 2)))
        for at in np.lexsort([loads, costs]):
            if moves[at].tobytes() not in self.seen:
                return moves[at], (float(costs[at]), float(loads[at]))
        return None


def rounded(seconds: Floats) -> Floats:
    """To about 12 digits, so that the order of a sum decides nothing. Values are at least 0."""
    digit = np.exp2(np.floor(np.log2(np.maximum(seconds, 1e-300))) - 40)
    found: Floats = np.round(seconds / digit) * digit
    return found


def exchanges(shape: tuple[int, int, int]) -> Ints:
    """All exchanges of two ranks, and of two groups along one axis, as orders of the ranks. Shape (M, ranks)."""
    ids = np.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    found = [_swapped(ids.reshape(-1, 1), ids.size)]
    for axis in range(3):
        lines = np.moveaxis(ids, axis, -1).reshape(-1, shape[axis])
        if shape[axis] > 1 and len(lines) > 1:
            found.append(_swapped(lines, ids.size))
    return np.concatenate(found)


def _swapped(lines: Ints, ranks: int) -> Ints:
    """One order for each pair of ``lines`` (shape (L, n), of ranks), with the two exchanged."""
    a, b = np.triu_indices(len(lines), 1)
    orders = np.repeat(np.arange(ranks)[None], len(a), axis=0)
    at = np.arange(len(a))[:, None]
    orders[at, lines[a]], orders[at, lines[b]] = lines[b], lines[a]
    return orders
