"""How much of a node's free GPU share the target workload could use, counted in several copies.

FGD checks whether one pod of a specification fits. Here each specification fills the node alone:
min(free CPU / its CPU, free memory / its memory, the sum over GPUs of floor(free / its share)) copies, or for
several GPUs the GPUs that fit divided by their number. Unlike a single pod, this shows where CPU and memory
run out before the GPUs do.
"""

from __future__ import annotations

import numpy as np

from unidle.place.pack.engine import Nodes
from unidle.place.pack.fragments import after
from unidle.place.pack.pool import Pool
from unidle.place.pack.request import WHOLE_MILLI, Floats, IntArray, Request
from unidle.place.pack.workload import Target

_LEVELS = WHOLE_MILLI + 1
_STEPS = 64  # of memory on the node with the most


class Copies:
    """The measure for nodes of any state; built once per target workload and pool."""

    def __init__(self, target: Target) -> None:
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
        fits = np.arange(_LEVELS)[:, None] // np.maximum(self.gpu_milli[: self._ones], 1)
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

    def changed(self, found: Floats, gpu_milli: IntArray, request: Request) -> Floats:
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

    def __init__(self, copies: Copies, pool: Pool) -> None:
        self._copies, self._pool = copies, pool
        self._found = copies.by_gpus(pool.gpu_milli)
        self._usable = copies.usable(pool.model, pool.cpu_milli, pool.memory_mib, self._found)
        self._clock = pool.clock
        self._step_mib = max(1, int(pool.memory_capacity.max(initial=0)) // _STEPS)

    def memory_mib(self, request: Request) -> int:
        """What it counts for, rounded up, so that memory does not make a class of nearly every request."""
        return -(-request.memory_mib // self._step_mib) * self._step_mib

    def loss(self, request: Request, nodes: Nodes) -> Floats:
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
