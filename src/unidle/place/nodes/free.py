"""The free slices of each node of a fleet, its free CPU and memory, and what of it is kept back for some jobs.

Everything here follows from the view; it is kept from one decision to the next because to make it
costs more than a decision. Nodes are named by their position in the network tree.

Spares are for jobs that come back after a fault, and for filler, which makes room for those at once. What is on
probation is for jobs of level low, if the fleet file allows it. For all other jobs these slices count as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.fleet import Fleet, Node, slices_of
from unidle.fleet.spares import Spares
from unidle.jobs import JobSpec, Requests, Where
from unidle.place.model import OpLog
from unidle.place.network.tree import Bools, Ints, Tree, tree_of
from unidle.place.nodes.hardware import WORD, FleetPools, Masks, SliceMasks, count_slices, mask_of, words_of
from unidle.place.nodes.links import NodeLinks
from unidle.view.jobs import JobView
from unidle.view.occupancy import NodeSlots, Occupancy
from unidle.view.spares import busy_nodes, comes_back, coming_back, on_trial
from unidle.view.state import View


class Access(NamedTuple):
    """What of that a job may use; ``places``: those of gangs that come back soon."""

    spares: bool = True
    probation: bool = True
    places: bool = True


OPEN: Final = Access()
_ALL_BITS: Final = np.uint64((1 << WORD) - 1)
_NONE: Final = Access(spares=False, probation=False, places=False)
_Bits: TypeAlias = dict[str, dict[int, int]]
"""By kind and position, slices of a node as bits."""


def access_of(spec: JobSpec, job: JobView | None = None) -> Access:
    """``job``: the job of this spec, if it is known; without it, the access of a job that never ran."""
    if spec.preemption == "low":
        return Access(spec.gives_way, probation=True, places=False)
    back = job is not None and comes_back(job) and spec.share is None
    return Access(back, probation=False, places=back)


class Reserve:
    """``spares`` by name and ``at``, (N,), where they or something on probation are. ``version`` grows with each change."""

    def __init__(self, view: View, place: dict[str, int], pieces: dict[str, SliceMasks]) -> None:
        self._place, self._pieces = place, pieces
        self._rule = Spares(view.fleet)
        self._busy: set[str] = set()
        self._started: set[str] = set()  # nodes with work of this round that may not be stopped at once
        self._unfit: set[str] = set()
        self.spares: frozenset[str] = frozenset()
        self.trial: _Bits = {}  # slices on probation that nobody has
        self._trial_at: _Bits = {}  # the same with those that somebody has
        self._places: _Bits = {}  # slices of gangs that come back
        self.coming_back: frozenset[str] = frozenset()  # these gangs
        self.at: Bools = np.zeros(len(place), np.bool_)
        self.spare_at: Bools = np.zeros(len(place), np.bool_)
        self.version = 0
        self._shut: dict[tuple[Access, str], Masks | None] = {}
        self.ever: Bools = np.zeros(len(place), np.bool_)  # spares of the empty, healthy fleet
        self.ever[[place[name] for name in self._rule.of()]] = True

    def follow(self, view: View) -> set[int]:
        """Apply the current view; returns the positions at which something changed."""
        before = self.trial, self._trial_at, self._places
        self.trial, self._trial_at = self._on_trial(view)
        self._places = self._of_who_comes_back(view) if self._rule else {}
        now = self.trial, self._trial_at, self._places
        changed = set[int]().union(*(_changed(a, b) for a, b in zip(before, now, strict=True)))
        self._busy, self._unfit = busy_nodes(view) if self._rule else set(), self._rule.unfit(view.barred)
        self._started.clear()
        return changed | self._choose(again=bool(changed))

    def took(self, nodes: Iterable[str]) -> tuple[set[int], Callable[[], set[int]]]:
        """Mark nodes with work that may not be stopped at once. Returns positions that changed, and what undoes it."""
        before = frozenset(self._started)
        self._started.update(nodes)
        changed = self._choose() if not self.spares.isdisjoint(self._started) else set[int]()

        def undo() -> set[int]:
            if len(before) == len(self._started):
                return set()
            self._started = set(before)
            return self._choose()

        return changed, undo

    def shut(self, access: Access, kind: str) -> Masks | None:
        """The slices of a kind that such a job may not use; None where it may use all."""
        key = (access, kind)
        if key not in self._shut:
            masks = self.kept(access, kind).values()
            self._shut[key] = np.bitwise_or.reduce(list(masks)) if masks else None
        return self._shut[key]

    def kept(self, access: Access, kind: str) -> dict[str, Masks]:
        """The same by why: ``spare``, ``probation``, ``place``."""
        found: dict[str, Masks] = {}
        if self.spares and not access.spares:
            found["spare"] = np.zeros((len(self.at), self._pieces[kind].words), np.uint64)
            found["spare"][self.spare_at] = _ALL_BITS
        if not access.probation and (bits := self._trial_at.get(kind)):
            found["probation"] = self._masks(bits, kind)
        if not access.places and (bits := self._places.get(kind)):
            found["place"] = self._masks(bits, kind)
        return found

    def _choose(self, *, again: bool = False) -> set[int]:
        spares = self._rule.choose(self._busy, self._started, self._unfit)
        changed = {self._place[name] for name in spares ^ self.spares}
        if changed or again:
            self.spares = spares
            self.spare_at = np.zeros_like(self.at)
            self.spare_at[[self._place[name] for name in spares]] = True
            self.at = self.spare_at.copy()
            self.at[[position for kind in self._trial_at.values() for position in kind]] = True
            self._shut.clear()
            self.version += 1
        return changed

    def _masks(self, bits: dict[int, int], kind: str) -> Masks:
        words = self._pieces[kind].words
        found = np.zeros((len(self.at), words), np.uint64)
        for position, mask in bits.items():
            found[position] = words_of(mask, words)
        return found

    def _of_who_comes_back(self, view: View) -> _Bits:
        """Slices on which gangs were that come back soon."""
        jobs, found = coming_back(view), _Bits()
        self.coming_back = frozenset(job.id for job in jobs)
        for piece in (s for job in jobs for place in job.attempts[-1].places for s in place.slices):
            if view.occupancy.knows(piece):
                kind, order, bit = view.occupancy.where(piece)
                at = found.setdefault(kind, {})
                position = self._place[view.occupancy.nodes[kind][order].node]
                at[position] = at.get(position, 0) | 1 << bit
        return found

    def _on_trial(self, view: View) -> tuple[_Bits, _Bits]:
        """Slices on probation: those that no job holds, and all."""
        targets = on_trial(view)
        free, every = _Bits(), _Bits()
        if not targets:
            return free, every
        nodes = {target if target in self._place else target.rpartition("/")[0] for target in targets}
        for node in view.fleet.nodes:
            for device in node.devices if node.id in nodes else ():
                if (node.id not in targets and device.id not in targets) or device.id in view.health:
                    continue
                for piece in slices_of(device):
                    kind, _, bit = view.occupancy.where(piece.id)
                    held = view.book.held[view.book.index(piece.id)] or view.occupancy.is_part(piece.id)
                    for found, mask in ((every, 1 << bit), (free, 0 if held else 1 << bit)):
                        at = found.setdefault(kind, {})
                        position = self._place[node.id]
                        at[position] = at.get(position, 0) | mask
        return free, every


def _changed(a: _Bits, b: _Bits) -> set[int]:
    """Positions at which two differ."""
    kinds = a.keys() | b.keys()
    both = [(a.get(kind, {}), b.get(kind, {})) for kind in kinds]
    return {at for one, other in both for at in one.keys() | other.keys() if one.get(at) != other.get(at)}


def first_choice(reserve: Reserve | None, access: Access, own: Ints) -> Bools | None:
    """The nodes that such a job had better use, (N,); None where it has no choice.

    Filler goes where others may not, first; who comes back leaves spares alone as long as it can, but for nodes on
    which it was (``own``: its ranks by position).
    """
    if reserve is None or access == _NONE or not reserve.at.any():
        return None
    if access.probation:
        return reserve.at
    return ~reserve.spare_at | (own > 0)


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
        self.gpus: Ints = np.array(
            [sum(len(slices_of(d)) for d in n.devices if d.kind != "cpu") for n in self.nodes], np.int64
        )
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
        self._seen_edits = view.edited.since(0)[0]
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
        if view.occupancy is not self.occupancy or not self._follow_edits(view):
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

    def _follow_edits(self, view: View) -> bool:
        """Take over nodes that changed without their devices; False where something changed that much follows from."""
        self._seen_edits, edited = view.edited.since(self._seen_edits)
        if edited is None:
            return False
        used = {key for key, _ in self._labelled}
        for name in dict.fromkeys(edited):
            position = self.place[name]
            before, after = self.nodes[position], view.fleet.nodes[view.nodes[name]]
            labels = before.labels.items() ^ after.labels.items()
            if replace(before, labels={}) != replace(after, labels={}) or any(
                key in used for key, _ in labels
            ):
                return False
            self.nodes[position] = after
        self.fleet = view.fleet
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

    def left(self, kind: str, nodes: slice | Ints = slice(None)) -> Ints:
        """Free devices of a kind on these nodes, by position. Shape (N,)."""
        return count_slices(self.free[kind][nodes])

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
