"""Which slices are free, node by node: bit masks that a placement policy can search quickly."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from unidle.fleet import Fleet, slices_of
from unidle.jobs import Select

ANY: Final = Select()
Bits: TypeAlias = npt.NDArray[
    Any
]  # one mask per node: uint64, or Python integers where a node has more slices
_WORD: Final = 64


@dataclass(slots=True)
class NodeSlots:
    """One node's slices of one kind. Bit ``k`` of ``free`` is slice ``slices[k]`` (an id).

    ``models`` are the masks of the slices of each device model.
    """

    node: str
    order: int
    slices: tuple[str, ...]
    free: int
    models: dict[str, int] = field(default_factory=dict)

    def of_models(self, wanted: Select) -> int:
        """The mask of the slices on devices of the models that ``wanted`` allows."""
        return sum(mask for model, mask in self.models.items() if wanted.allows(model))


@dataclass(slots=True)
class Occupancy:
    """Free slices per kind of device, in the fleet's order. Rebuilt from the view, never stored."""

    nodes: dict[str, list[NodeSlots]] = field(default_factory=dict)  # kind -> nodes in order
    open: dict[str, list[int]] = field(default_factory=dict)  # kind -> orders of nodes with a free slice
    free: dict[str, int] = field(default_factory=dict)  # kind -> number of free slices
    total: dict[str, int] = field(default_factory=dict)  # kind -> number of slices
    largest: dict[str, int] = field(default_factory=dict)  # kind -> most slices of one node
    _room: dict[tuple[str, int, Select], int] = field(default_factory=dict)  # answers of ``room``
    _where: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # slice -> (kind, order, bit)
    _bits: dict[str, Bits] = field(default_factory=dict)  # kind -> free masks in order
    _model_bits: dict[tuple[str, Select], Bits] = field(default_factory=dict)  # answers of ``model_bits``

    @classmethod
    def of(cls, fleet: Fleet, taken: set[str], unfit: set[str]) -> Occupancy:
        """``taken`` and ``unfit`` are slice ids that are not free."""
        self = cls()
        for node in fleet.nodes:
            by_kind: dict[str, list[str]] = {}
            masks: dict[str, dict[str, int]] = {}
            for device in node.devices:
                ids = by_kind.setdefault(device.kind, [])
                models = masks.setdefault(device.kind, {})
                new = [s.id for s in slices_of(device)]
                models[device.model] = models.get(device.model, 0) | ((1 << len(new)) - 1) << len(ids)
                ids += new
            for kind, ids in by_kind.items():
                self._add_node(kind, node.id, tuple(ids), taken | unfit, masks[kind])
        for kind, nodes in self.nodes.items():
            self._bits[kind] = _as_bits([node.free for node in nodes], self.largest[kind])
        return self

    def _add_node(
        self, kind: str, node: str, ids: tuple[str, ...], busy: set[str], models: dict[str, int]
    ) -> None:
        nodes = self.nodes.setdefault(kind, [])
        mask = 0
        for bit, slice_id in enumerate(ids):
            self._where[slice_id] = (kind, len(nodes), bit)
            mask |= (slice_id not in busy) << bit
        if mask:
            self.open.setdefault(kind, []).append(len(nodes))
        nodes.append(NodeSlots(node, len(nodes), ids, mask, models))
        self.open.setdefault(kind, [])
        self.free[kind] = self.free.get(kind, 0) + mask.bit_count()
        self.total[kind] = self.total.get(kind, 0) + len(ids)
        self.largest[kind] = max(self.largest.get(kind, 0), len(ids))

    def room(self, kind: str, each: int, models: Select = ANY) -> int:
        """Ranks of ``each`` slices on devices of these models that the nodes hold when all is free."""
        ranks = self._room.get((kind, each, models))
        if ranks is None:
            there = kind in self.nodes
            ranks = int((counts(self.model_bits(kind, models)) // each).sum()) if there else 0
            self._room[kind, each, models] = ranks
        return ranks

    def free_bits(self, kind: str) -> Bits:
        """The free masks of the nodes of one kind, in order. Not to be changed."""
        return self._bits[kind]

    def model_bits(self, kind: str, models: Select) -> Bits:
        """The masks of slices on devices of these models, node by node."""
        found = self._model_bits.get((kind, models))
        if found is None:
            found = _as_bits([node.of_models(models) for node in self.nodes[kind]], self.largest[kind])
            self._model_bits[kind, models] = found
        return found

    def free_of(self, kind: str, models: Select) -> int:
        """Free slices on devices of these models."""
        if kind not in self.nodes or models == ANY:
            return self.free.get(kind, 0)
        return int(counts(self._bits[kind] & self.model_bits(kind, models)).sum())

    def knows(self, slice_id: str) -> bool:
        return slice_id in self._where

    def kind_of(self, slice_id: str) -> str:
        """The kind of device that a slice is of; empty for one that the fleet does not have."""
        return self._where[slice_id][0] if slice_id in self._where else ""

    def is_free(self, slice_id: str) -> bool:
        kind, order, bit = self._where[slice_id]
        return bool(self.nodes[kind][order].free >> bit & 1)

    def take(self, slice_id: str) -> None:
        kind, order, bit = self._where[slice_id]
        slots = self.nodes[kind][order]
        if not slots.free >> bit & 1:
            return
        slots.free &= ~(1 << bit)
        self._bits[kind][order] = slots.free
        self.free[kind] -= 1
        if not slots.free:
            opened = self.open[kind]
            del opened[bisect_left(opened, order)]

    def give_back(self, slice_id: str) -> None:
        kind, order, bit = self._where[slice_id]
        slots = self.nodes[kind][order]
        if slots.free >> bit & 1:
            return
        if not slots.free:
            insort(self.open[kind], order)
        slots.free |= 1 << bit
        self._bits[kind][order] = slots.free
        self.free[kind] += 1


def counts(bits: Bits) -> npt.NDArray[np.int64]:
    """How many slices each mask holds."""
    if bits.dtype == np.uint64:
        return np.bitwise_count(bits).astype(np.int64)
    return np.array([mask.bit_count() for mask in bits.tolist()], np.int64)


def _as_bits(masks: list[int], widest: int) -> Bits:
    return np.array(masks, np.uint64 if widest <= _WORD else object)
