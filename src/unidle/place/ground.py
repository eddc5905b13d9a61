"""What gangs are placed on: a fleet's tree with the free slices of each node, kept up to date.

Everything here follows from the view; it is kept from one decision to the next because to make it
costs more than a decision. Room is kept per class of ranks that need the same of a node. Nodes are
named by their position in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from unidle.fleet import WHOLE_PPM, Device, Fleet, Node, Slice, slices_of
from unidle.jobs import JobSpec, Requests, Share
from unidle.place.constraint import Blocked, Gang
from unidle.place.gang import Rooms
from unidle.place.tree import Ints, Tree, tree_of
from unidle.share.select import may_use, may_use_any
from unidle.view.occupancy import NodeSlots, Occupancy
from unidle.view.state import View

_PLENTY: Final = 1 << 60
_CLASSES_KEPT: Final = 64


class Taken:
    """What one round of decisions gave away so far, on top of the view."""

    def __init__(self) -> None:
        self.slices: dict[tuple[str, int], int] = {}  # (kind, position) -> mask
        self.hosts: dict[int, tuple[int, int]] = {}  # position -> CPU in thousandths, memory in bytes

    def take(self, kind: str, position: int, mask: int, asked: Requests, ranks: int) -> None:
        self.slices[kind, position] = self.slices.get((kind, position), 0) | mask
        cpu, memory = self.hosts.get(position, (0, 0))
        self.hosts[position] = (cpu + ranks * asked.cpu_milli, memory + ranks * asked.memory_bytes)


class Ground:
    """Free slices of one occupancy, by class of rank."""

    def __init__(self, view: View) -> None:
        self.fleet: Fleet = view.fleet
        self.occupancy: Occupancy = view.occupancy
        self.tree: Tree = tree_of(view.fleet)
        self.nodes: list[Node] = [view.fleet.nodes[k] for k in self.tree.source.tolist()]
        self.by_fleet: Ints = np.argsort(self.tree.source)  # positions in the order of the fleet
        self.place = place = {node.id: k for k, node in enumerate(self.nodes)}
        self.positions = {
            kind: [place[s.node] for s in slots] for kind, slots in self.occupancy.nodes.items()
        }
        self.classes: dict[tuple[str, str], RankClass] = {}
        # kinds with a device that is not cut: there, parts are for those who ask for parts
        self.whole_kinds = {d.kind for d in view.fleet.devices() if len(d.slices_ppm) == 1}
        self.memo: object = None  # of who decides on this ground, see ``place.quotas``
        self.sharing: object = None  # the same, see ``place.sharing``
        self._where: dict[str, tuple[str, int]] | None = None
        self._seen = self.occupancy.changed_since(0)[0]

    def follow(self, view: View) -> bool:
        """Take up what changed since the last call; False where it must be made anew."""
        if view.occupancy is not self.occupancy:
            return False
        self._seen, changes = self.occupancy.changed_since(self._seen)
        if changes is None:
            self.classes.clear()
            self.nodes = [view.fleet.nodes[k] for k in self.tree.source.tolist()]
            self.fleet, self._where = view.fleet, None
            return True
        touched: dict[str, set[int]] = {}
        for kind, order in changes:
            touched.setdefault(kind, set()).add(self.positions[kind][order])
        anywhere = set().union(*touched.values())
        if self.fleet is not view.fleet:
            self._recut(view.fleet, anywhere)
        for rank_class in self.classes.values():
            here = anywhere if rank_class.asks else touched.get(rank_class.kind)
            if here:
                rank_class.update(here, view, Taken())
                rank_class.rooms.forget()
        return True

    def _recut(self, fleet: Fleet, touched: Iterable[int]) -> None:
        """Take up which of the nodes have devices that were cut anew."""
        self.fleet = fleet
        for position in sorted(touched):
            node = fleet.nodes[int(self.tree.source[position])]
            if node is not self.nodes[position]:
                self.nodes[position], self._where = node, None
                for rank_class in self.classes.values():
                    rank_class.recut(position)

    def where(self) -> dict[str, tuple[str, int]]:
        """Kind and position of every slice."""
        if self._where is None:
            self._where = {
                slice_id: (kind, position)
                for kind, positions in self.positions.items()
                for position, slots in zip(positions, self.occupancy.nodes[kind], strict=True)
                for slice_id in slots.slices
            }
        return self._where

    def rank_class(self, spec: JobSpec, kind: str, view: View, taken: Taken) -> RankClass:
        """The class of a job's ranks on devices of this kind."""
        key = (kind, repr((spec.devices_per_rank, spec.requests, spec.where, spec.share)))
        found = self.classes.get(key)
        if found is None:
            if len(self.classes) >= _CLASSES_KEPT:
                self.classes.pop(next(iter(self.classes)))
            found = self.classes[key] = RankClass(self, spec, kind, view)
            found.update({p for k, p in taken.slices if k == kind or found.asks}, view, taken)
        return found


class RankClass:
    """Ranks that need ``each`` slices of one kind on one node, with the same selection and requests.

    ``rooms`` counts how many of them fit now; ``whole`` how many would if all were free and healthy;
    ``bound``, an array by position, how many would if all devices were, and CPU and memory as they are now.
    """

    def __init__(self, ground: Ground, spec: JobSpec, kind: str, view: View) -> None:
        self.kind, self.each, self.requests = kind, spec.devices_per_rank, spec.requests
        self.asks = bool(spec.requests.cpus or spec.requests.memory_bytes)
        self._ground, self._spec = ground, spec
        slots = ground.occupancy.nodes.get(kind, [])
        self._slots = dict(zip(ground.positions.get(kind, []), slots, strict=True))
        self._allowed = {p: self._mask(p) for p in self._slots}
        self._order: dict[
            int, list[int]
        ] = {}  # of a node's bits, where parts are asked for: small ones first
        self._by_size = spec.share is not None
        self.devices = sum(mask.bit_count() for mask in self._allowed.values())
        self._ever: dict[Gang, Blocked | None] = {}
        self._left: Ints | None = None
        room = np.zeros(len(self._ground.nodes), np.int64)
        most, self.bound = room.copy(), room.copy()
        for p in self._slots:
            host = self._host(p, view, Taken())
            room[p] = self._room(self.free(p, Taken()), host)
            self.bound[p] = self._room(self._allowed[p], host)
            most[p] = self._room(self._allowed[p], self._host(p, None, Taken()))
        self.rooms, self.whole = Rooms(ground.tree, room), Rooms(ground.tree, most)

    def update(self, positions: Iterable[int], view: View, taken: Taken) -> None:
        """Count anew on these nodes."""
        some = [p for p in sorted(positions) if p in self._slots]
        masks = [self.free(p, taken) for p in some]
        hosts = [self._host(p, view, taken) for p in some]
        values = [self._room(mask, host) for mask, host in zip(masks, hosts, strict=True)]
        self.rooms.set(np.array(some, np.int64), np.array(values, np.int64))
        if self.asks:
            bound = [self._room(self._allowed[p], host) for p, host in zip(some, hosts, strict=True)]
            self.bound[some] = bound
        if self._left is not None:
            self._left[some] = [mask.bit_count() for mask in masks]

    def recut(self, position: int) -> None:
        """The node's devices have other slices now."""
        if position not in self._slots:
            return
        before, after = self._allowed[position], self._mask(position)
        self._allowed[position] = after
        self._order.pop(position, None)
        if (more := after.bit_count() - before.bit_count()) or self.asks:
            self.devices += more
            self._ever.clear()
            at = np.array([position], np.int64)
            most = self._room(after, self._host(position, None, Taken()))
            self.whole.set(at, np.array([most], np.int64))

    def left(self, taken: Taken) -> Ints:
        """How many devices of each node this class may take now; (N,), by position, kept from the first call on."""
        if self._left is None:
            self._left = np.zeros(len(self._ground.nodes), np.int64)
            for p in self._slots:
                self._left[p] = self.free(p, taken).bit_count()
        return self._left

    def free(self, position: int, taken: Taken) -> int:
        """The mask of the node's slices that this class may take now."""
        return (
            self._slots[position].free & self._allowed[position] & ~taken.slices.get((self.kind, position), 0)
        )

    def least_ppm(self, ranks: int) -> int:
        """What so many of its slices count together, in ppm of a device: the smallest that are free, else of all."""
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for p, slots in self._slots.items():
            for bit, (_, piece) in enumerate(_pieces(self._ground.nodes[p], self.kind)):
                if self._allowed[p] >> bit & 1:
                    sizes[bool(slots.free >> bit & 1)].append(piece.share_ppm)
        found = sorted(sizes[True])[:ranks]
        return sum(found) + sum(sorted(sizes[False])[: ranks - len(found)])

    def slots(self, position: int) -> NodeSlots:
        return self._slots[position]

    def pick(self, position: int, mask: int) -> int:
        """Of the free slices in ``mask`` the one to take next, as a bit: the first, or the smallest part."""
        if not self._by_size:
            return mask & -mask
        order = self._order.get(position)
        if order is None:
            parts = [piece.share_ppm for _, piece in _pieces(self._ground.nodes[position], self.kind)]
            order = self._order[position] = sorted(range(len(parts)), key=lambda bit: (parts[bit], bit))
        return next(1 << bit for bit in order if mask >> bit & 1)

    def never(self, gang: Gang) -> Blocked | None:
        """Why not even the whole fleet, empty and healthy, holds the gang; None where it does."""
        if gang not in self._ever:
            answer = self.whole.plan(gang)
            self._ever[gang] = answer if isinstance(answer, Blocked) else None
        return self._ever[gang]

    def _mask(self, position: int) -> int:
        whole = self.kind in self._ground.whole_kinds
        return _mask(self._ground.nodes[position], self._slots[position], self.kind, self._spec, whole)

    def _room(self, mask: int, host: tuple[int, int]) -> int:
        ranks = mask.bit_count() // self.each
        if self.asks:
            ranks = min(ranks, max(host[0], 0) // max(self.requests.cpu_milli, 1))
            ranks = min(ranks, max(host[1], 0) // max(self.requests.memory_bytes, 1))
        return ranks

    def _host(self, position: int, view: View | None, taken: Taken) -> tuple[int, int]:
        """CPU (thousandths of cores) and memory that nobody requested; plenty where the node's is not known."""
        if not self.asks:
            return _PLENTY, _PLENTY
        node = self._ground.nodes[position]
        used = view.hosts.get(node.id, (0, 0)) if view is not None else (0, 0)
        also = taken.hosts.get(position, (0, 0))
        cpu = round(node.cpus * 1000) if node.cpus else _PLENTY
        return cpu - used[0] - also[0], (node.memory_bytes or _PLENTY) - used[1] - also[1]


def _mask(node: Node, slots: NodeSlots, kind: str, spec: JobSpec, whole: bool) -> int:
    """The slices that a job with these wishes may ever use. ``whole``: the fleet has devices that are not cut."""
    where, share = spec.where, spec.share
    if any(node.labels.get(key) != value for key, value in where.labels.items()):
        return 0
    if not set(node.taints) <= set(where.tolerate):
        return 0
    if may_use_any(where) and share is None and len(slots.slices) == len(node.devices):
        return (1 << len(slots.slices)) - 1  # nothing is cut here, and there is one kind
    mask = 0
    for bit, (device, piece) in enumerate(_pieces(node, kind)):
        fits = may_use(device, where) is None
        mask |= (fits and _is_part(device, piece, share, whole)) << bit
    return mask


def _is_part(device: Device, piece: Slice, share: Share | None, whole: bool) -> bool:
    """Whether a slice is what the job asks for: a large enough part, or else a whole device where there are any."""
    if device.cut is not None:  # its first part stands for all of it: that is what it will be again
        return share is None and piece.id == slices_of(device)[0].id
    cut = len(device.slices_ppm) > 1
    if share is None:
        return not cut or not whole
    memory_bytes = device.memory_bytes * piece.share_ppm // WHOLE_PPM
    return cut and piece.share_ppm >= share.compute_ppm and memory_bytes >= share.memory_bytes


def _pieces(node: Node, kind: str) -> list[tuple[Device, Slice]]:
    """A node's slices of one kind, in the order of its bit mask."""
    return [(device, piece) for device in node.devices if device.kind == kind for piece in slices_of(device)]
