"""The free slices of each node of a fleet, and its free CPU and memory, kept up to date.

Everything here follows from the view; it is kept from one decision to the next because to make it
costs more than a decision. Nodes are named by their position in the network tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from unidle.fleet import Fleet, Node
from unidle.jobs import JobSpec, Requests, Where
from unidle.place.model import OpLog
from unidle.place.network.tree import Bools, Ints, Tree, tree_of
from unidle.place.nodes.hardware import (
    FleetPools,
    Masks,
    SliceMasks,
    count_slices,
    mask_of,
    words_of,
)
from unidle.place.nodes.links import NodeLinks
from unidle.place.nodes.reserve import OPEN, Access, Reserve, access_of
from unidle.view.jobs import JobView
from unidle.view.occupancy import NodeSlots, Occupancy
from unidle.view.state import View

_PLENTY: Final = 1 << 60
_TOUCHES_KEPT: Final = 65_536


class FreeSlices:
    """Free slices of one occupancy.

    ``free`` are masks by kind; ``hosts``, (2, N), are thousandths of cores and bytes of memory that no job
    requested. Both are those of the view, less what :meth:`take` gave away since the ``log`` was last rolled back.
    """

    def __init__(self, view: View, *, keeps_back: bool = True) -> None:
        """Without ``keeps_back`` spares are ordinary nodes, and no job may use what is on probation."""
        self.fleet: Fleet = view.fleet
        self.occupancy: Occupancy = view.occupancy
        self.tree: Tree = tree_of(view.fleet)
        self.nodes: list[Node] = [view.fleet.nodes[k] for k in self.tree.source.tolist()]
        self.by_fleet: Ints = np.argsort(self.tree.source)  # positions in the order of the fleet
        self.place = {node.id: k for k, node in enumerate(self.nodes)}
        self.positions = {
            kind: [self.place[s.node] for s in slots] for kind, slots in self.occupancy.nodes.items()
        }
        self.slots: dict[str, dict[int, NodeSlots]] = {
            kind: dict(zip(self.positions[kind], slots, strict=True))
            for kind, slots in self.occupancy.nodes.items()
        }
        # for ranks without devices: every node, and those that take work now
        self.no_slots = {k: NodeSlots(node.id, k, (), 0) for k, node in enumerate(self.nodes)}
        self.works: Bools = np.ones(len(self.nodes), np.bool_)
        self.pieces = {kind: SliceMasks(kind, self.nodes, at) for kind, at in self.positions.items()}
        self.pools = FleetPools(view.fleet)
        self.inner = NodeLinks(view.fleet.gpu_links)
        self.whole = np.array(
            [[round(n.cpus * 1000) or _PLENTY for n in self.nodes], [n.memory_bytes or _PLENTY for n in self.nodes]],
            np.int64,
        ).reshape(2, len(self.nodes))  # fmt: skip
        self._labelled: dict[tuple[str, str], Bools] = {}
        self._tainted = [(k, set(node.taints)) for k, node in enumerate(self.nodes) if node.taints]
        self.log = OpLog()
        self._touched: list[int] = []
        self._forgotten = 0  # touches before them
        policy = view.fleet.guard
        keeps = keeps_back and (policy.keeps_spares or policy.probation_work != "none")
        self.reserve = Reserve(view, self.place, self.pieces) if keeps else None
        self._read(view)

    def _read(self, view: View) -> None:
        """Everything again from the view."""
        if self.reserve is not None:
            self.reserve.follow(view)
        self._seen = self.occupancy.changes.since(0)[0]
        self._seen_hosts = view.requested.since(0)[0]
        self.free: dict[str, Masks] = {}
        for kind, slots in self.slots.items():
            words = self.pieces[kind].words
            self.free[kind] = np.zeros((len(self.nodes), words), np.uint64)
            masks = [self._mask(kind, position, s) for position, s in slots.items()]
            self.free[kind][list(slots)] = [words_of(mask, words) for mask in masks]
        self.hosts: Ints = self.whole.copy()
        for node in view.hosts:
            self._host_changed(node, view)
        self._close_nodes(view)
        self._forget()

    def follow(self, view: View) -> bool:
        """Apply what changed since the last call; False where it must be made again."""
        if view.occupancy is not self.occupancy:
            return False
        self._seen, changes = self.occupancy.changes.since(self._seen)
        self._seen_hosts, nodes = view.requested.since(self._seen_hosts)
        if changes is None or nodes is None:
            self._read(view)
            return True
        kept = self.reserve.follow(view) if self.reserve is not None else ()
        for kind, order in dict.fromkeys(changes):
            self._read_node(kind, self.positions[kind][order])
        for position in sorted(kept):
            for kind in self.slots:
                if position in self.slots[kind]:
                    self._read_node(kind, position)
        for node in dict.fromkeys(nodes):
            self._host_changed(node, view)
        self._close_nodes(view)
        if len(self._touched) > _TOUCHES_KEPT:
            self._forget()
        return True

    def _read_node(self, kind: str, position: int) -> None:
        free = self._mask(kind, position, self.slots[kind][position])
        self.free[kind][position] = words_of(free, self.pieces[kind].words)
        self._touched.append(position)

    def _mask(self, kind: str, position: int, slots: NodeSlots) -> int:
        """The free slices of a node, including those on probation that some jobs may use."""
        if self.reserve is None:
            return slots.free
        return slots.free | self.reserve.trial.get(kind, {}).get(position, 0)

    def _host_changed(self, node: str, view: View) -> None:
        position = self.place.get(node)  # a rank may run on a node that the fleet does not have any more
        if position is not None:
            cpu, memory = view.hosts[node]
            self.hosts[0, position] = self.whole[0, position] - cpu
            self.hosts[1, position] = self.whole[1, position] - memory
            self._touched.append(position)

    def _close_nodes(self, view: View) -> None:
        """Which nodes take work now; that of their devices is known by slices."""
        works = np.ones(len(self.nodes), np.bool_)
        works[[self.place[name] for name in view.shut_nodes() if name in self.place]] = False
        if not np.array_equal(works, self.works):
            self._touched += np.flatnonzero(works != self.works).tolist()
            self.works = works

    def _forget(self) -> None:
        self._forgotten += len(self._touched) + 1  # so that all classes have seen less
        self._touched.clear()

    # -- what one round gives away ---------------------------------------------------------------

    def take(self, kind: str, position: int, mask: int, asked: Requests, ranks: int) -> None:
        """Give slices of a node away, with what so many ranks request of it, until the log is rolled back."""
        self._give(kind, position, mask, asked, ranks)
        self.log.record(lambda: self._give(kind, position, mask, asked, -ranks))

    def _give(self, kind: str, position: int, mask: int, asked: Requests, ranks: int) -> None:
        """Slices of a node change hands, and what the ranks request with them; the inverse is that of ``-ranks``."""
        if mask:
            row = self.free[kind][position]
            if len(row) == 1:
                row[0] ^= np.uint64(mask)
            else:
                row ^= np.array(words_of(mask, len(row)), np.uint64)
        if asked.cpus or asked.memory_bytes:
            self.hosts[0, position] -= ranks * asked.cpu_milli
            self.hosts[1, position] -= ranks * asked.memory_bytes
        self._touched.append(position)

    def keep_firm(self, nodes: Iterable[str]) -> None:
        """Replace these nodes as spares until the log is rolled back: they get work that may not be stopped at once."""
        if self.reserve is not None:
            changed, undo = self.reserve.took(nodes)
            self._touched += sorted(changed)
            self.log.record(lambda: self._touched.extend(sorted(undo())))

    def touched_since(self, count: int) -> tuple[int, list[int] | None]:
        """How many touches of nodes there were in all, and those after the first ``count``; None if forgotten."""
        now = self._forgotten + len(self._touched)
        return now, self._touched[count - self._forgotten :] if count >= self._forgotten else None

    # -- by name and by class --------------------------------------------------------------------

    def at(self, slice_id: str) -> tuple[str, int] | None:
        """Kind and position of a slice; None for one that the fleet does not have."""
        if not self.occupancy.knows(slice_id):
            return None
        kind, order, _ = self.occupancy.where(slice_id)
        return kind, self.positions[kind][order]

    def is_free(self, slice_id: str) -> bool:
        """Whether a slice is free, with what was given away."""
        kind, order, bit = self.occupancy.where(slice_id)
        return bool(mask_of(self.free[kind][self.positions[kind][order]]) >> bit & 1)

    def left(self, kind: str) -> Ints:
        """Free devices of a kind by position. Shape (N,)."""
        return count_slices(self.free[kind])

    def access(self, spec: JobSpec, job: JobView | None = None) -> Access:
        """What of the reserve such a job may use; all of it where nothing is kept back."""
        return OPEN if self.reserve is None else access_of(spec, job)

    def open_nodes(self, where: Where) -> Bools:
        """Nodes with these labels, without a taint that is not tolerated. Shape (N,)."""
        found = np.ones(len(self.nodes), np.bool_)
        for label in where.labels.items():
            if label not in self._labelled:
                key, value = label
                self._labelled[label] = np.array([n.labels.get(key) == value for n in self.nodes], np.bool_)
            found &= self._labelled[label]
        for position, taints in self._tainted:
            found[position] &= taints <= set(where.tolerate)
        return found
