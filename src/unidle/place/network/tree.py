"""The fleet's network tree as arrays, and how many ranks fit in each domain when groups must not be torn apart.

A group constrained to a kind of tier makes *units* of ranks that stay inside one domain of that kind. Where
tensor groups stay in a node and data groups in a leaf, a node holds whole tensor groups, and a leaf
whole planes of tp x dp ranks made of them: the ranks of one plane are tied to one leaf by both. So units
multiply from the finest kind to the coarsest, and the room of a domain is that of the domains
inside it, rounded down to whole units. Rounding at each level is exact, because units of one level are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import Fleet, LinkClass, Node, Tier
from unidle.fleet.labels import kind_of
from unidle.fleet.network import CLASSES, NetworkTree, network_of
from unidle.fleet.summary import FLEET_KIND

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FLEET: Final = FLEET_KIND
NODE: Final = "node"


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A fleet's network. V vertices (tiers), N nodes, C link classes (``fleet.network.CLASSES``)."""

    tiers: tuple[str, ...]  # V names
    kinds: tuple[str, ...]  # names of kinds; kinds[0] is the fleet's
    kind: Ints  # V, index into kinds
    parent: Ints  # V, -1 above vertex 0
    lo: Ints  # V, first position
    hi: Ints  # V, behind the last position
    depth: Ints  # V, 0 for vertex 0
    height: Ints  # V, 1 above nodes
    nodes: tuple[str, ...]  # N names
    source: Ints  # N, index in Fleet.nodes
    above: Ints  # N, the vertex that the node hangs from
    direct: Ints  # V, how many nodes hang from the vertex itself; they come first in its run
    children: tuple[Ints, ...]  # V arrays of vertices
    tier_up_bps: Ints  # V x C, one direction
    node_up_bps: Ints  # N x C
    inside_bps: Ints  # N, of one device to those next to it
    declared: Bools  # V + N, whether the way up was declared; else it is modelled

    def kind_code(self, name: str) -> int | None:
        """The index of a kind, also by the full label key that made it; None where no tier has it."""
        for word in (name, kind_of(name)):
            if word in self.kinds[1:]:
                return self.kinds.index(word)
        return None

    def kind_name(self, vertex: int) -> str:
        return self.kinds[int(self.kind[vertex])]

    def ancestors(self, position: int) -> list[int]:
        """The vertices above the node, from the nearest to vertex 0."""
        found, here = [], int(self.above[position])
        while here >= 0:
            found.append(here)
            here = int(self.parent[here])
        return found

    def within(self, kind: int) -> Ints:
        """For each node, its outermost vertex of the kind, -1 where it has none. Shape (N,)."""
        found = np.full(len(self.nodes), -1, dtype=np.int64)
        for vertex in np.flatnonzero(self.kind == kind)[::-1].tolist():
            found[self.lo[vertex] : self.hi[vertex]] = vertex
        return found

    def under(self, kind: int) -> Bools:
        """Whether each vertex is of the kind or below one of it. Shape (V,)."""
        found: Bools = self.kind == kind
        for vertex in range(1, len(self.tiers)):  # preorder: a parent comes first
            found[vertex] |= found[self.parent[vertex]]
        return found

    def reach(self, fabric: LinkClass) -> Ints:
        """For each node, the depth of the highest vertex that links of this class lead to. Shape (N,).

        A node without such a link has the depth below the deepest vertex.
        """
        column = CLASSES.index(fabric)
        highest = np.arange(len(self.tiers))
        for vertex in range(1, len(self.tiers)):
            if self.tier_up_bps[vertex, column]:
                highest[vertex] = highest[self.parent[vertex]]
        depths: Ints = self.depth[highest[self.above]]
        return np.where(self.node_up_bps[:, column] > 0, depths, int(self.depth.max()) + 1)


def tree_of(fleet: Fleet, network: NetworkTree | None = None) -> Tree:
    """The tree of ``fleet``, children in the order of declaration. Pure; O(V + N)."""
    network = network or network_of(fleet)
    walk = _Walk(fleet)
    order = list(walk.nodes)
    kinds = (FLEET, *dict.fromkeys(tier.kind for tier in fleet.tiers))
    codes = {name: code for code, name in enumerate(kinds[1:], 1)}
    tiers = walk.tiers
    named = [fleet.nodes[k].id for k in order]
    ups = [network.up[tier.id] for tier in tiers] + [network.up[name] for name in named]
    bps = np.array([[up.bps.get(c, 0) for c in CLASSES] for up in ups], dtype=np.int64).reshape(
        -1, len(CLASSES)
    )
    top = np.zeros((1, len(CLASSES)), dtype=np.int64)
    lo, hi, parent, depth = (np.array(x, dtype=np.int64) for x in (walk.lo, walk.hi, walk.parent, walk.depth))
    return Tree(
        tiers=(FLEET, *(tier.id for tier in tiers)),
        kinds=kinds,
        kind=np.array([0, *(codes[tier.kind] for tier in tiers)], dtype=np.int64),
        parent=parent,
        lo=lo,
        hi=hi,
        depth=depth,
        height=_heights(parent),
        nodes=tuple(named),
        source=np.array(order, dtype=np.int64),
        above=(above := np.array(walk.above, dtype=np.int64)),
        direct=np.bincount(above, minlength=len(parent)),
        children=_children(parent),
        tier_up_bps=np.vstack([top, bps[: len(tiers)]]),
        node_up_bps=bps[len(tiers) :],
        inside_bps=np.array([network.inside_bps[name] for name in named], dtype=np.int64),
        declared=np.array([True, *(up.how == "declared" for up in ups)], dtype=np.bool_),
    )


def _heights(parent: Ints) -> Ints:
    height = np.ones(len(parent), dtype=np.int64)
    for vertex in range(len(parent) - 1, 0, -1):
        up = parent[vertex]
        height[up] = max(height[up], height[vertex] + 1)
    return height


def _children(parent: Ints) -> tuple[Ints, ...]:
    found: list[list[int]] = [[] for _ in parent]
    for vertex, up in enumerate(parent.tolist()):
        if up >= 0:
            found[up].append(vertex)
    return tuple(np.array(below, dtype=np.int64) for below in found)


class _Walk:
    """Preorder over the tiers, without recursion: a chain of tiers may be long."""

    def __init__(self, fleet: Fleet) -> None:
        ids = {tier.id for tier in fleet.tiers}
        self._below: dict[str, list[Tier]] = {}
        for tier in fleet.tiers:
            self._below.setdefault(tier.parent or "", []).append(tier)
        self._hung: dict[str, list[int]] = {}
        for index, node in enumerate(fleet.nodes):
            self._hung.setdefault(self._place(node, ids), []).append(index)
        self.tiers: list[Tier] = []
        self.parent, self.depth, self.lo, self.hi, self.above = [-1], [0], [0], [0], list[int]()
        self.nodes: list[int] = []
        self._visit()

    @staticmethod
    def _place(node: Node, ids: set[str]) -> str:
        return node.parent if node.parent in ids else ""

    def _visit(self) -> None:
        self._hang("", 0)
        stack = [(0, iter(self._below.get("", ())))]
        while stack:
            vertex, children = stack[-1]
            tier = next(children, None)
            if tier is None:
                self.hi[vertex] = len(self.nodes)
                stack.pop()
                continue
            child = len(self.parent)
            self.tiers.append(tier)
            self.parent.append(vertex)
            self.depth.append(self.depth[vertex] + 1)
            self.lo.append(len(self.nodes))
            self.hi.append(len(self.nodes))
            self._hang(tier.id, child)
            stack.append((child, iter(self._below.get(tier.id, ()))))

    def _hang(self, tier: str, vertex: int) -> None:
        hung = self._hung.get(tier, ())
        self.nodes += hung
        self.above += [vertex] * len(hung)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A partition of the nodes into D domains, each a run of D' domains of the level below."""

    unit: int  # ranks
    first: Ints  # D, position of the first node
    start: Ints  # D, index of the first domain of the level below
    up: Ints  # D', the domain that each of the level below is in
    of: Ints  # N, the domain of each node


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Levels from single nodes upwards, and the highest level whose domains are whole in each vertex."""

    levels: tuple[Level, ...]
    of_vertex: Ints  # V
    of_node: Ints  # N


@dataclass(slots=True, eq=False)
class UnitRoom:
    """Ranks in whole units. ``ranks[j]`` by domain of level j; ``tiers`` by vertex, ``nodes`` by node.

    ``sums[j]`` is what ``ranks[j]`` was rounded down from; that of level 0 is the room itself, kept by
    the caller.
    """

    sums: list[Ints]
    ranks: list[Ints]
    tiers: Ints
    nodes: Ints


def units_of(tree: Tree, sizes: Sequence[tuple[int | None, int]]) -> Units:
    """The units for groups of ``size`` ranks that stay within a kind of tier; None is the single node."""
    node_unit = 1
    by_kind: dict[int, int] = {}
    for kind, size in sizes:
        if kind is None:
            node_unit *= size
        else:
            by_kind[kind] = by_kind.get(kind, 1) * size
    n = len(tree.nodes)
    here = np.arange(n, dtype=np.int64)
    spans: list[tuple[Ints, Ints, int]] = []
    for kind, size in by_kind.items():
        vertex = tree.within(kind)
        spans.append(
            (
                np.where(vertex < 0, here, tree.lo[vertex]),
                np.where(vertex < 0, here + 1, tree.hi[vertex]),
                size,
            )
        )
    spans.sort(key=lambda span: -len(np.unique(span[0])))
    levels = [Level(node_unit, here, here, here, here)]
    ends = [(here, here + 1)]
    for (lo, hi), size in zip(_nested(spans), (span[2] for span in spans), strict=True):
        levels.append(_level(levels[-1], lo, size))
        ends.append((lo, hi))
    of_vertex = np.zeros(len(tree.tiers), dtype=np.int64)
    of_node = np.zeros(n, dtype=np.int64)
    filled = np.flatnonzero(tree.hi > tree.lo)
    at = tree.lo[filled]
    for j, (lo, hi) in enumerate(ends):
        whole = (lo[at] >= at) & (hi[at] <= tree.hi[filled])
        of_vertex[filled[whole]] = j
        of_node[hi - lo == 1] = j
    return Units(tuple(levels), of_vertex, of_node)


def _nested(spans: list[tuple[Ints, Ints, int]]) -> list[tuple[Ints, Ints]]:
    """The domains of each kind, finest first, cut so that each lies in one of the next.

    They do already unless two kinds hold each other in different branches; the smaller one keeps both.
    """
    found: list[tuple[Ints, Ints]] = []
    for lo, hi, _ in reversed(spans):
        if found:
            coarse_lo, coarse_hi = found[-1]
            lo, hi = np.maximum(lo, coarse_lo), np.minimum(hi, coarse_hi)
        found.append((lo, hi))
    return found[::-1]


def _level(below: Level, lo: Ints, size: int) -> Level:
    first, of = np.unique(lo, return_inverse=True)
    up = of[below.first]
    start = np.searchsorted(below.first, first)
    return Level(below.unit * size, first, start, up, of)


def room_of(tree: Tree, units: Units, room: Ints) -> UnitRoom:
    """``room`` (ranks that fit on each node, shape (N,)) in whole units, for every node and tier. O(N)."""
    n = len(room)
    if len(units.levels) == 1:  # no groups of several nodes are kept together
        held = room // units.levels[0].unit * units.levels[0].unit
        before = np.concatenate(([0], np.cumsum(held)))
        return UnitRoom([room[:0]], [held], before[tree.hi] - before[tree.lo], held.copy())
    sums, ranks = [room[:0]], [room // units.levels[0].unit * units.levels[0].unit]
    for level in units.levels[1:]:
        total = np.add.reduceat(ranks[-1], level.start) if n else ranks[-1]
        sums.append(total)
        ranks.append(total // level.unit * level.unit)
    tiers = np.zeros(len(tree.tiers), dtype=np.int64)
    nodes = np.zeros(n, dtype=np.int64)
    for j, (level, held) in enumerate(zip(units.levels, ranks, strict=True)):
        at_first = np.zeros(n, dtype=np.int64)
        at_first[level.first] = held
        before = np.concatenate(([0], np.cumsum(at_first)))
        mine = units.of_vertex == j
        tiers[mine] = (before[tree.hi] - before[tree.lo])[mine]
        alone = units.of_node == j
        nodes[alone] = held[level.of[alone]]
    return UnitRoom(sums, ranks, tiers, nodes)


def change(tree: Tree, units: Units, room: UnitRoom, position: int, value: int) -> None:
    """Set one node's room and carry the difference up, in place. O(depth)."""
    deltas: list[int] = []
    domain, total = position, value
    for j, level in enumerate(units.levels):
        if j:
            domain = int(level.up[domain])
            total = int(room.sums[j][domain]) + deltas[-1]
            room.sums[j][domain] = total
        now = total // level.unit * level.unit
        deltas.append(now - int(room.ranks[j][domain]))
        room.ranks[j][domain] = now
        if not deltas[-1]:
            break
    deltas += [0] * (len(units.levels) - len(deltas))
    room.nodes[position] += deltas[int(units.of_node[position])]
    if any(deltas):
        for vertex in tree.ancestors(position):
            room.tiers[vertex] += deltas[int(units.of_vertex[vertex])]
