"""Where a gang goes: the lowest tier that holds it whole, of those the one with the least left over.

All or nothing, deterministic. Inside the tier as few children as possible are used: the roomiest are
filled up, and what remains goes to the smallest that holds it. (Kueue's topology-aware scheduling spreads
a pod set in the same order; groups that stay together, link classes and reasons are ours.)

Hard constraints always hold. Soft ones are tried in their order, each kept if the gang still fits with it
and with those kept before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.fleet import LinkClass
from unidle.fleet.network import CLASSES
from unidle.jobs import Reason
from unidle.place.network.constraint import Constraint, Gang, GangPlan
from unidle.place.network.tree import NODE, Bools, Ints, Tree, UnitRoom, Units, change, room_of, units_of
from unidle.words import counted

_NONE: Final = np.iinfo(np.int64).max
_HEIGHT: Final = 1 << 40  # above any number of ranks
_MANY: Final = 64  # more touched nodes than this, and sums are made again

_Key = tuple[tuple[int | None, int], ...]


@dataclass(frozen=True, slots=True)
class DomainFit:
    """A tier (or one node, with ``vertex`` -1) that holds a gang, and what it would hold."""

    vertex: int
    position: int
    room: int
    fits: int  # how many of this height would do


class DomainCapacity:
    """Room for ranks of one shape, by node and by tier, kept up to date as gangs come and go.

    Sums are kept for each way of keeping groups together that was asked for, and a change of one node
    costs O(depth).
    """

    def __init__(self, tree: Tree, room: Ints) -> None:
        if len(room) != len(tree.nodes) or (len(room) and int(room.min()) < 0):
            raise ValueError("room is one number of ranks for each node, none below 0")
        self.tree = tree
        self.room: Ints = np.array(room, dtype=np.int64)
        self._height: Ints = tree.height * _HEIGHT
        self._units: dict[_Key, tuple[Units, UnitRoom]] = {}
        self._forms: dict[_Key, Units] = {}
        self._under: dict[int, Bools] = {}
        self._reach: dict[LinkClass, Ints] = {}

    def with_room(self, room: Ints) -> DomainCapacity:
        """Another room on the same tree, with what was learned of the tree."""
        other = DomainCapacity(self.tree, room)
        other._forms, other._under, other._reach = self._forms, self._under, self._reach
        return other

    def place(self, gang: Gang) -> GangPlan | None:
        """Where the gang goes now, if anywhere (``explain`` has why not); nothing is changed."""
        kept, relaxed, found = self._found(gang)
        return None if found is None else self._planned(gang, kept, tuple(relaxed), found)

    def counts(self, gang: Gang) -> tuple[Ints, Ints] | None:
        """Only the nodes, ascending, and how many ranks each gets; None if the gang does not fit."""
        kept, _, found = self._found(gang)
        return None if found is None else self._nodes(gang, kept, found)

    def _found(self, gang: Gang) -> tuple[list[Constraint], list[Constraint], DomainFit | None]:
        """The constraints that can be kept and those that cannot, and the spot; None where a hard one cannot."""
        hard = [c for c in gang.constraints if c.hard]
        kept, relaxed, found = hard, list[Constraint](), self.find(gang, hard)
        if found is None:
            return kept, relaxed, None
        for constraint in gang.constraints:
            if constraint.hard:
                continue
            better = self.find(gang, [*kept, constraint])
            if better is None:
                relaxed.append(constraint)
            else:
                kept, found = [*kept, constraint], better
        return kept, relaxed, found

    def alike(self, plan: GangPlan) -> Ints:
        """The nodes that hold a gang on one node just as tightly as the one of this plan, in order."""
        return np.flatnonzero(self.room == self.room[plan.nodes[0]]) if plan.vertex < 0 else plan.nodes

    def moved(self, gang: Gang, plan: GangPlan, position: int) -> GangPlan:
        """A plan on one node, on another one that holds the gang too."""
        spot = DomainFit(-1, position, int(self.room[position]), int((self.room >= gang.ranks).sum()))
        return self._planned(gang, plan.kept, plan.relaxed, spot)

    def set(self, nodes: Ints, values: Ints) -> None:
        """Room on some nodes again, for instance after ranks of another shape came there."""
        if len(values) and int(values.min()) < 0:
            raise ValueError("a node cannot have room for less than 0 ranks")
        self.room[nodes] = values
        if len(nodes) > _MANY:
            self._units = {
                key: (units, room_of(self.tree, units, self.room)) for key, (units, _) in self._units.items()
            }
            return
        for position, value in zip(nodes.tolist(), values.tolist(), strict=True):
            for units, room in self._units.values():
                change(self.tree, units, room, position, value)

    # What the search and its explanation ask.

    def find(self, gang: Gang, held: Sequence[Constraint]) -> DomainFit | None:
        """The lowest and then tightest spot where all of ``held`` hold."""
        if any(c.within not in ("", NODE) and self.tree.kind_code(c.within) is None for c in held):
            return None
        found = self._one_node(gang)
        if found is not None or any(c.group == "gang" and c.within == NODE for c in held):
            return found
        limits = [self.limit(c) for c in held if c.group == "gang" and c.within]
        allowed = np.logical_and.reduce(limits) if limits else None
        return self._tier(gang, held, allowed)

    def limit(self, constraint: Constraint) -> Bools:
        """The tiers in which a gang keeps this constraint on the whole of it. Shape (V,)."""
        kind = self.tree.kind_code(constraint.within) or 0
        if kind not in self._under:
            self._under[kind] = self.tree.under(kind)
        return self._under[kind]

    def _one_node(self, gang: Gang) -> DomainFit | None:
        """On one node every group is together, and nothing crosses the network."""
        fits = self.room >= gang.ranks
        found = int(np.count_nonzero(fits))
        if not found:
            return None
        position = int(np.where(fits, self.room, _NONE).argmin())
        return DomainFit(-1, position, int(self.room[position]), found)

    def _tier(self, gang: Gang, held: Sequence[Constraint], allowed: Bools | None) -> DomainFit | None:
        fabric = next((c.fabric for c in held if c.fabric), None)
        if fabric is None:
            return self._lowest(gang, self.units(gang, held)[1].tiers, allowed)
        spots = []
        for depth in np.unique(self.tree.depth).tolist():
            here = self.tree.depth == depth
            tiers = self.over(gang, held, fabric, depth).tiers
            spots.append(self._lowest(gang, tiers, here if allowed is None else here & allowed))
        return min(
            (s for s in spots if s),
            key=lambda s: (int(self.tree.height[s.vertex]), s.room, s.vertex),
            default=None,
        )

    def _lowest(self, gang: Gang, tiers: Ints, allowed: Bools | None) -> DomainFit | None:
        fits = tiers >= gang.ranks
        if allowed is not None:
            fits &= allowed
        key = np.where(fits, self._height + tiers, _NONE)
        vertex = int(key.argmin())
        if key[vertex] == _NONE:
            return None
        alike = int((fits & (self.tree.height == self.tree.height[vertex])).sum())
        return DomainFit(vertex, -1, int(tiers[vertex]), alike)

    def units(self, gang: Gang, held: Sequence[Constraint]) -> tuple[Units, UnitRoom]:
        """Room in whole units of the groups that ``held`` keeps together; kept up to date from then on."""
        key = self._key(gang, held)
        if key not in self._units:
            units = self._forms.get(key) or units_of(self.tree, key)
            self._forms[key] = units
            self._units[key] = (units, room_of(self.tree, units, self.room))
        return self._units[key]

    def over(self, gang: Gang, held: Sequence[Constraint], fabric: LinkClass, depth: int) -> UnitRoom:
        """Room on the nodes from which links of the class lead up to that depth, in whole units."""
        units = self.units(gang, held)[0]
        masked = np.where(self.reach(fabric) <= depth, self.room, 0)
        return room_of(self.tree, units, masked)

    def reach(self, fabric: LinkClass) -> Ints:
        if fabric not in self._reach:
            self._reach[fabric] = self.tree.reach(fabric)
        return self._reach[fabric]

    def _key(self, gang: Gang, held: Sequence[Constraint]) -> _Key:
        sizes = [
            (None if c.within == NODE else self.tree.kind_code(c.within), size)
            for c in held
            if c.group != "gang" and (size := gang.size(c.group)) > 1
        ]
        return tuple(sorted(sizes, key=lambda pair: (pair[0] is not None, pair[0] or 0, pair[1])))

    # From a spot to a plan.

    def _planned(
        self, gang: Gang, held: Sequence[Constraint], relaxed: tuple[Constraint, ...], spot: DomainFit
    ) -> GangPlan:
        nodes, counts = self._nodes(gang, held, spot)
        carried = self._carried(nodes, spot.vertex)
        because = self._because(gang, spot, nodes, carried, relaxed)
        left_over = spot.room - gang.ranks
        return GangPlan(nodes, counts, spot.vertex, left_over, carried, relaxed, because, tuple(held))

    def _nodes(self, gang: Gang, held: Sequence[Constraint], spot: DomainFit) -> tuple[Ints, Ints]:
        if spot.vertex < 0:
            return np.array([spot.position]), np.array([gang.ranks])
        fabric = next((c.fabric for c in held if c.fabric), None)
        if fabric is None:
            room = self.units(gang, held)[1]
        else:
            room = self.over(gang, held, fabric, int(self.tree.depth[spot.vertex]))
        return spread(self.tree, room, spot.vertex, gang.ranks)

    def _carried(self, nodes: Ints, vertex: int) -> LinkClass | None:
        """The first class, best first, that carries all traffic among the nodes."""
        if vertex < 0:
            return None
        depth = int(self.tree.depth[vertex])
        return next((c for c in CLASSES if int(self.reach(c)[nodes].max()) <= depth), None)

    def _because(
        self, gang: Gang, spot: DomainFit, nodes: Ints, fabric: str | None, relaxed: tuple[Constraint, ...]
    ) -> Reason:
        tree, left = self.tree, spot.room - gang.ranks
        figures: dict[str, int | float | str] = {
            "ranks": gang.ranks, "nodes": len(nodes), "left_over": left, "candidates": spot.fits
        }  # fmt: skip
        if spot.vertex < 0:
            where, kind = f"node {tree.nodes[spot.position]}", NODE
        else:
            kind = tree.kind_name(spot.vertex)
            where = f"{kind} {tree.tiers[spot.vertex]}" if spot.vertex else "the whole fleet"
        figures["tier"] = kind
        one = gang.ranks == 1
        text = (
            f"{counted(gang.ranks, 'rank')} in {where}, the lowest tier that holds {'it' if one else 'them'}"
        )
        if spot.fits > 1:
            text += f", with the least left over ({left}) of {spot.fits} that do"
        if spot.vertex >= 0:
            text += f", on {counted(len(nodes), 'node')}"
            text += f" over {fabric}" if fabric else "; it crosses fabrics, so the slowest of them bounds it"
        for constraint in relaxed:
            text += f"; not kept: {constraint.text()}"
        return Reason("gang", text, figures)


def spread(tree: Tree, room: UnitRoom, vertex: int, ranks: int) -> tuple[Ints, Ints]:
    """``ranks`` over the nodes under ``vertex``, which holds them: positions and counts, both ascending by node."""
    whole = room.ranks[0]
    positions, counts = list[Ints](), list[Ints]()
    stack = [(vertex, ranks)]
    while stack:
        here, need = stack.pop()
        lo, hi = int(tree.lo[here]), int(tree.hi[here])
        inside = whole[lo:hi]
        if int(inside.sum()) == need:
            used = np.flatnonzero(inside)
            positions.append(used + lo)
            counts.append(inside[used])
            continue
        direct, children = int(tree.direct[here]), tree.children[here]
        able = np.concatenate((room.nodes[lo : lo + direct], room.tiers[children]))
        chosen, parts = pick(able, need)
        on_nodes = chosen < direct
        positions.append(chosen[on_nodes] + lo)
        counts.append(parts[on_nodes])
        below = ~on_nodes
        stack += zip(children[chosen[below] - direct].tolist(), parts[below].tolist(), strict=True)
    where, held = np.concatenate(positions), np.concatenate(counts)
    order = np.argsort(where)
    return where[order], held[order]


def pick(able: Ints, need: int) -> tuple[Ints, Ints]:
    """As few of those as hold ``need`` together: indices and amounts. The last takes what is left, and fits it best."""
    order = np.argsort(-able, kind="stable")
    total = np.cumsum(able[order])
    full = int(np.searchsorted(total, need))  # filled up before the last
    left = need - (int(total[full - 1]) if full else 0)
    rest = order[full:]
    fitting = int(np.searchsorted(-able[rest], -left, side="right"))  # of the rest, descending
    smallest = able[rest[fitting - 1]]
    last = rest[int(np.searchsorted(-able[rest], -smallest))]  # the first of that size
    return np.append(order[:full], last), np.append(able[order[:full]], left)
