"""FGD: the node, and on it the GPU, whose fragmentation grows least.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023. The score is int(100 * sigmoid(decrease / 1000)), the decrease in milli GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from unidle.place.pack.engine import Nodes
from unidle.place.pack.fragments import Fragments
from unidle.place.pack.pool import Pool
from unidle.place.pack.request import WHOLE_MILLI, IntArray, Request

_SCALE = 100


@dataclass(frozen=True, slots=True)
class Fgd:
    """The published policy (see the module)."""

    fragments: Fragments

    def key(self, request: Request) -> Hashable:
        return request.cpu_milli, request.gpus, request.gpu_milli

    def score(self, pool: Pool, request: Request, nodes: Nodes) -> tuple[IntArray, IntArray]:
        grown = self.fragments.growth(pool, request, nodes)
        scores = (_SCALE / (1.0 + np.exp(grown / WHOLE_MILLI))).astype(np.int64)
        if not request.part:
            return scores, np.zeros(len(nodes), np.int64)
        scores[np.isinf(grown)] = -1
        return best_gpu(scores)

    def pick(self, _pool: Pool, _request: Request, scores: IntArray, /) -> int:
        return int(scores.argmax())


def best_gpu(scores: IntArray) -> tuple[IntArray, IntArray]:
    """The best score of each node and its GPU, of scores by GPU (n, g); the first among equals."""
    gpu = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), gpu], gpu
