"""Measures of fragmentation.

FGD's measure (Weng et al., "Beware of Fragmentation", USENIX ATC 2023) is, for one specification,
all free GPU share of a node that cannot host it, and the GPUs too small for it on a node that can;
the target workload's mean of that. A specification without GPUs counts as unable to use any.

Seen from the other side it is free share less what each specification could use. For those that ask
for one GPU, a GPU with ``g`` free is usable whole where ``g`` is enough, whatever the other GPUs hold: a
sum over GPUs of a table over (free CPU, g). For those that ask for several of ``m`` each, what counts is
the number of GPUs with ``m`` free: one more table for each ``m``. So the measure of a changed node is
a few look-ups, however many specifications there are.

The measure by copies checks not one pod but how often each specification fills the node alone:
min(free CPU / its CPU, free memory / its memory, the sum over GPUs of floor(free / its share)) copies, or for
several GPUs the GPUs that fit divided by their number. Unlike a single pod, this shows where CPU and memory
run out before the GPUs do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unidle.place.pack.packer import (
    WHOLE_MILLI,
    Floats,
    IntArray,
    NodePool,
    Nodes,
    PackRequest,
    TargetWorkload,
)

_LEVELS = WHOLE_MILLI + 1


@dataclass(frozen=True, slots=True)
class _Several:
    """Specifications of several GPUs of ``gpu_milli`` each: their share by (model, CPU row, GPUs that fit)."""

    gpu_milli: int
    share: Floats  # flat (models + 1) * rows * (widest + 1)


class Fragments:
    """The measure for nodes of any state; built once per target workload and pool."""

    def __init__(self, target: TargetWorkload, widest: int) -> None:
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

    def growth(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> Floats:
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


def after(gpu_milli: IntArray, request: PackRequest) -> IntArray:
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


def best_gpu(scores: IntArray) -> tuple[IntArray, IntArray]:
    """The best score of each node and its GPU, of scores by GPU (n, g); the first among equals."""
    gpu = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), gpu], gpu


_COPIES_LEVELS = WHOLE_MILLI + 1
_STEPS = 64  # of memory on the node with the most


class Copies:
    """The measure for nodes of any state; built once per target workload and pool."""

    def __init__(self, target: TargetWorkload) -> None:
        shape = np.stack([target.cpu_milli, target.gpus, target.gpu_milli], axis=1)
        shape, where = np.unique(shape[target.gpus > 0], axis=0, return_inverse=True)
        share = np.zeros((target.allowed.shape[1], len(shape)))
        used = target.gpus > 0
        np.add.at(share.T, where.ravel(), target.allowed[used] * target.share[used][:, None])
        weight, mib = target.share[used], target.share[used] * target.memory_mib[used]
        mean_mib = np.bincount(where.ravel(), mib, len(shape)) / np.bincount(
            where.ravel(), weight, len(shape)
        )
        # Specifications of one GPU first.
        order = np.argsort(shape[:, 1] > 1, kind="stable")
        shape, share, mean_mib = shape[order], share[:, order], mean_mib[order]
        self.cpu_milli, self.gpus, self.gpu_milli = np.ascontiguousarray(shape.T)
        self._ones = int(np.count_nonzero(self.gpus == 1))
        self._worth = share * (self.gpus * self.gpu_milli)  # (models + 1, w): milli GPU of one copy
        fits = np.arange(_COPIES_LEVELS)[:, None] // np.maximum(self.gpu_milli[: self._ones], 1)
        self._fits = fits.astype(np.float64)
        self._per_cpu = 1.0 / np.maximum(self.cpu_milli, 1)
        # One that asks for no memory is not bounded by it.
        self._per_memory = np.where(mean_mib > 0, 1.0 / np.maximum(mean_mib, 1.0), np.inf)

    def by_gpus(self, gpu_milli: IntArray) -> Floats:
        """Copies of each specification as far as GPUs go: (n, g) -> (n, w)."""
        found = np.empty((len(gpu_milli), len(self.gpus)))
        found[:, : self._ones] = self._fits[gpu_milli].sum(axis=1)
        for w in range(self._ones, len(self.gpus)):
            found[:, w] = np.count_nonzero(gpu_milli >= self.gpu_milli[w], axis=1) // self.gpus[w]
        return found

    def changed(self, found: Floats, gpu_milli: IntArray, request: PackRequest) -> Floats:
        """``by_gpus`` of nodes (n, g) after a request that shares no GPU; ``found`` is it before."""
        if not request.gpus:
            return found
        left = after(gpu_milli, request)
        if request.gpu_milli < WHOLE_MILLI:
            return self.by_gpus(left)
        found = found.copy()
        found[:, : self._ones] -= request.gpus * self._fits[WHOLE_MILLI]
        for w in range(self._ones, len(self.gpus)):
            found[:, w] = np.count_nonzero(left >= self.gpu_milli[w], axis=1) // self.gpus[w]
        return found

    def one_changed(self, found: Floats, gpu_milli: IntArray, changed: IntArray, taken_milli: int) -> Floats:
        """``by_gpus`` of nodes (n, g) when one GPU with ``changed`` (n,) free loses ``taken_milli``.

        ``found`` is it before, and is overwritten.
        """
        rest = changed - taken_milli
        found[:, : self._ones] += self._fits[rest] - self._fits[changed]
        for w in range(self._ones, len(self.gpus)):
            fits = np.count_nonzero(gpu_milli >= self.gpu_milli[w], axis=1)
            lost = (changed >= self.gpu_milli[w]) & (rest < self.gpu_milli[w])
            found[:, w] = (fits - lost) // self.gpus[w]
        return found

    def usable(self, model: IntArray, cpu_milli: IntArray, memory_mib: IntArray, found: Floats) -> Floats:
        """The measure, in milli GPU: model, CPU, memory (n,), ``by_gpus`` (n, w) -> (n,)."""
        bounded = np.minimum(found, cpu_milli[:, None] * self._per_cpu)
        np.minimum(bounded, np.maximum(memory_mib, 1)[:, None] * self._per_memory, out=bounded)
        usable: Floats = np.einsum("nw,nw->n", self._worth[model], bounded)
        return usable


class CopiesLeft:
    """The measure over one pool, kept per node: what a request makes unusable beyond what it takes."""

    def __init__(self, copies: Copies, pool: NodePool) -> None:
        self._copies, self._pool = copies, pool
        self._found = copies.by_gpus(pool.gpu_milli)
        self._usable = copies.usable(pool.model, pool.cpu_milli, pool.memory_mib, self._found)
        self._clock = pool.clock
        self._step_mib = max(1, int(pool.memory_capacity.max(initial=0)) // _STEPS)

    def memory_mib(self, request: PackRequest) -> int:
        """What it counts for, rounded up, so that memory does not make a class of nearly every request."""
        return -(-request.memory_mib // self._step_mib) * self._step_mib

    def loss(self, request: PackRequest, nodes: Nodes) -> Floats:
        """In milli GPU: (n, g) for a request that shares a GPU, by the GPU that it gets, else (n,).

        Infinite if that GPU has no room, and for all whole GPUs of a node but the first, since they are
        equal. The nodes must have room.
        """
        self._refresh()
        pool, copies = self._pool, self._copies
        gpu_milli, left = pool.gpu_milli[nodes], pool.cpu_milli[nodes] - request.cpu_milli
        memory_mib = pool.memory_mib[nodes] - self.memory_mib(request)
        if not request.part:
            found = copies.changed(self._found[nodes], gpu_milli, request)
            then = copies.usable(pool.model[nodes], left, memory_mib, found)
            return self._usable[nodes] - then - request.total_gpu_milli
        whole = gpu_milli == WHOLE_MILLI
        rows, gpus = np.nonzero((gpu_milli >= request.gpu_milli) & ~(whole & (whole.cumsum(axis=1) > 1)))
        at = nodes[rows]
        found = copies.one_changed(self._found[at], gpu_milli[rows], gpu_milli[rows, gpus], request.gpu_milli)
        then = copies.usable(pool.model[at], left[rows], memory_mib[rows], found)
        loss = np.full(gpu_milli.shape, np.inf)
        loss[rows, gpus] = self._usable[at] - then - request.gpu_milli
        return loss

    def _refresh(self) -> None:
        pool = self._pool
        if self._clock < pool.clock:
            changed = np.flatnonzero(pool.stamp > self._clock)
            self._found[changed] = self._copies.by_gpus(pool.gpu_milli[changed])
            self._usable[changed] = self._copies.usable(
                pool.model[changed],
                pool.cpu_milli[changed],
                pool.memory_mib[changed],
                self._found[changed],
            )
            self._clock = pool.clock
