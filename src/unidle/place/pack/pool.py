"""What is free on each node, as arrays over nodes, with a journal that undoes.

The order of nodes is the order in which ties are broken. Every change stamps its node with a new
``clock``, so that code that keeps something per node recomputes only the nodes stamped since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from unidle.errors import CannotRun
from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.request import WHOLE_MILLI, Bools, IntArray, Request, Terms

_WORD = 63  # bits of a feature word: they are compared as signed 64-bit integers


class Pool:
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
        self._journal: list[tuple[int, tuple[int, ...], int, int, int]] = []
        self._feature_bit: dict[str, int] = {}
        self._features = self._intern_features(features or {})

    def __len__(self) -> int:
        return len(self.names)

    # What requests mean here

    def request(self, demand: Demand, terms: Terms = Terms()) -> Request:  # noqa: B008  (a constant)
        """The demand as this pool's request. A model that the pool does not have can be met nowhere."""
        models = 0
        for name in demand.models:
            models |= self._model_bit.get(name, 0)
        if demand.models and not models:
            models = 1 << (len(self.model_names) + 1)
        return Request(
            demand.cpu_milli,
            demand.memory_mib,
            demand.gpus,
            demand.gpu_milli,
            terms._replace(models=terms.models | models),
        )

    def bit(self, feature: str) -> int:
        """The bit of a label or taint for :class:`Terms`; one that no node has gets a new bit."""
        return self._feature_bit.setdefault(feature, 1 << len(self._feature_bit))

    def static_mask(self, terms: Terms) -> Bools:
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

    def fits(self, request: Request, nodes: npt.NDArray[np.intp] | slice = slice(None)) -> Bools:
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
        self._change(node, tuple(gpus), gpu_milli, cpu_milli, memory_mib)

    def give_back(
        self, node: int, gpus: Sequence[int], gpu_milli: int, cpu_milli: int, memory_mib: int
    ) -> None:
        """The reverse of ``take``, with the same arguments."""
        self._change(node, tuple(gpus), -gpu_milli, -cpu_milli, -memory_mib)

    def checkpoint(self) -> int:
        """A place in the journal that ``rollback`` can return to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change after the checkpoint, last first."""
        while len(self._journal) > mark:
            node, gpus, gpu_milli, cpu_milli, memory_mib = self._journal[-1]
            self._change(node, gpus, -gpu_milli, -cpu_milli, -memory_mib)
            del self._journal[-2:]

    def settle(self) -> None:
        """Forget the journal: what happened so far stays."""
        self._journal.clear()

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
        self._journal.append((node, gpus, gpu_milli, cpu_milli, memory_mib))

    def _intern_features(self, features: Mapping[str, Iterable[str]]) -> IntArray:
        bits = [0] * len(self.names)
        for k, name in enumerate(self.names):
            for feature in features.get(name, ()):
                bits[k] |= self.bit(feature)
        words = -(-len(self._feature_bit) // _WORD)
        table = [[have >> (_WORD * word) & (1 << _WORD) - 1 for word in range(words)] for have in bits]
        return np.array(table, np.int64).reshape(len(bits), words)
