"""How much of a node's free GPU share the target workload could use, counted in several copies.

FGD asks whether one pod of a specification fits. Here each specification fills the node alone:
min(free CPU / its CPU, the sum over GPUs of floor(free / its share)) copies, or for several GPUs the
GPUs that fit divided by their number. That sees CPU that runs out before the GPUs do, which one pod does not.
"""

from __future__ import annotations

import numpy as np

from unidle.place.pack.engine import Nodes
from unidle.place.pack.fragments import after
from unidle.place.pack.pool import Pool
from unidle.place.pack.request import WHOLE_MILLI, Floats, IntArray, Request
from unidle.place.pack.workload import Target

_LEVELS = WHOLE_MILLI + 1


class Copies:
    """The measure for nodes of any state; built once per target workload and pool."""

    def __init__(self, target: Target) -> None:
        shape = np.stack([target.cpu_milli, target.gpus, target.gpu_milli], axis=1)
        shape, where = np.unique(shape[target.gpus > 0], axis=0, return_inverse=True)
        share = np.zeros((target.allowed.shape[1], len(shape)))
        used = target.gpus > 0
        np.add.at(share.T, where.ravel(), target.allowed[used] * target.share[used][:, None])
        # Specifications of one GPU first.
        order = np.argsort(shape[:, 1] > 1, kind="stable")
        shape, share = shape[order], share[:, order]
        self.cpu_milli, self.gpus, self.gpu_milli = np.ascontiguousarray(shape.T)
        self._ones = int(np.count_nonzero(self.gpus == 1))
        self._worth = share * (self.gpus * self.gpu_milli)  # (models + 1, w): milli GPU of one copy
        self._fits = np.arange(_LEVELS)[:, None] // np.maximum(self.gpu_milli[: self._ones], 1)
        self._per_cpu = 1.0 / np.maximum(self.cpu_milli, 1)

    def copies(self, gpu_milli: IntArray) -> Floats:
        """Copies of each specification by GPUs alone: (n, g) -> (n, w)."""
        found = np.empty((len(gpu_milli), len(self.gpus)))
        found[:, : self._ones] = self._fits[gpu_milli].sum(axis=1)
        for w in range(self._ones, len(self.gpus)):
            found[:, w] = np.count_nonzero(gpu_milli >= self.gpu_milli[w], axis=1) // self.gpus[w]
        return found

    def usable(self, model: IntArray, cpu_milli: IntArray, copies: Floats) -> Floats:
        """The measure, in milli GPU: model, CPU (n,), copies by GPUs (n, w) -> (n,)."""
        bounded = np.minimum(copies, cpu_milli[:, None] * self._per_cpu)
        usable: Floats = np.einsum("nw,nw->n", self._worth[model], bounded)
        return usable

    def loss(self, pool: Pool, request: Request, nodes: Nodes) -> Floats:
        """What becomes unusable beyond what the request takes, in milli GPU.

        Shape (n, g) for a request that shares a GPU, by the GPU that it gets (infinite where that has
        no room), else (n,). The nodes must have room.
        """
        model, cpu_milli, gpu_milli = pool.model[nodes], pool.cpu_milli[nodes], pool.gpu_milli[nodes]
        copies = self.copies(gpu_milli)
        before = self.usable(model, cpu_milli, copies)
        left = cpu_milli - request.cpu_milli
        if not request.part:
            then = self.usable(model, left, self.copies(after(gpu_milli, request)))
            return before - then - request.total_gpu_milli
        rows, gpus = np.nonzero(gpu_milli >= request.gpu_milli)
        changed = gpu_milli[rows, gpus]
        rest = changed - request.gpu_milli
        swapped = copies[rows]
        swapped[:, : self._ones] += self._fits[rest] - self._fits[changed]
        for w in range(self._ones, len(self.gpus)):
            fits = np.count_nonzero(gpu_milli >= self.gpu_milli[w], axis=1)[rows]
            lost = (changed >= self.gpu_milli[w]) & (rest < self.gpu_milli[w])
            swapped[:, w] = (fits - lost) // self.gpus[w]
        loss = np.full(gpu_milli.shape, np.inf)
        loss[rows, gpus] = before[rows] - self.usable(model[rows], left[rows], swapped) - request.gpu_milli
        return loss
