"""Room in whole groups: how many ranks fit in each domain when groups must not be torn apart.

A group constrained to a kind of tier makes *units* of ranks that stay inside one domain of that kind. Where
tensor groups stay in a node and data groups in a leaf, a node holds whole tensor groups, and a leaf
whole planes of tp x dp ranks made of them: the ranks of one plane are tied to one leaf by both. So units
multiply from the finest kind to the coarsest, and the room of a domain is that of the domains
inside it, rounded down to whole units. Rounding at each level is exact, because units of one level are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unidle.place.tree import Ints, Tree


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
class Room:
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


def room_of(tree: Tree, units: Units, room: Ints) -> Room:
    """``room`` (ranks that fit on each node, shape (N,)) in whole units, for every node and tier. O(N)."""
    n = len(room)
    if len(units.levels) == 1:  # no groups of several nodes are kept together
        held = room // units.levels[0].unit * units.levels[0].unit
        before = np.concatenate(([0], np.cumsum(held)))
        return Room([room[:0]], [held], before[tree.hi] - before[tree.lo], held.copy())
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
    return Room(sums, ranks, tiers, nodes)


def change(tree: Tree, units: Units, room: Room, position: int, value: int) -> None:
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
