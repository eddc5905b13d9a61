"""Decides where a request goes: best score first, the pool's order breaks ties.

Scores are kept per equivalence class, with the pool's clock: a decision rescores only the nodes that
changed since the class was last asked for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from unidle.place.pack.pool import Pool
from unidle.place.pack.request import WHOLE_MILLI, Bools, IntArray, Request, Terms

Nodes = npt.NDArray[np.intp]


class Choice(NamedTuple):
    """A node (index in the pool) and the indices of its GPUs."""

    node: int
    gpus: tuple[int, ...]


class Scorer(Protocol):
    """Scores nodes for a request. Pure, except for its caches."""

    def key(self, request: Request) -> Hashable:
        """Requests with equal keys have equal scores on every node."""

    def score(self, pool: Pool, request: Request, nodes: Nodes) -> tuple[IntArray, IntArray]:
        """Scores of ``nodes``, all of which have the CPU and GPUs: at least 0, higher is better.

        With them, for a request that shares a GPU, which GPU of each node is meant; else zeros.
        """

    def pick(self, pool: Pool, request: Request, scores: IntArray, /) -> int:
        """The node to take, the first where several are as good; -1 for none.

        ``scores`` are those of all nodes, -1 where the request cannot go.
        """


@dataclass(slots=True)
class _Kept:
    """Scores of one key and the clock up to which they hold."""

    scores: IntArray
    gpu: IntArray
    clock: int = -1


class Packer:
    """One pool, one scorer, and the scores kept between decisions."""

    def __init__(self, pool: Pool, scorer: Scorer) -> None:
        self.pool, self.scorer = pool, scorer
        self._kept: dict[Hashable, _Kept] = {}
        self._masks: dict[Terms, Bools] = {}

    def decide(self, request: Request) -> Choice | None:
        """Where it goes, or None where no node has room. Takes nothing."""
        kept = self._current(request)
        scores = np.where(self._may(request), kept.scores, -1)
        node = self.scorer.pick(self.pool, request, scores)
        if node < 0 or scores[node] < 0:
            return None
        if not request.gpus:
            return Choice(node, ())
        if request.part:
            return Choice(node, (int(kept.gpu[node]),))
        return Choice(node, tightest(self.pool, request, node))

    def bind(self, request: Request, choice: Choice) -> None:
        """Take what was decided."""
        self.pool.take(choice.node, choice.gpus, request.gpu_milli, request.cpu_milli, request.memory_mib)

    def scores(self, request: Request) -> IntArray:
        """Scores of all nodes, -1 where the request does not fit: shape (n,)."""
        return np.where(self._may(request), self._current(request).scores, -1)

    def _may(self, request: Request) -> Bools:
        mask = self._masks.get(request.terms)
        if mask is None:
            mask = self._masks[request.terms] = self.pool.static_mask(request.terms)
        may: Bools = mask & (self.pool.memory_mib >= request.memory_mib)
        return may

    def _current(self, request: Request) -> _Kept:
        pool, key = self.pool, self.scorer.key(request)
        kept = self._kept.get(key)
        if kept is None:
            nothing = np.full(len(pool), -1, np.int64)
            kept = self._kept[key] = _Kept(nothing, np.zeros(len(pool), np.int64))
        if kept.clock < pool.clock:
            changed = np.flatnonzero(pool.stamp > kept.clock)
            kept.scores[changed] = -1
            open_to = changed[pool.fits(request, changed)]
            if open_to.size:
                kept.scores[open_to], kept.gpu[open_to] = self.scorer.score(pool, request, open_to)
            kept.clock = pool.clock
        return kept


def tightest(pool: Pool, request: Request, node: int) -> tuple[int, ...]:
    """The GPUs with the least room that still hold the request, lowest index first among equals."""
    row = pool.gpu_milli[node]
    if request.gpu_milli == WHOLE_MILLI:
        return tuple(np.flatnonzero(row == WHOLE_MILLI)[: request.gpus].tolist())
    room = np.where(row >= request.gpu_milli, row, WHOLE_MILLI + 1)
    return tuple(sorted(np.argsort(room, kind="stable")[: request.gpus].tolist()))
