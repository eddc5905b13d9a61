"""What gangs are placed on: a fleet's tree with the free slices of each node, kept up to date.

Everything here follows from the view; it is kept from one decision to the next because to make it
costs more than a decision. Room is kept per class of ranks that need the same of a node; a class takes up
what changed when it is asked, so that a change costs what is asked of it. Nodes are named by their
position in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from unidle.fleet import Fleet, Node
from unidle.jobs import JobSpec, Requests, Where
from unidle.place.constraint import Blocked, Gang
from unidle.place.gang import Rooms
from unidle.place.inner import Inner
from unidle.place.pieces import Masks, Pieces, counted, mask_of, pieces_of, words_of
from unidle.place.pools import FleetPools, Pool
from unidle.place.reserve import OPEN, Access, Reserve, access_of
from unidle.place.tree import Bools, Ints, Tree, tree_of
from unidle.view.occupancy import NodeSlots, Occupancy
from unidle.view.state import JobView, View
from unidle.view.usage import milli_of

_PLENTY: Final = 1 << 60
_CLASSES_KEPT: Final = 256
_TOUCHES_KEPT: Final = 65_536


class Ground:
    """Free slices of one occupancy, by class of rank.

    ``free`` are masks by kind, ``hosts``, (2, N), thousandths of cores and bytes of memory that nobody
    requested: those of the view, less what :meth:`take` gave away until :meth:`undo`.
    """

    def __init__(self, view: View, *, keeps_back: bool = True) -> None:
        """Without ``keeps_back`` spares are nodes like others, and what is on probation is for nobody."""
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
        self.pieces = {kind: Pieces(kind, self.nodes, at) for kind, at in self.positions.items()}
        self.pools = FleetPools(view.fleet)
        self.classes: dict[tuple[Pool, str, Access], RankClass] = {}
        self._classes_kept = _CLASSES_KEPT * max(len(self.pools.count), 1)
        self.inner = Inner(view.fleet.gpu_links)
        self.memo: object = None  # of who decides on this ground, see ``place.quotas``
        self.sharing: object = None  # the same, see ``place.sharing``
        self.whole = np.array(
            [[round(n.cpus * 1000) or _PLENTY for n in self.nodes], [n.memory_bytes or _PLENTY for n in self.nodes]],
            np.int64,
        ).reshape(2, len(self.nodes))  # fmt: skip
        self._labelled: dict[tuple[str, str], Bools] = {}
        self._tainted = [(k, set(node.taints)) for k, node in enumerate(self.nodes) if node.taints]
        self._before: tuple[dict[str, Masks], Ints] | None = None  # of what was given away
        self._given_from = 0
        self._touched: list[int] = []
        self._forgotten = 0  # touches before them
        policy = view.fleet.guard
        keeps = keeps_back and (policy.keeps_spares or policy.probation_work != "none")
        self.reserve = Reserve(view, self.place, self.pieces) if keeps else None
        self._read(view)

    def _read(self, view: View) -> None:
        """Everything anew from the view."""
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
        self._forget()

    def follow(self, view: View) -> bool:
        """Take up what changed since the last call; False where it must be made anew."""
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
        if len(self._touched) > _TOUCHES_KEPT:
            self._forget()
        return True

    def _read_node(self, kind: str, position: int) -> None:
        free = self._mask(kind, position, self.slots[kind][position])
        self.free[kind][position] = words_of(free, self.pieces[kind].words)
        self._touched.append(position)

    def _mask(self, kind: str, position: int, slots: NodeSlots) -> int:
        """The free slices of a node; with those on probation that somebody may use."""
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

    def _forget(self) -> None:
        self._forgotten += len(self._touched) + 1  # so that all classes have seen less
        self._touched.clear()

    # -- what one round gives away ---------------------------------------------------------------

    def take(self, kind: str, position: int, mask: int, asked: Requests, ranks: int) -> None:
        """Give slices of a node away, with what so many ranks request of it, until :meth:`undo`."""
        if self._before is None:
            self._before = ({k: masks.copy() for k, masks in self.free.items()}, self.hosts.copy())
            self._given_from = len(self._touched)
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
        """Work that may not be stopped at once goes on these nodes: other spares take their place, until :meth:`undo`."""
        if self.reserve is not None:
            self._touched += sorted(self.reserve.took(nodes))

    def undo(self) -> None:
        """Take back all that was given away."""
        if self.reserve is not None:
            self._touched += sorted(self.reserve.undo())
        if self._before is not None:
            self.free, self.hosts = self._before
            self._before = None
            self._touched += dict.fromkeys(self._touched[self._given_from :])

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
        return counted(self.free[kind])

    def asked(self, spec: JobSpec) -> str:
        """What the ranks of one class have in common."""
        return repr((spec.devices_per_rank, spec.requests, spec.where, spec.share))

    def access(self, spec: JobSpec, job: JobView | None = None) -> Access:
        """What of the reserve such a job may use; all of it where nothing is kept back."""
        return OPEN if self.reserve is None else access_of(spec, job)

    def rank_class(
        self, spec: JobSpec, pool: Pool, asked: str | None = None, access: Access = OPEN
    ) -> RankClass:
        """The class of a job's ranks on the devices of this pool; ``asked``: :meth:`asked` of it, where known."""
        key = (pool, self.asked(spec) if asked is None else asked, access)
        found = self.classes.pop(key, None)
        if found is None:
            if len(self.classes) >= self._classes_kept:
                del self.classes[next(iter(self.classes))]  # the one that was not asked for the longest
            found = RankClass(self, spec, pool, access)
        self.classes[key] = found
        return found

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


class RankClass:
    """Ranks that need ``each`` slices of one pool on one node, with the same selection and requests.

    ``rooms`` counts how many of them fit now; ``whole`` how many would if all were free and healthy.
    """

    def __init__(self, ground: Ground, spec: JobSpec, pool: Pool, access: Access = OPEN) -> None:
        kind = pool.kind
        self.access = access
        self.pool, self.kind, self.each, self.requests = pool, kind, spec.devices_per_rank, spec.requests
        self.asks = bool(spec.requests.cpus or spec.requests.memory_bytes)
        self._ground = ground
        if kind in ground.pieces:
            self._allowed = ground.pieces[kind].allowed(spec, ground.open_nodes(spec.where), pool)
        else:
            self._allowed = np.zeros((len(ground.nodes), 1), np.uint64)
        # of a node's bits, where parts are asked for: small ones first
        self._order: dict[int, list[int]] = {}
        self.uneven = kind in ground.pieces and ground.pieces[kind].uneven(spec)
        self.by_size = spec.share is not None or self.uneven
        self.most: Ints = counted(self._allowed)  # devices of each node, (N,)
        self.devices = int(self.most.sum())
        # the others have nothing for it
        self._slots = {p: slots for p, slots in ground.slots.get(kind, {}).items() if self.most[p]}
        self._ever: dict[Gang, Blocked | None] = {}
        self._seen, _ = ground.touched_since(0)
        self._left: Ints = counted(self._free(slice(None)))
        self._rooms = Rooms(ground.tree, self.room(self._left, ground.hosts))
        self._first: Ints = self._first_steps(np.arange(len(self._left)))
        self._total = int(self._rooms.room.sum())
        self.whole = Rooms(ground.tree, self.room(self.most, ground.whole))
        self._closed: tuple[int, Ints] | None = None  # by version of the reserve

    @property
    def rooms(self) -> Rooms:
        """How many of these ranks fit on each node now."""
        self._catch_up()
        return self._rooms

    def rooms_for(self, gang: Gang) -> Rooms:
        """The same where the gang should go."""
        rooms = self.rooms
        wished = self.wished(gang, rooms.room)
        return rooms if wished is rooms.room else self.whole.beside(wished)

    def wished(self, gang: Gang, room: Ints) -> Ints:
        """Of this room, (N,), where the gang should go: a single rank where a part is free that counts least."""
        if not self.uneven or gang.ranks > 1 or not room.any():
            return room
        self._catch_up()
        return np.where(self._first == self._first[room > 0].min(), room, 0)

    @property
    def total(self) -> int:
        """How many of these ranks fit now, wherever."""
        self._catch_up()
        return self._total

    def left(self) -> Ints:
        """How many devices of each node this class may take now; (N,), by position."""
        self._catch_up()
        return self._left

    def room(self, devices: Ints, hosts: Ints) -> Ints:
        """Ranks that fit in so many devices, (N,), with this CPU and memory, (2, N)."""
        ranks: Ints = devices // self.each
        for amount, asked in zip(hosts, (self.requests.cpu_milli, self.requests.memory_bytes), strict=True):
            if asked:
                ranks = np.minimum(ranks, np.maximum(amount, 0) // asked)
        return ranks

    def charges(self, devices: int) -> tuple[int, int]:
        """The least and the most that so many of its slices may count, in thousandths of a device."""
        some = np.flatnonzero(self.most)[: None if self.uneven else 1].tolist()
        counts = sorted(milli for p in some for milli in self._counts(p, self._allowed[p]))
        if not self.uneven:
            counts = counts[:1] * devices
        return sum(counts[:devices]), sum(counts[::-1][:devices])

    def steps(self, position: int, most: int) -> list[int]:
        """What each further rank on a node would count, up to so many, in thousandths of a device; rising."""
        counts, each = sorted(self._counts(position, self._free(position))), self.each
        return [sum(counts[k * each : (k + 1) * each]) for k in range(min(most, len(counts) // each))]

    def _first_steps(self, positions: Ints) -> Ints:
        """What one rank on each of these nodes counts at least; 0 where all count the same."""
        if not self.uneven:
            return np.zeros(len(positions), np.int64)
        return np.array([sum(self.steps(p, 1)) for p in positions.tolist()], np.int64)

    def _counts(self, position: int, words: Masks) -> list[int]:
        pieces, mask = pieces_of(self._ground.nodes[position], self.kind), mask_of(words)
        return [milli_of(piece.share_ppm) for bit, (_, piece) in enumerate(pieces) if mask >> bit & 1]

    def free(self, position: int) -> int:
        """The mask of the node's slices that this class may take now."""
        return mask_of(self._free(position))

    def slots(self, position: int) -> NodeSlots:
        return self._slots[position]

    def pick(self, position: int, mask: int) -> int:
        """Of the free slices in ``mask`` the one to take next, as a bit: the first, or the smallest part."""
        if not self.by_size:
            return mask & -mask
        order = self._order.get(position)
        if order is None:
            parts = [piece.share_ppm for _, piece in pieces_of(self._ground.nodes[position], self.kind)]
            order = self._order[position] = sorted(range(len(parts)), key=lambda bit: (parts[bit], bit))
        return next(1 << bit for bit in order if mask >> bit & 1)

    def never(self, gang: Gang) -> Blocked | None:
        """Why not even the whole fleet, empty and healthy, holds the gang; None where it does."""
        if gang not in self._ever:
            answer = self._empty().plan(gang)
            self._ever[gang] = answer if isinstance(answer, Blocked) else None
        return self._ever[gang]

    def _empty(self) -> Rooms:
        """The room of the empty fleet, without its spares where they are not for this class."""
        reserve = self._ground.reserve
        if reserve is None or self.access.spares or not reserve.ever.any():
            return self.whole
        return self.whole.beside(np.where(reserve.ever, 0, self.whole.room))

    def closed(self) -> Ints | None:
        """How many of its devices on each node are kept from this class now; None where none is. Shape (N,)."""
        shut = self._shut()
        if shut is None:
            return None
        version = self._ground.reserve.version if self._ground.reserve is not None else 0
        if self._closed is None or self._closed[0] != version:
            self._closed = version, counted(self._allowed & shut)
        return self._closed[1]

    def spares_ever(self) -> int:
        """Devices that this class could have were they not the spares of the empty fleet."""
        reserve = self._ground.reserve
        return 0 if reserve is None or self.access.spares else int(self.most[reserve.ever].sum())

    def kept_back(self) -> dict[str, int]:
        """How many devices are kept from this class now, by why (see :meth:`Reserve.kept`)."""
        reserve = self._ground.reserve
        if reserve is None or self.kind not in self._ground.pieces:
            return {}
        masks = reserve.kept(self.access, self.kind)
        counts = {why: int(counted(self._allowed & mask).sum()) for why, mask in masks.items()}
        return {why: count for why, count in counts.items() if count}

    def in_time(self, room: Ints) -> Ints:
        """Of a room that others may leave, (N,) in ranks, what this class may have of it."""
        part = np.minimum(room, self.whole.room)
        closed = self.closed()
        return part if closed is None else np.maximum(part - -(-closed // self.each), 0)

    def _shut(self) -> Masks | None:
        reserve = self._ground.reserve
        known = reserve is not None and self.kind in self._ground.pieces
        return reserve.shut(self.access, self.kind) if reserve is not None and known else None

    def _free(self, rows: slice | int | Ints) -> Masks:
        free = self._ground.free.get(self.kind)
        allowed: Masks = self._allowed[rows]
        shut = self._shut()
        if shut is not None:
            allowed = allowed & ~shut[rows]
        return allowed if free is None else free[rows] & allowed

    def _catch_up(self) -> None:
        self._seen, touched = self._ground.touched_since(self._seen)
        if touched is None:
            some = np.arange(len(self._left))
        else:
            own = {p for p in touched if p in self._slots}
            if not own:
                return
            some = np.array(sorted(own), np.int64)
        left = counted(self._free(some))
        self._left[some] = left
        if self.uneven:
            self._first[some] = self._first_steps(some)
        room = self.room(left, self._ground.hosts[:, some])
        other = np.flatnonzero(room != self._rooms.room[some])
        if len(other):
            self._total += int(room[other].sum()) - int(self._rooms.room[some[other]].sum())
            self._rooms.set(some[other], room[other])
