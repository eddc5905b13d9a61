"""How much of a node's free GPU share the target workload cannot use, by table look-up.

The measure is FGD's (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): for one specification,
all free GPU share of a node that cannot host it, and the GPUs too small for it on a node that can;
the target workload's mean of that. A specification without GPUs counts as unable to use any.

Seen from the other side it is free share less what each specification could use. For those that ask
for one GPU, a GPU with ``g`` free is usable whole where ``g`` is enough, whatever the other GPUs hold: a
sum over GPUs of a table over (free CPU, g). For those that ask for several of ``m`` each, what counts is
the number of GPUs with ``m`` free: one more table for each ``m``. So the measure of a changed node is
a few look-ups, however many specifications there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unidle.place.pack.engine import Nodes
from unidle.place.pack.pool import Pool
from unidle.place.pack.request import WHOLE_MILLI, Floats, IntArray, Request
from unidle.place.pack.workload import Target

_LEVELS = WHOLE_MILLI + 1


@dataclass(frozen=True, slots=True)
class _Several:
    """Specifications of several GPUs of ``gpu_milli`` each: their share by (model, CPU row, GPUs that fit)."""

    gpu_milli: int
    share: Floats  # flat (models + 1) * rows * (widest + 1)


class Fragments:
    """The measure for nodes of any state; built once per target workload and pool."""

    def __init__(self, target: Target, widest: int) -> None:
        """``widest``: most GPUs on a node."""
        self._cpu_rows = np.unique(target.cpu_milli)
        self._rows, self._widest = len(self._cpu_rows) + 1, widest
        # Row r holds for nodes whose free CPU covers the r smallest CPU demands.
        first_row = np.searchsorted(self._cpu_rows, target.cpu_milli) + 1
        models = target.allowed.shape[1]
        one = np.zeros((models, self._rows, _LEVELS))
        several: dict[int, Floats] = {}
        for w in range(len(target.share)):
            gpus, milli = int(target.gpus[w]), int(target.gpu_milli[w])
            if gpus == 0 or milli == 0:
                continue
            if gpus == 1:
                table, start = one, milli
            else:
                table = several.setdefault(milli, np.zeros((models, self._rows, widest + 1)))
                start = gpus
            table[target.allowed[w], first_row[w] :, start:] += target.share[w]
        # What is left of g free milli when each specification has taken what it can use.
        self._one = (np.arange(_LEVELS) * (1.0 - one)).ravel()
        self._several = tuple(_Several(milli, table.ravel()) for milli, table in several.items())

    def row(self, model: IntArray, cpu_milli: IntArray) -> IntArray:
        """Which rows of the tables hold for nodes of this model with this much CPU free."""
        rows: IntArray = model * self._rows + np.searchsorted(self._cpu_rows, cpu_milli, side="right")
        return rows

    def one(self, row: IntArray, gpu_milli: IntArray) -> Floats:
        """Free share of single GPUs that one-GPU specifications leave unused, elementwise, in milli."""
        left: Floats = self._one.take(row * _LEVELS + gpu_milli)
        return left

    def several(self, row: IntArray, gpu_milli: IntArray) -> Floats:
        """What specifications of several GPUs can use of nodes with GPUs (..., g): (...), in milli."""
        used = np.zeros(row.shape)
        for spec in self._several:
            fits = gpu_milli >= spec.gpu_milli
            count = fits.sum(axis=-1)
            if spec.gpu_milli == WHOLE_MILLI:
                free = count * WHOLE_MILLI
            else:
                free = np.where(fits, gpu_milli, 0).sum(axis=-1)
            used += spec.share.take(row * (self._widest + 1) + count) * free
        return used

    def of(self, model: IntArray, cpu_milli: IntArray, gpu_milli: IntArray) -> Floats:
        """The measure of nodes, in milli GPU: ``model``, ``cpu_milli`` (n,), ``gpu_milli`` (n, g) -> (n,)."""
        row = self.row(model, cpu_milli)
        measure: Floats = self.one(row[:, None], gpu_milli).sum(axis=1) - self.several(row, gpu_milli)
        return measure

    def growth(self, pool: Pool, request: Request, nodes: Nodes) -> Floats:
        """What the measure grows by when the request goes to each of ``nodes``, in milli GPU.

        Shape (n, g) for a request that shares a GPU, by the GPU that it gets (infinite where that
        has no room), else (n,). The nodes must have room.
        """
        model, cpu_milli, gpu_milli = pool.model[nodes], pool.cpu_milli[nodes], pool.gpu_milli[nodes]
        before = self.of(model, cpu_milli, gpu_milli)
        if not request.part:
            return self.of(model, cpu_milli - request.cpu_milli, after(gpu_milli, request)) - before
        row = self.row(model, cpu_milli - request.cpu_milli)
        rest = gpu_milli - request.gpu_milli
        now = self.one(row[:, None], gpu_milli)
        then = self.one(row[:, None], np.maximum(rest, 0))
        grown: Floats = (now.sum(axis=1) - before)[:, None] + then - now
        for spec in self._several:
            grown -= self._one_changed(spec, row, gpu_milli, rest)
        grown[rest < 0] = np.inf
        return grown

    def _one_changed(self, spec: _Several, row: IntArray, gpu_milli: IntArray, rest: IntArray) -> Floats:
        """``several`` for one specification when one GPU, each in turn, keeps ``rest``: (n, g)."""
        fits, still = gpu_milli >= spec.gpu_milli, rest >= spec.gpu_milli
        free, kept = np.where(fits, gpu_milli, 0), np.where(still, rest, 0)
        count = fits.sum(axis=1)[:, None] - fits + still
        share: Floats = spec.share.take(row[:, None] * (self._widest + 1) + count)
        used: Floats = share * (free.sum(axis=1)[:, None] - free + kept)
        return used


def after(gpu_milli: IntArray, request: Request) -> IntArray:
    """GPUs of nodes (n, g) after a request that shares none: the tightest that fit are taken."""
    if not request.gpus:
        return gpu_milli
    if request.gpu_milli == WHOLE_MILLI:
        whole = gpu_milli == WHOLE_MILLI
        return np.where(whole & (whole.cumsum(axis=1) <= request.gpus), 0, gpu_milli)
    room = np.where(gpu_milli >= request.gpu_milli, gpu_milli, WHOLE_MILLI + 1)
    taken = np.argsort(room, axis=1, kind="stable")[:, : request.gpus]
    left = gpu_milli.copy()
    np.put_along_axis(left, taken, np.take_along_axis(left, taken, axis=1) - request.gpu_milli, axis=1)
    return left
