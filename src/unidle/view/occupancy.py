"""Which slices are free, node by node: bit masks that a placement policy can search quickly."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from unidle.fleet import Device, Fleet, Node, slices_of
from unidle.view.changes import Changes


@dataclass(slots=True)
class NodeSlots:
    """One node's slices of one kind. Bit ``k`` of ``free`` is slice ``slices[k]`` (an id)."""

    node: str
    order: int
    slices: tuple[str, ...]
    free: int

    def mask(self, slices: Iterable[str]) -> int:
        """These slices of the node as bits."""
        return sum(1 << self.slices.index(slice_id) for slice_id in slices)


@dataclass(slots=True)
class Occupancy:
    """Free slices per kind of device, in the fleet's order. Rebuilt from the view, never stored.

    Parts of a device that was cut on demand are never free here: each was made for someone, and what
    is left is given out by cutting the device again (``place.sharing``).
    """

    nodes: dict[str, list[NodeSlots]] = field(default_factory=dict)  # kind -> nodes in order
    open: dict[str, list[int]] = field(default_factory=dict)  # kind -> orders of nodes with a free slice
    free: dict[str, int] = field(default_factory=dict)  # kind -> number of free slices
    total: dict[str, int] = field(default_factory=dict)  # kind -> number of slices
    largest: dict[str, int] = field(default_factory=dict)  # kind -> most slices of one node
    changes: Changes[tuple[str, int]] = field(default_factory=Changes)  # (kind, order)
    _room: dict[tuple[str, int], int] = field(default_factory=dict)  # answers of ``room``
    _made: set[str] = field(default_factory=set)  # slices that are parts made on demand
    _where: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # slice -> (kind, order, bit)

    @classmethod
    def of(cls, fleet: Fleet, taken: set[str], unfit: set[str]) -> Occupancy:
        """``taken`` and ``unfit`` are slice ids that are not free."""
        self, busy = cls(), taken | unfit
        for node in fleet.nodes:
            for kind, ids in self._slices(node).items():
                self._add_node(kind, node.id, tuple(ids), busy)
            for device in node.devices:
                if device.cut is not None:
                    ids = [s.id for s in slices_of(device)]
                    self._where.update(dict.fromkeys(ids, self._where[ids[0]]))
        return self

    def recut(self, before: Device, after: Device, *, down: bool) -> None:
        """A device has other slices now: it stays one bit, which is free where the device is whole and healthy."""
        kind, order, bit = self._where[slices_of(before)[0].id]
        slots = self.nodes[kind][order]
        for piece in slices_of(before):
            del self._where[piece.id]
            self._made.discard(piece.id)
        ids = [piece.id for piece in slices_of(after)]
        self._where.update(dict.fromkeys(ids, (kind, order, bit)))
        if after.cut is not None:
            self._made.update(ids)
        slots.slices = (*slots.slices[:bit], ids[0], *slots.slices[bit + 1 :])
        is_free = after.cut is None and not down
        was_open, was_free = bool(slots.free), bool(slots.free >> bit & 1)
        if is_free != was_free:
            slots.free ^= 1 << bit
            self.free[kind] += 1 if is_free else -1
        opened = self.open[kind]
        if slots.free and not was_open:
            insort(opened, order)
        elif was_open and not slots.free:
            del opened[bisect_left(opened, order)]
        self.changes.add((kind, order))

    def _slices(self, node: Node) -> dict[str, list[str]]:
        """The node's slices by kind; of a device that is cut on demand the first part, which represents all of
        it.
        """
        by_kind: dict[str, list[str]] = {}
        for device in node.devices:
            ids = [s.id for s in slices_of(device)]
            if device.cut is not None:
                self._made.update(ids)
            by_kind.setdefault(device.kind, []).extend(ids if device.cut is None else ids[:1])
        return by_kind

    def _add_node(self, kind: str, node: str, ids: tuple[str, ...], busy: set[str]) -> None:
        nodes = self.nodes.setdefault(kind, [])
        mask = 0
        for bit, slice_id in enumerate(ids):
            self._where[slice_id] = (kind, len(nodes), bit)
            mask |= (slice_id not in busy and slice_id not in self._made) << bit
        if mask:
            self.open.setdefault(kind, []).append(len(nodes))
        nodes.append(NodeSlots(node, len(nodes), ids, mask))
        self.open.setdefault(kind, [])
        self.free[kind] = self.free.get(kind, 0) + mask.bit_count()
        self.total[kind] = self.total.get(kind, 0) + len(ids)
        self.largest[kind] = max(self.largest.get(kind, 0), len(ids))

    def room(self, kind: str, each: int) -> int:
        """Ranks of ``each`` slices that the nodes hold when all is free."""
        ranks = self._room.get((kind, each))
        if ranks is None:
            ranks = sum(len(node.slices) // each for node in self.nodes.get(kind, ()))
            self._room[kind, each] = ranks
        return ranks

    def knows(self, slice_id: str) -> bool:
        return slice_id in self._where

    def knows_all(self, slice_ids: Iterable[str]) -> bool:
        return all(map(self._where.__contains__, slice_ids))

    def kind_of(self, slice_id: str) -> str:
        """The kind of device that a slice is of; empty for one that the fleet does not have."""
        return self._where[slice_id][0] if slice_id in self._where else ""

    def at(self, slice_id: str) -> tuple[str, NodeSlots, int]:
        """The kind and node of a slice that the fleet has, and its bit there."""
        kind, order, bit = self._where[slice_id]
        return kind, self.nodes[kind][order], 1 << bit

    def where(self, slice_id: str) -> tuple[str, int, int]:
        """Kind of a slice, place of its node among those of the kind, and its bit there."""
        return self._where[slice_id]

    def is_part(self, slice_id: str) -> bool:
        """Whether the slice is a part of a device that was cut on demand."""
        return slice_id in self._made

    def is_free(self, slice_id: str) -> bool:
        kind, order, bit = self._where[slice_id]
        return bool(self.nodes[kind][order].free >> bit & 1)

    def take(self, slice_ids: Iterable[str]) -> None:
        where, nodes = self._where, self.nodes
        for slice_id in slice_ids:
            kind, order, bit = where[slice_id]
            slots = nodes[kind][order]
            mask = 1 << bit
            if not slots.free & mask:
                continue
            slots.free ^= mask
            self.free[kind] -= 1
            self.changes.add((kind, order))
            if not slots.free:
                opened = self.open[kind]
                del opened[bisect_left(opened, order)]

    def give_back(self, slice_ids: Iterable[str]) -> None:
        where, nodes, made = self._where, self.nodes, self._made
        for slice_id in slice_ids:
            kind, order, bit = where[slice_id]
            slots = nodes[kind][order]
            mask = 1 << bit
            if slots.free & mask or slice_id in made:
                continue
            if not slots.free:
                insort(self.open[kind], order)
            slots.free |= mask
            self.free[kind] += 1
            self.changes.add((kind, order))
