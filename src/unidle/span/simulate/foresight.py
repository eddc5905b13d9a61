"""Whether an iteration that is under way can still end before a limit: to give up early on programs that are slower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.bound import chain_of
from unidle.span.simulate.program import Flags, Ints, Program
from unidle.span.simulate.routes import Times


class Foresight:
    """For programs of one chunk. What a device has left follows from its order; after its last backward comes the way
    back to the first stage at its fastest, as in :func:`unidle.span.simulate.bound.lower_bound_ns`."""

    def __init__(self, setting: Setting, programs: Sequence[Program], times: Times, limit_ns: int) -> None:
        self._limit_ns, many = limit_ns, len(programs)
        chain = chain_of(setting)
        left, weights = zip(*(_left(program, times) for program in programs), strict=True)
        self._left, self._weights = np.concatenate(left), np.concatenate(weights)
        reduces = [setting.reduce_ns(s) for s in range(len(setting.stages))]
        tail = np.array(chain.back_ns, dtype=np.int64) + int(times.weight[0, 0]) + reduces[0]
        self._weight: Ints = np.tile(times.weight[:, 0], many)
        self._reduce: Ints = np.tile(np.array(reduces, dtype=np.int64), many)
        self._tail: Ints = np.tile(tail, many)
        self._there: Ints = np.tile(np.array(chain.there_ns, dtype=np.int64), many)

    def too_long(self, row: Ints, at: Ints, free: Ints, waiting: Ints) -> Flags:
        """For each device whether its iteration takes at least the limit.

        ``row``: of its tables, ``at``: its next operation, ``free``: when it may begin it, ``waiting``: gradients of
        weights put off.
        """
        alone = self._weights[row, at] + waiting * self._weight[row] + self._reduce[row]
        tail = np.where(at < self._left.shape[1] - 1, self._tail[row], 0)
        end = np.maximum(free, self._there[row]) + self._left[row, at] + np.maximum(alone, tail)
        found: Flags = end >= self._limit_ns
        return found


def _left(program: Program, times: Times) -> tuple[Ints, Ints]:
    """Nanoseconds of forwards, backwards and recompute, and of gradients of weights, from each operation on."""
    backward = program.order >= program.units
    rows = np.arange(len(program.order))[:, None]
    again = np.where(backward & program.again[rows, program.order % program.units], times.again[:, :1], 0)
    weights = _suffix(backward.astype(np.int64)) * times.weight[:, :1]
    if program.filler is None:  # those of backwards that were done may be done, too
        weights[:] = 0
    return _suffix(np.where(backward, times.backward[:, :1], times.forward[:, :1]) + again), weights


def _suffix(each: Ints) -> Ints:
    """The sums of what is left from each place on, with a last column of zeros."""
    total = np.cumsum(each[:, ::-1], axis=1)[:, ::-1]
    found: Ints = np.concatenate([total, np.zeros((len(each), 1), dtype=np.int64)], axis=1)
    return found
