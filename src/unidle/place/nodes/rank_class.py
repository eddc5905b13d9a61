"""How many ranks of one class fit on each node now, and how many ever could; and the classes of a job, in its order.

A class applies what changed when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from unidle.jobs import JobSpec
from unidle.place.network.constraint import Blocked, Gang, gang_of
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.tree import Ints
from unidle.place.nodes.free import OPEN, Access, FreeSlices
from unidle.place.nodes.hardware import DevicePool, Masks, Option, count_slices, mask_of, pieces_of
from unidle.place.nodes.stranding import stranded_by
from unidle.view.occupancy import NodeSlots
from unidle.view.usage import milli_of

if TYPE_CHECKING:
    from unidle.view.jobs import JobView
    from unidle.view.state import View

_MANY: Final = 1 << 20
"""Ranks without devices on a node of which cores and memory are not known: more than any gang has."""
_CLASSES_KEPT: Final = 256


class RankClass:
    """Ranks that need ``each`` slices of one pool on one node, with the same selection and requests.

    ``rooms`` counts how many of them fit now; ``whole`` how many would if all were free and healthy. Where ``each``
    is 0 they take cores and memory only, of any node that takes work.
    """

    def __init__(
        self, free_slices: FreeSlices, spec: JobSpec, pool: DevicePool, access: Access = OPEN
    ) -> None:
        kind = pool.kind
        self.access = access
        self.pool, self.kind, self.each, self.requests = pool, kind, spec.devices_per_rank, spec.requests
        self.asks = spec.requests.given
        self._free_slices = free_slices
        open_nodes = free_slices.open_nodes(spec.where)
        if self.each and kind in free_slices.pieces:
            self._allowed = free_slices.pieces[kind].allowed(spec, open_nodes, pool)
        else:
            self._allowed = np.zeros((len(free_slices.nodes), 1), np.uint64)
        # of a node's bits, where parts are asked for: small ones first
        self._order: dict[int, list[int]] = {}
        self.uneven = bool(self.each) and kind in free_slices.pieces and free_slices.pieces[kind].uneven(spec)
        self.by_size = spec.share is not None or self.uneven
        # devices of each node, (N,); without devices, whether the node may be used at all
        self.most: Ints = count_slices(self._allowed) if self.each else open_nodes.astype(np.int64)
        self.devices = int(self.most.sum()) if self.each else 0
        # the others have nothing for it
        slots = free_slices.slots.get(kind, {}) if self.each else free_slices.no_slots
        self._slots = {p: here for p, here in slots.items() if self.most[p]}
        self._ever: dict[Gang, bool] = {}
        self.why_never: dict[Gang, Blocked] = {}  # for gangs that do not fit ever: kept by who explains it
        self._seen, _ = free_slices.touched_since(0)
        self._left: Ints = self._left_of(slice(None))
        self._rooms = DomainCapacity(free_slices.tree, self.room(self._left, free_slices.hosts))
        self._first: Ints = self._first_steps(np.arange(len(self._left)))
        self._total = int(self._rooms.room.sum())
        self.whole = DomainCapacity(free_slices.tree, self.room(self.most, free_slices.whole))
        self._closed: tuple[int, Ints] | None = None  # by version of the reserve

    @property
    def rooms(self) -> DomainCapacity:
        """How many of these ranks fit on each node now."""
        self._catch_up()
        return self._rooms

    def rooms_for(self, gang: Gang) -> DomainCapacity:
        """The same where the gang should go."""
        rooms = self.rooms
        wished = self.wished(gang, rooms.room)
        return rooms if wished is rooms.room else self.whole.with_room(wished)

    def wished(self, gang: Gang, room: Ints) -> Ints:
        """Of this room, (N,), where the gang should go: where it strands the fewest free GPUs, and a single rank where a
        part is free that counts least."""
        if self.asks and gang.ranks and room.any():
            room = self._least_stranding(gang, room)
        if not self.uneven or gang.ranks > 1 or not room.any():
            return room
        self._catch_up()
        return np.where(self._first == self._first[room > 0].min(), room, 0)

    def strands(self) -> Ints:
        """How many more free GPUs of each node are without their share of CPU or memory if one rank comes. Shape (N,)."""
        asked = self.requests.cpu_milli, self.requests.memory_bytes
        return stranded_by(self._free_slices, asked, self.each if self.kind != "cpu" else 0)

    def _least_stranding(self, gang: Gang, room: Ints) -> Ints:
        price = np.where(room > 0, self.strands(), 0)
        for least in np.unique(price[room > 0])[:-1].tolist():
            part: Ints = np.where(price <= least, room, 0)
            if int(part.sum()) >= gang.ranks and (
                gang.ranks == 1 or self.whole.with_room(part).counts(gang) is not None
            ):
                return part
        return room

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
        ranks: Ints = devices // self.each if self.each else devices * _MANY
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

    def cheaper_rooms(self, room: Ints, ranks: int) -> Iterator[Ints]:
        """Ever less of a room (ranks by position): without the slices that count most, as long as a gang may fit.

        The last one has only the cheapest place of each rank.
        """
        steps = sorted(
            (milli, p) for p in np.flatnonzero(room).tolist() for milli in self.steps(p, int(room[p]))
        )
        at = len(steps)
        while at > ranks:
            dearest = steps[at - 1][0]
            while at > ranks and steps[at - 1][0] == dearest:
                at -= 1
            yield np.bincount([p for _, p in steps[:at]], minlength=len(room)).astype(np.int64)

    def _first_steps(self, positions: Ints) -> Ints:
        """What one rank on each of these nodes counts at least; 0 where all count the same."""
        if not self.uneven:
            return np.zeros(len(positions), np.int64)
        return np.array([sum(self.steps(p, 1)) for p in positions.tolist()], np.int64)

    def _counts(self, position: int, words: Masks) -> list[int]:
        pieces, mask = pieces_of(self._free_slices.nodes[position], self.kind), mask_of(words)
        return [milli_of(piece.share_ppm) for bit, (_, piece) in enumerate(pieces) if mask >> bit & 1]

    def free(self, position: int) -> int:
        """The mask of the node's slices that this class may take now."""
        return mask_of(self._free(position)) if self.each else 0

    def slots(self, position: int) -> NodeSlots:
        return self._slots[position]

    def pick(self, position: int, mask: int) -> int:
        """Of the free slices in ``mask`` the one to take next, as a bit: the first, or the smallest part."""
        if not self.by_size:
            return mask & -mask
        order = self._order.get(position)
        if order is None:
            parts = [piece.share_ppm for _, piece in pieces_of(self._free_slices.nodes[position], self.kind)]
            order = self._order[position] = sorted(range(len(parts)), key=lambda bit: (parts[bit], bit))
        return next(1 << bit for bit in order if mask >> bit & 1)

    def fits_ever(self, gang: Gang) -> bool:
        """Whether the whole fleet, empty and healthy, holds the gang."""
        if gang not in self._ever:
            self._ever[gang] = self.empty().place(gang) is not None
        return self._ever[gang]

    def empty(self) -> DomainCapacity:
        """The room of the empty fleet, without its spares where they are not for this class."""
        reserve = self._free_slices.reserve
        if reserve is None or self.access.spares or not reserve.ever.any():
            return self.whole
        return self.whole.with_room(np.where(reserve.ever, 0, self.whole.room))

    def closed(self) -> Ints | None:
        """How many of its devices on each node are kept from this class now; None where none is. Shape (N,)."""
        shut = self._shut()
        if shut is None:
            return None
        version = self._free_slices.reserve.version if self._free_slices.reserve is not None else 0
        if self._closed is None or self._closed[0] != version:
            self._closed = version, count_slices(self._allowed & shut)
        return self._closed[1]

    def spares_ever(self) -> int:
        """Devices that this class could have were they not the spares of the empty fleet."""
        reserve = self._free_slices.reserve
        return 0 if reserve is None or self.access.spares else int(self.most[reserve.ever].sum())

    def kept_back(self) -> dict[str, int]:
        """How many devices are kept from this class now, by why (see :meth:`Reserve.kept`)."""
        reserve = self._free_slices.reserve
        if reserve is None or self.kind not in self._free_slices.pieces:
            return {}
        masks = reserve.kept(self.access, self.kind)
        counts = {why: int(count_slices(self._allowed & mask).sum()) for why, mask in masks.items()}
        return {why: count for why, count in counts.items() if count}

    def in_time(self, room: Ints) -> Ints:
        """Of a room that others may leave, (N,) in ranks, what this class may have of it."""
        part = np.minimum(room, self.whole.room)
        closed = self.closed()
        return part if closed is None else np.maximum(part - -(-closed // self.each), 0)

    def _shut(self) -> Masks | None:
        reserve = self._free_slices.reserve
        known = reserve is not None and self.kind in self._free_slices.pieces
        return reserve.shut(self.access, self.kind) if reserve is not None and known else None

    def _left_of(self, rows: slice | Ints) -> Ints:
        """How many devices of these nodes this class may take now; without devices, whether the nodes take such work."""
        if self.each:
            return count_slices(self._free(rows))
        reserve, works = self._free_slices.reserve, self._free_slices.works
        if reserve is not None and not self.access.spares:
            works = works & ~reserve.spare_at
        left: Ints = np.where(works, self.most, 0)[rows]
        return left

    def _free(self, rows: slice | int | Ints) -> Masks:
        free = self._free_slices.free.get(self.kind)
        allowed: Masks = self._allowed[rows]
        shut = self._shut()
        if shut is not None:
            allowed = allowed & ~shut[rows]
        return allowed if free is None else free[rows] & allowed

    def _catch_up(self) -> None:
        self._seen, touched = self._free_slices.touched_since(self._seen)
        if touched is None:
            some = np.arange(len(self._left))
        else:
            own = {p for p in touched if p in self._slots}
            if not own:
                return
            some = np.array(sorted(own), np.int64)
        left = self._left_of(some)
        self._left[some] = left
        if self.uneven:
            self._first[some] = self._first_steps(some)
        room = self.room(left, self._free_slices.hosts[:, some])
        other = np.flatnonzero(room != self._rooms.room[some])
        if len(other):
            self._total += int(room[other].sum()) - int(self._rooms.room[some[other]].sum())
            self._rooms.set(some[other], room[other])


class RankClasses:
    """The classes of ranks on the slices of one fleet, kept from one decision to the next; of too many the least used go."""

    def __init__(self, free_slices: FreeSlices) -> None:
        self.free_slices = free_slices
        self._kept: dict[tuple[DevicePool, str, Access], RankClass] = {}
        self._kept_most = _CLASSES_KEPT * max(len(free_slices.pools.count), 1)

    def of(
        self, spec: JobSpec, pool: DevicePool, asked: str | None = None, access: Access = OPEN
    ) -> RankClass:
        """The class of a job's ranks on the devices of this pool; ``asked``: what they ask of a node, where known."""
        key = (pool, _asked(spec) if asked is None else asked, access)
        found = self._kept.pop(key, None)
        if found is None:
            if len(self._kept) >= self._kept_most:
                del self._kept[next(iter(self._kept))]  # the one that was not asked for the longest
            found = RankClass(self.free_slices, spec, pool, access)
        self._kept[key] = found
        return found

    def of_job(
        self,
        spec: JobSpec,
        view: View | None = None,
        job: JobView | None = None,
        access: Access | None = None,
    ) -> Iterator[tuple[Option, RankClass]]:
        """The pools of a job in order, each with the class of its ranks there; mixed ones only where they are due.

        Without a view in the order of jobs without a wish. ``access``: that of ``job``, where it is known.
        """
        access = self.free_slices.access(spec, job) if access is None else access
        tried: list[RankClass] = []
        asked = _asked(spec)
        for option in self.free_slices.pools.options(spec, view, job):
            if option.mixed and not spec.hardware.mix:
                gang = gang_of(spec)
                if any(rank_class.fits_ever(gang) for rank_class in tried):
                    continue
            rank_class = self.of(spec, option.pool, asked, access)
            if option.pool.models and not option.mixed:
                tried.append(rank_class)
            yield option, rank_class


def _asked(spec: JobSpec) -> str:
    """What the ranks of one class have in common."""
    return repr((spec.devices_per_rank, spec.requests, spec.where, spec.share))
