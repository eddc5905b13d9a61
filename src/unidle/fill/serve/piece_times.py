"""How long a piece of prefill takes, from those that ran. Pure.

A piece is the layer of a chunk. Its time grows with the tokens of the chunk, with these times the tokens before it, and, where keys and values
are read or leave, with all tokens. The factors are fitted over the last pieces; a piece is then given the largest excess over that fit seen among recent ones, as one that lasts
longer than its forecast delays training.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import numpy as np

_KEPT: Final = 64
_MARGIN: Final = 1.1
_LEAST_NS: Final = 20_000

PieceKind = Literal["first", "inner", "last", "final"]


class PieceTimes:
    """Times of pieces by kind and place: the chunk ``begin`` to ``end``. A ``final`` piece also computes logits and hands keys and values off."""

    def __init__(self) -> None:
        self._seen: dict[PieceKind, deque[tuple[int, int, int]]] = {}

    @property
    def known(self) -> bool:
        return bool(self._seen)

    def took(self, begin: int, end: int, kind: PieceKind, ns: int) -> None:
        """Note a piece that ran."""
        self._seen.setdefault(kind, deque(maxlen=_KEPT)).append((begin, end, ns))

    def doubt(self, kind: PieceKind) -> None:
        """A piece of this kind fits no wait. Forget its slowest time, which something else may have caused; the fastest stays."""
        seen = self._seen.get(kind)
        if seen is not None and len(seen) > 1:
            seen.remove(max(seen, key=lambda one: one[2] / (one[1] - one[0])))

    def length_ns(self, begin: int, end: int, kind: PieceKind) -> int:
        """A forecast that pieces seldom exceed; for an unknown kind, that of another kind."""
        seen = self._seen.get(kind) or next(iter(self._seen.values()), None)
        if not seen:
            return _LEAST_NS
        rows = np.array([_features(from_, to) for from_, to, _ in seen])
        times = np.array([at[2] for at in seen], dtype=float)
        fitted, *_ = np.linalg.lstsq(rows, times, rcond=None)
        excess = float(np.quantile(times - rows @ fitted, 0.9))
        expected = float(np.array(_features(begin, end)) @ fitted)
        return max(int((expected + max(excess, 0.0)) * _MARGIN), _LEAST_NS)


def _features(begin: int, end: int) -> list[float]:
    return [1.0, end - begin, (end - begin) * begin, end]
