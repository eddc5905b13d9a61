"""The policies that packing is compared with: FGD, those that it was compared with, and first fit.

FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023) takes the node and GPU whose measure of fragmentation grows
least. Its score is int(100 * sigmoid(decrease / 1000)), the decrease in milli GPU. The others are those of section 6.1 of
the paper, with the integer scores of the published simulator. Where a policy does not choose the GPU, the tightest that
fits is taken.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from unidle.place.pack.fragmentation import Fragments, best_gpu
from unidle.place.pack.packer import WHOLE_MILLI, IntArray, NodePool, Nodes, PackRequest

_SCALE = 100  # of FGD
_TOP = 100  # of the others


@dataclass(frozen=True, slots=True)
class Fgd:
    """The published policy (see the module)."""

    fragments: Fragments

    def key(self, request: PackRequest) -> Hashable:
        return request.cpu_milli, request.gpus, request.gpu_milli

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        grown = self.fragments.growth(pool, request, nodes)
        scores = (_SCALE / (1.0 + np.exp(grown / WHOLE_MILLI))).astype(np.int64)
        if not request.part:
            return scores, np.zeros(len(nodes), np.int64)
        scores[np.isinf(grown)] = -1
        return best_gpu(scores)

    def pick(self, _pool: NodePool, _request: PackRequest, scores: IntArray, /) -> int:
        return int(scores.argmax())


class _First:
    """What the scorers here share: the shape of a request is its class, the first best node is taken."""

    def key(self, request: PackRequest) -> Hashable:
        return request.cpu_milli, request.gpus, request.gpu_milli

    def pick(self, _pool: NodePool, _request: PackRequest, scores: IntArray, /) -> int:
        return int(scores.argmax())


class FirstFitScorer(_First):
    """The first node that has room, and its first GPU that has."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        gpu = (pool.gpu_milli[nodes] >= request.gpu_milli).argmax(axis=1)
        return np.zeros(len(nodes), np.int64), gpu


class BestFit(_First):
    """The node with the least CPU and GPU left, each against the largest node's, in equal parts."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        cpu = (pool.cpu_milli[nodes] - request.cpu_milli) / pool.cpu_capacity.max()
        gpu = (pool.free_milli[nodes] - request.total_gpu_milli) / max(1, pool.capacity_milli.max())
        return ((1.0 - 0.5 * cpu - 0.5 * gpu) * _TOP).astype(np.int64), _tightest(pool, request, nodes)


class DotProduct(_First):
    """The node whose free CPU and GPU align least with the request (Tetris, GPUs of a node merged)."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        most_cpu, most_gpu = int(pool.cpu_capacity.max()), max(1, int(pool.capacity_milli.max()))
        cpu = pool.cpu_milli[nodes] / most_cpu * (request.cpu_milli / most_cpu)
        gpu = pool.free_milli[nodes] / most_gpu * (request.total_gpu_milli / most_gpu)
        return ((1.0 - (cpu + gpu) / 2) * _TOP).astype(np.int64), _tightest(pool, request, nodes)


class Packing(_First):
    """GPUs in use first, then free GPUs of nodes in use, then idle nodes."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        gpu = _tightest(pool, request, nodes)
        if not request.gpus:
            return np.zeros(len(nodes), np.int64), gpu
        free = pool.gpu_milli[nodes]
        whole = np.count_nonzero(free == WHOLE_MILLI, axis=1)
        room = np.where(free >= request.gpu_milli, free, WHOLE_MILLI + 1)
        taken = np.sort(room, axis=1)[:, : request.gpus]
        opened = np.count_nonzero(taken == WHOLE_MILLI, axis=1)
        shared = np.maximum(_TOP - (taken * 100 // WHOLE_MILLI).sum(axis=1) // 10, _TOP // 2)
        scores = np.where(opened > 0, np.maximum(_TOP // 2 - opened, _TOP // 3), shared)
        idle = np.maximum(_TOP // 3 - whole, whole)
        return np.where(whole == pool.gpus[nodes], idle, scores), gpu


class Clustering(_First):
    """Nodes whose pods are of the same kind (sharing, or k whole GPUs) first, then idle ones."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        gpu = _tightest(pool, request, nodes)
        if not request.gpus:
            return np.zeros(len(nodes), np.int64), gpu
        present = pool.kinds[nodes] > 0
        same = present[:, 0 if request.part else request.gpus]
        kinds = present.sum(axis=1)
        base = np.select([same & (kinds == 1), same, kinds == 0], [75, 50, 25], 0)
        most = max(1, int(pool.capacity_milli.max()))
        return base + 25 * (most - pool.free_milli[nodes]) // most, gpu


@dataclass(frozen=True, slots=True)
class Random:
    """Any node that has room, and any of its GPUs that has; chance comes from ``chance``."""

    chance: np.random.Generator

    def key(self, request: PackRequest) -> Hashable:
        return request.cpu_milli, request.gpus, request.gpu_milli

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        luck = self.chance.random((len(nodes), pool.widest))
        luck[pool.gpu_milli[nodes] < request.gpu_milli] = -1.0
        return np.zeros(len(nodes), np.int64), luck.argmax(axis=1)

    def pick(self, _pool: NodePool, _request: PackRequest, scores: IntArray, /) -> int:
        open_to = np.flatnonzero(scores >= 0)
        return int(self.chance.choice(open_to)) if open_to.size else -1


def _tightest(pool: NodePool, request: PackRequest, nodes: Nodes) -> IntArray:
    """The GPU of each node with the least room that is enough: shape (n,)."""
    free = pool.gpu_milli[nodes]
    gpu: IntArray = np.where(free >= request.gpu_milli, free, WHOLE_MILLI + 1).argmin(axis=1)
    return gpu
