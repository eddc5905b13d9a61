"""Decides where a request goes: best score first, the pool's order breaks ties.

The pool is what is free on each node, as arrays over nodes, with a log that undoes. The order of nodes is the order
in which ties are broken. Every change stamps its node with a new ``clock``. Scores are kept per equivalence class of
requests, with that clock: a decision rescores only the nodes that changed since the class was last asked for.

The target workload is what a policy may know of the pods to come, their distribution. As in "Beware of Fragmentation"
(USENIX ATC 2023): the most frequent specifications that together cover 95 % of the pods, their shares normalised.
Memory is no part of a specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from unidle.errors import CannotRun
from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.model import OpLog

WHOLE_MILLI: Final = 1000  # one GPU
IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class NodeTerms(NamedTuple):
    """Where a request may go, apart from what is free: bit sets over what the pool has interned.

    ``models`` 0 allows every node; ``require`` are labels that a node must have, ``avoid`` taints that
    it must not have.
    """

    models: int = 0
    require: int = 0
    avoid: int = 0


class PackRequest(NamedTuple):
    """One pod or rank; equal requests are one equivalence class. ``gpu_milli`` is per GPU."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0
    terms: NodeTerms = NodeTerms()

    @property
    def total_gpu_milli(self) -> int:
        return self.gpus * self.gpu_milli

    @property
    def part(self) -> bool:
        """Whether it shares a GPU."""
        return self.gpus == 1 and self.gpu_milli < WHOLE_MILLI


_WORD = 63  # bits of a feature word: they are compared as signed 64-bit integers


class NodePool:
    """Free CPU, memory and GPU shares of ``n`` nodes with up to ``g`` GPUs each.

    Arrays of shape (n,): ``cpu_milli``, ``memory_mib``, ``free_milli`` (sum over GPUs), ``largest_milli``
    (most free GPU), ``gpus`` (present), ``model`` (code), ``stamp``; of shape (n, g): ``gpu_milli``, 0
    where a node has fewer; ``kinds`` (n, g + 1) counts the pods that share a GPU (column 0) and those
    that hold k whole GPUs (column k). ``*_capacity`` are the same of empty nodes. Only ``take`` and
    ``give_back`` change them.
    """

    def __init__(
        self, nodes: Sequence[NodeSize], features: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """``features`` are the labels and taints of nodes, by name; each distinct text is one bit."""
        self.sizes = tuple(nodes)
        self.names = tuple(node.name for node in nodes)
        self.gpus = np.array([node.gpus for node in nodes], np.int64)
        self.widest = max(1, int(self.gpus.max(initial=0)))
        self.model_names = tuple(sorted({node.model for node in nodes if node.model}))  # whatever the order
        self._model_bit = {name: 1 << k for k, name in enumerate(self.model_names)}
        codes = {name: k for k, name in enumerate(self.model_names)}
        # Nodes without a model have the last code, which no request can name.
        self.model = np.array([codes.get(node.model, len(codes)) for node in nodes], np.int64)
        self.cpu_milli = np.array([node.cpu_milli for node in nodes], np.int64)
        self.memory_mib = np.array([node.memory_mib for node in nodes], np.int64)
        slots = np.arange(self.widest)
        self.gpu_milli = np.where(slots < self.gpus[:, None], WHOLE_MILLI, 0).astype(np.int64)
        self.free_milli = self.gpu_milli.sum(axis=1)
        self.largest_milli = self.gpu_milli.max(axis=1, initial=0)
        self.kinds = np.zeros((len(nodes), self.widest + 1), np.int64)
        self.cpu_capacity = self.cpu_milli.copy()
        self.memory_capacity = self.memory_mib.copy()
        self.capacity_milli = self.free_milli.copy()
        self.stamp = np.zeros(len(nodes), np.int64)
        self.clock = 0
        self.log = OpLog()
        self._feature_bit: dict[str, int] = {}
        self._features = self._intern_features(features or {})

    def __len__(self) -> int:
        return len(self.names)

    # What requests mean here

    def request(self, demand: PodDemand, terms: NodeTerms = NodeTerms()) -> PackRequest:  # noqa: B008  (a constant)
        """The demand as this pool's request. A model that the pool does not have can be met nowhere."""
        models = 0
        for name in demand.models:
            models |= self._model_bit.get(name, 0)
        if demand.models and not models:
            models = 1 << (len(self.model_names) + 1)
        return PackRequest(
            demand.cpu_milli,
            demand.memory_mib,
            demand.gpus,
            demand.gpu_milli,
            terms._replace(models=terms.models | models),
        )

    def bit(self, feature: str) -> int:
        """The bit of a label or taint for :class:`NodeTerms`; one that no node has gets a new bit."""
        return self._feature_bit.setdefault(feature, 1 << len(self._feature_bit))

    def static_mask(self, terms: NodeTerms) -> Bools:
        """Which nodes a request with these terms may use, whatever is free: shape (n,)."""
        mask = np.ones(len(self), np.bool_)
        if terms.models:
            allowed = [bool(terms.models >> k & 1) for k in range(len(self.model_names) + 1)]
            mask &= np.array(allowed, np.bool_)[self.model]
        for word in range(self._features.shape[1]):
            have = self._features[:, word]
            must = terms.require >> (_WORD * word) & (1 << _WORD) - 1
            must_not = terms.avoid >> (_WORD * word) & (1 << _WORD) - 1
            mask &= ((have & must) == must) & ((have & must_not) == 0)
        if terms.require >> (_WORD * self._features.shape[1]):
            mask[:] = False  # a label that no node has
        return mask

    def fits(self, request: PackRequest, nodes: npt.NDArray[np.intp] | slice = slice(None)) -> Bools:
        """Which of ``nodes`` have the CPU and GPUs free; memory and terms are not checked."""
        fits = self.cpu_milli[nodes] >= request.cpu_milli
        if request.gpus == 1:
            fits &= self.largest_milli[nodes] >= request.gpu_milli
        elif request.gpus > 1:
            fits &= np.count_nonzero(self.gpu_milli[nodes] >= request.gpu_milli, axis=1) >= request.gpus
        return fits

    # Changes

    def take(self, node: int, gpus: Sequence[int], gpu_milli: int, cpu_milli: int, memory_mib: int) -> None:
        """Take ``gpu_milli`` of each of ``gpus`` (indices on the node), CPU and memory.

        Errors: :class:`CannotRun` when the node does not have them; nothing is taken then.
        """
        row = self.gpu_milli[node]
        short = self.cpu_milli[node] < cpu_milli or self.memory_mib[node] < memory_mib
        if (
            short
            or any(not 0 <= k < len(row) or row[k] < gpu_milli for k in gpus)
            or len(set(gpus)) < len(gpus)
        ):
            raise CannotRun(
                "the node does not have what is to be taken", field="node", value=self.names[node]
            )
        self._do(node, tuple(gpus), gpu_milli, cpu_milli, memory_mib)

    def give_back(
        self, node: int, gpus: Sequence[int], gpu_milli: int, cpu_milli: int, memory_mib: int
    ) -> None:
        """The reverse of ``take``, with the same arguments."""
        self._do(node, tuple(gpus), -gpu_milli, -cpu_milli, -memory_mib)

    def _do(self, node: int, gpus: tuple[int, ...], gpu_milli: int, cpu_milli: int, memory_mib: int) -> None:
        self._change(node, gpus, gpu_milli, cpu_milli, memory_mib)
        self.log.record(lambda: self._change(node, gpus, -gpu_milli, -cpu_milli, -memory_mib))

    def _change(
        self, node: int, gpus: tuple[int, ...], gpu_milli: int, cpu_milli: int, memory_mib: int
    ) -> None:
        row = self.gpu_milli[node]
        for k in gpus:
            row[k] -= gpu_milli
        self.cpu_milli[node] -= cpu_milli
        self.memory_mib[node] -= memory_mib
        if gpus:
            self.free_milli[node] -= gpu_milli * len(gpus)
            self.largest_milli[node] = row.max()
            kind = 0 if abs(gpu_milli) < WHOLE_MILLI else len(gpus)
            self.kinds[node, kind] += 1 if gpu_milli > 0 else -1
        self.clock += 1
        self.stamp[node] = self.clock

    def _intern_features(self, features: Mapping[str, Iterable[str]]) -> IntArray:
        bits = [0] * len(self.names)
        for k, name in enumerate(self.names):
            for feature in features.get(name, ()):
                bits[k] |= self.bit(feature)
        words = -(-len(self._feature_bit) // _WORD)
        table = [[have >> (_WORD * word) & (1 << _WORD) - 1 for word in range(words)] for have in bits]
        return np.array(table, np.int64).reshape(len(bits), words)


COVER_PPM: Final = 950_000


@dataclass(frozen=True, slots=True)
class TargetWorkload:
    """Specifications as columns of shape (w,); ``share`` sums to 1, ``allowed`` is (w, models + 1).

    ``memory_mib`` is the mean of the pods of each, which it does not tell apart.
    """

    cpu_milli: IntArray
    memory_mib: IntArray
    gpus: IntArray
    gpu_milli: IntArray
    share: Floats
    allowed: Bools


def target_workload(
    requests: Iterable[PackRequest], models: int, cover_ppm: int = COVER_PPM
) -> TargetWorkload:
    """The target workload of these pods on a pool with ``models`` GPU models."""
    counts: Counter[tuple[int, int, int, int]] = Counter()
    memory_mib: Counter[tuple[int, int, int, int]] = Counter()
    for r in requests:
        spec = r.cpu_milli, r.gpu_milli, r.gpus, r.terms.models
        counts[spec] += 1
        memory_mib[spec] += r.memory_mib
    total = counts.total()
    # Equal counts: the larger specification first, as published.
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept: list[tuple[tuple[int, int, int, int], int]] = []
    covered = 0
    for spec, count in ordered:
        if covered * 1_000_000 >= cover_ppm * total:
            break
        kept.append((spec, count))
        covered += count
    columns = np.array([spec[:3] for spec, _ in kept], np.int64).reshape(-1, 3)
    masks = [spec[3] for spec, _ in kept]
    return TargetWorkload(
        cpu_milli=columns[:, 0],
        memory_mib=np.array([memory_mib[spec] // count for spec, count in kept], np.int64),
        gpu_milli=columns[:, 1],
        gpus=columns[:, 2],
        share=np.array([count for _, count in kept], np.float64) / max(covered, 1),
        allowed=np.array(
            [[not mask or bool(mask >> k & 1) for k in range(models + 1)] for mask in masks], np.bool_
        ).reshape(len(kept), models + 1),
    )


Nodes = npt.NDArray[np.intp]


class NodeChoice(NamedTuple):
    """A node (index in the pool) and the indices of its GPUs."""

    node: int
    gpus: tuple[int, ...]


class Scorer(Protocol):
    """Scores nodes for a request. Pure, except for its caches."""

    def key(self, request: PackRequest) -> Hashable:
        """Requests with equal keys have equal scores on every node."""

    def score(self, pool: NodePool, request: PackRequest, nodes: Nodes) -> tuple[IntArray, IntArray]:
        """Scores of ``nodes``, all of which have the CPU and GPUs: at least 0, higher is better.

        With them, for a request that shares a GPU, which GPU of each node is meant; else zeros.
        """

    def pick(self, pool: NodePool, request: PackRequest, scores: IntArray, /) -> int:
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

    def __init__(self, pool: NodePool, scorer: Scorer) -> None:
        self.pool, self.scorer = pool, scorer
        self._kept: dict[Hashable, _Kept] = {}
        self._masks: dict[NodeTerms, Bools] = {}

    def decide(self, request: PackRequest) -> NodeChoice | None:
        """Where it goes, or None where no node has room. Takes nothing."""
        kept = self._current(request)
        scores = np.where(self._may(request), kept.scores, -1)
        node = self.scorer.pick(self.pool, request, scores)
        if node < 0 or scores[node] < 0:
            return None
        if not request.gpus:
            return NodeChoice(node, ())
        if request.part:
            return NodeChoice(node, (int(kept.gpu[node]),))
        return NodeChoice(node, tightest(self.pool, request, node))

    def bind(self, request: PackRequest, choice: NodeChoice) -> None:
        """Take what was decided."""
        self.pool.take(choice.node, choice.gpus, request.gpu_milli, request.cpu_milli, request.memory_mib)

    def scores(self, request: PackRequest) -> IntArray:
        """Scores of all nodes, -1 where the request does not fit: shape (n,)."""
        return np.where(self._may(request), self._current(request).scores, -1)

    def _may(self, request: PackRequest) -> Bools:
        mask = self._masks.get(request.terms)
        if mask is None:
            mask = self._masks[request.terms] = self.pool.static_mask(request.terms)
        may: Bools = mask & (self.pool.memory_mib >= request.memory_mib)
        return may

    def _current(self, request: PackRequest) -> _Kept:
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


def tightest(pool: NodePool, request: PackRequest, node: int) -> tuple[int, ...]:
    """The GPUs with the least room that still hold the request, lowest index first among equals."""
    row = pool.gpu_milli[node]
    if request.gpu_milli == WHOLE_MILLI:
        return tuple(np.flatnonzero(row == WHOLE_MILLI)[: request.gpus].tolist())
    room = np.where(row >= request.gpu_milli, row, WHOLE_MILLI + 1)
    return tuple(sorted(np.argsort(room, kind="stable")[: request.gpus].tolist()))
