"""Exact sums of nanoseconds by groups, over any number of batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from unidle.ledger.tables import Ints

# A sum is held as hi * 2**26 + lo: a float64 then adds each half exactly up to 2**53, that is up
# to 2**79 ns in all (80,000 devices for two centuries) and 2**27 rows in one call.
_LOW_BITS: Final = 26
_LOW: Final = (1 << _LOW_BITS) - 1
_DENSE_CELLS: Final = 1 << 22  # sums into an array of all groups up to this size, else by sorting
_PENDING_GROUPS: Final = 1 << 22  # merge what batches left behind once it is this long


class _Sums(NamedTuple):
    codes: tuple[Ints, ...]  # one array per dimension
    hi: Ints
    lo: Ints


class Totals:
    """Sums by tuples of small codes. Codes must mean the same in every batch."""

    def __init__(self, dimensions: int) -> None:
        none = np.empty(0, np.int64)
        self._dimensions = dimensions
        self._pending = [_Sums((none,) * dimensions, none, none)]

    def add(self, codes: Sequence[npt.NDArray[Any]], sizes: Sequence[int], ns: Ints) -> None:
        """Add ``ns[i] >= 0`` to the group ``(codes[0][i], ...)``, where ``codes[d] < sizes[d]``."""
        self._pending.append(_summed(codes, sizes, ns >> _LOW_BITS, ns & _LOW))
        if sum(len(p.hi) for p in self._pending) > _PENDING_GROUPS:
            self._merge()

    def by(self, *dimensions: tuple[int, Ints | None]) -> tuple[list[list[int]], list[int]]:
        """The groups that are not 0 by the given dimensions alone, in order, and their exact sums.

        A dimension is its index and, where it is to be coarser, an array with the new code of each
        of its codes. The codes come as one list per dimension.
        """
        self._merge()
        held = self._pending[0]
        codes = [held.codes[d] if new is None else new[held.codes[d]] for d, new in dimensions]
        sums = _summed(codes, _sizes(codes), held.hi, held.lo)
        totals = [(h << _LOW_BITS) + w for h, w in zip(sums.hi.tolist(), sums.lo.tolist(), strict=True)]
        return [c.tolist() for c in sums.codes], totals

    def _merge(self) -> None:
        parts = self._pending
        codes = [np.concatenate([p.codes[d] for p in parts]) for d in range(self._dimensions)]
        hi, lo = (np.concatenate([p[i] for p in parts]) for i in (1, 2))
        self._pending = [_summed(codes, _sizes(codes), hi, lo)]


def _sizes(codes: Sequence[Ints]) -> list[int]:
    return [int(c.max(initial=0)) + 1 for c in codes]


def _summed(codes: Sequence[npt.NDArray[Any]], sizes: Sequence[int], hi: Ints, lo: Ints) -> _Sums:
    # dimensions of one code add nothing to the key
    key = np.zeros(len(hi), np.int64)
    cells = 1
    for code, size in zip(codes, sizes, strict=True):
        if size > 1:
            key = key * size + code if cells > 1 else code.astype(np.int64)
        cells *= size
    if cells >= 1 << 63:
        msg = f"too many possible groups to number: {cells}"
        raise OverflowError(msg)
    if cells <= max(_DENSE_CELLS, len(key)):
        groups, width = np.arange(cells), cells
    else:
        groups, key = np.unique(key, return_inverse=True)
        width = len(groups)
    hi_sum = np.bincount(key, weights=hi, minlength=width).astype(np.int64)
    if hi_sum.max(initial=0) >= 1 << 53:
        msg = "a sum of ns beyond 2**79"
        raise OverflowError(msg)
    lo_sum = np.bincount(key, weights=lo, minlength=width).astype(np.int64)
    some = np.flatnonzero((hi_sum != 0) | (lo_sum != 0))
    hi_sum, lo_sum = hi_sum[some], lo_sum[some]
    numbers = np.unravel_index(groups[some], tuple(sizes)) if sizes else ()
    return _Sums(tuple(n.astype(np.int64) for n in numbers), hi_sum + (lo_sum >> _LOW_BITS), lo_sum & _LOW)
