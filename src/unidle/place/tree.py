"""The network tree as arrays: nodes in topological order, so that every tier holds a run of them.

Capacity of a tier is then a difference of prefix sums. Vertices are numbered in preorder; vertex 0 is
the whole fleet, above all roots. Nodes are named by their position in topological order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import Fleet, LinkClass, Node, Tier
from unidle.fleet.labels import kind_of
from unidle.fleet.network import CLASSES, Network, network_of
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


def tree_of(fleet: Fleet, network: Network | None = None) -> Tree:
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
