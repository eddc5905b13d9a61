"""Which rank goes where in a gang's nodes, so that its slowest collective is as fast as can be.

Ranks are laid out in tiles: a block of tp x dp x pp neighbours fills a node, a block of those a leaf, and so on up.
For every tier the shapes of block that its size suggests are priced by the model of
:mod:`unidle.place.network.traffic`, and the cheapest stays. Small gangs are then improved by the best exchange of two
ranks, or of two whole groups, until none helps. No chance is involved: the same input gives the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import factorial, gcd, prod
from typing import Final, NamedTuple

import numpy as np

from unidle.fleet import Fleet, LinkClass
from unidle.fleet.network import CLASSES
from unidle.jobs import Layout, RankPlace
from unidle.place.network.constraint import GROUPS, Constraint, Group
from unidle.place.network.traffic import (
    AXIS,
    CostModel,
    Edges,
    Limit,
    LocalSearch,
    Traffic,
    edges_of,
    rounded,
    tree_chain,
    usual_traffic,
)
from unidle.place.network.tree import FLEET, NODE, Ints, Tree, tree_of

_NS: Final = 1_000_000_000
_SHAPES: Final = 8  # of blocks that are tried for one tier
_STARTS: Final = 12  # layouts that the search sets out from
_SMALL: Final = 64  # ranks up to which tensor groups may be torn and exchanges are tried
_NEAR: Final = 0.01  # costs that close count as equal
_FEW: Final = 4_000  # layouts that are priced one and all
_PATIENCE: Final = 25  # steps without a gain that a walk takes
_WORK: Final = 300_000  # ranks that all exchanges together may look at

_Tile = tuple[int, int, int]  # tp, dp, pp


@dataclass(frozen=True, slots=True)
class GroupTime:
    """The groups of one kind in a step; every figure is modelled.

    ``time_ns`` is that of the slowest; ``tier`` the kind whose way up bounds it (``device``: links inside
    a node), and ``tier_name`` which one. ``spread`` is the largest number of tiers of each kind, and of
    nodes, that one group is spread over.
    """

    groups: int
    ranks: int
    bytes: int
    time_ns: int
    tier: str
    tier_name: str
    spread: dict[str, int]
    how: str = "modelled"


@dataclass(frozen=True, slots=True, eq=False)
class RankOrder:
    """``node_of_rank[r]`` indexes the gang's nodes. ``time_ns`` is the step's communication, modelled."""

    node_of_rank: Ints
    time_ns: int
    groups: dict[Group, GroupTime]


def map_ranks(
    tree: Tree,
    nodes: Ints,
    counts: Ints,
    layout: Layout,
    traffic: Traffic,
    fabric: LinkClass | None = None,
    keep: Sequence[Constraint] = (),
) -> RankOrder:
    """The order of ranks on ``nodes`` (positions, ascending), ``counts[i]`` of them on the i-th.

    Rank r is in tensor group r // tp, and so on: tensor index fastest, then data, then pipeline (Megatron's
    default order). ``keep`` are constraints on groups that hold in any case; a plan that was made with them leaves
    places where they do. The orders of the last 256 problems are kept: gangs of one kind on racks of one kind are
    the same problem. Errors: ``ValueError`` where counts and layout disagree, or nothing keeps them.
    """
    ranks = layout.tp * layout.dp * layout.pp
    if int(counts.sum()) != ranks or len(nodes) != len(counts):
        raise ValueError(f"{int(counts.sum())} places for {ranks} ranks of the layout")
    limits = [(c.group, _domains(tree, nodes, c.within)) for c in keep if c.group != "gang" and c.within]
    # Large gangs keep the parts of a tensor group that fill a node evenly together.
    fold = int(np.gcd.reduce([layout.tp, *counts.tolist()])) if ranks > _SMALL and _may_fold(limits) else 1
    model = CostModel(edges_of(tree, nodes, fabric), layout, traffic, fold, limits)
    grid = order_found(_Problem.of(model, counts // fold))
    if model.torn(grid[None])[0]:
        raise ValueError("no order of ranks on these places keeps the groups together")
    return describe(tree, nodes, model, grid)


def ordered(
    tree: Tree, nodes: Ints, node_of_rank: Ints, layout: Layout, traffic: Traffic,
    fabric: LinkClass | None = None, keep: Sequence[Constraint] = (),
) -> RankOrder | None:  # fmt: skip
    """What a given order costs (arguments as for :func:`map_ranks`); None where it tears groups that ``keep`` joins."""
    limits = [(c.group, _domains(tree, nodes, c.within)) for c in keep if c.group != "gang" and c.within]
    model = CostModel(edges_of(tree, nodes, fabric), layout, traffic, 1, limits)
    grid = node_of_rank.reshape(model.shape())
    return None if model.torn(grid[None])[0] else describe(tree, nodes, model, grid)


def _domains(tree: Tree, nodes: Ints, within: str) -> Ints:
    """The domain of each node; one without a tier of the kind is a domain by itself."""
    alone = -1 - np.arange(len(nodes))
    if within == NODE:
        return alone
    code = tree.kind_code(within)
    found = tree.within(code)[nodes] if code is not None else alone
    return np.where(found < 0, alone, found)


def _may_fold(limits: Sequence[Limit]) -> bool:
    """Not where another group must fill domains in which tensor groups may be torn."""
    parts = {group: len(np.unique(domain)) for group, domain in limits}
    return not parts or parts.get("tp", 0) == max(parts.values())


def describe(tree: Tree, nodes: Ints, model: CostModel, grid: Ints) -> RankOrder:
    """The cost and the spread of the layout ``grid``: indices into ``nodes``, in the shape of the model."""
    seconds = model.seconds(grid[None])
    times = np.maximum(seconds[0].max(axis=1, initial=0.0), model.inside_s)
    groups: dict[Group, GroupTime] = {}
    for k, group in enumerate(GROUPS):
        slowest = int(seconds[0, k].argmax()) if seconds.shape[2] else -1
        inside = slowest < 0 or seconds[0, k, slowest] <= model.inside_s[k]
        vertex = 0 if inside else int(model.edges.vertex[slowest])
        size = int(getattr(model.layout, group))
        groups[group] = GroupTime(
            groups=grid.size * model.fold // size,
            ranks=size,
            bytes=model.traffic.of(group) if size > 1 else 0,
            time_ns=round(float(times[k]) * _NS),
            tier="device" if inside else tree.kind_name(vertex) if vertex >= 0 else NODE,
            tier_name="" if inside else tree.tiers[vertex] if vertex >= 0 else tree.nodes[-1 - vertex],
            spread=spreads(tree, nodes, grid, group),
        )
    return RankOrder(np.repeat(grid.reshape(-1), model.fold), round(float(times.sum()) * _NS), groups)


def spreads(tree: Tree, nodes: Ints, grid: Ints, group: Group) -> dict[str, int]:
    """The most nodes, and the most tiers of each kind, that one group of this kind touches."""
    rows = np.moveaxis(grid, AXIS[group], -1)
    found = {NODE: _most(rows)}
    for code, kind in enumerate(tree.kinds):
        if kind != FLEET:
            found[kind] = _most(tree.within(code)[nodes][rows])
    return found


def _most(rows: Ints) -> int:
    held = np.sort(rows.reshape(-1, rows.shape[-1]), axis=1)
    return int((held[:, 1:] != held[:, :-1]).sum(axis=1).max(initial=0)) + 1


# Layouts in tiles.


class _Problem(NamedTuple):
    """All that an order depends on. Gangs of one kind on racks of one kind are the same problem."""

    depths: int
    at: bytes
    bps: bytes
    inside_bps: int
    counts: bytes
    layout: Layout
    traffic: Traffic
    fold: int
    limits: tuple[tuple[Group, bytes], ...]

    @classmethod
    def of(cls, model: CostModel, counts: Ints) -> _Problem:
        edges = model.edges
        limits = ((group, np.unique(domain, return_inverse=True)[1]) for group, domain in model.limits)
        return cls(
            len(edges.at), edges.at.tobytes(), edges.bps.tobytes(), edges.inside_bps, counts.tobytes(),
            model.layout, model.traffic, model.fold, tuple((group, ids.tobytes()) for group, ids in limits),
        )  # fmt: skip

    def model(self) -> tuple[CostModel, Ints]:
        counts = np.frombuffer(self.counts, np.int64)
        at = np.frombuffer(self.at, np.int64).reshape(self.depths, len(counts))
        bps = np.frombuffer(self.bps, np.float64)
        vertex = np.where(np.arange(len(bps)) < len(counts), -1, 1)  # whose they are changes no order
        limits = tuple((group, np.frombuffer(ids, np.int64)) for group, ids in self.limits)
        edges = Edges(at, bps, vertex, self.inside_bps)
        return CostModel(edges, self.layout, self.traffic, self.fold, limits), counts


@lru_cache(maxsize=256)
def order_found(problem: _Problem) -> Ints:
    """The grid of the best order found."""
    grid = _searched(*problem.model())
    grid.flags.writeable = False
    return grid


def _searched(model: CostModel, counts: Ints) -> Ints:
    shape = model.shape()
    every = _every_layout(counts)
    if every is not None:
        layouts = every.reshape(-1, *shape)
        found: Ints = layouts[_ranked(model, layouts)[0]]
        return found
    plain, *others = _node_orders(model.edges, counts)
    tilings = list(dict.fromkeys(_tilings(model, counts, plain)))
    grids = [_filled(tiles, counts, plain, model) for tiles in tilings]
    if others:
        promising = _ranked(model, np.array(grids))[:_STARTS]
        grids += [_filled(tilings[k], counts, order, model) for order in others for k in promising]
    if grids[0].size <= _SMALL:
        grids += [grids[0].reshape(-1)[turn].reshape(shape) for turn in _turns(grids[0].size)]
        different = {grid.tobytes(): grid for grid in grids}
        starts = sorted(different.values(), key=lambda grid: _cost(model, grid))
        walk = LocalSearch(model, _WORK, _PATIENCE)
        grids += [walk.best_from(grid) for grid in starts[:_STARTS]]
    return grids[_ranked(model, np.array(grids))[0]]


def _ranked(model: CostModel, grids: Ints) -> list[int]:
    """Those within ``_NEAR`` of the least cost, the least spread and then the least cost first."""
    costs = np.concatenate([model.priced(part)[0] for part in _parts(grids)])
    near = np.flatnonzero(costs <= costs.min() * (1 + _NEAR))
    order = np.lexsort([rounded(costs[near]), _widths(model, grids[near])])
    found: list[int] = near[order].tolist()
    return found


def _widths(model: CostModel, grids: Ints) -> Ints:
    """The most domains that one group touches, summed over the tiers above nodes. Shape (B, ...) in."""
    total = np.zeros(len(grids), dtype=np.int64)
    for level in model.edges.at[1:]:
        on_edge = level[grids]
        by_axis = [np.sort(on_edge, axis=axis) for axis in (1, 2, 3)]
        changes = [np.diff(rows, axis=k) != 0 for k, rows in enumerate(by_axis, 1)]
        per_group = [
            c.sum(axis=k).reshape(len(grids), -1).max(axis=1, initial=0) for k, c in enumerate(changes, 1)
        ]
        total += np.max(per_group, axis=0)
    return total


def _parts(grids: Ints) -> list[Ints]:
    """Runs of layouts that are priced at once, so that memory stays bounded."""
    each = max(1, 30_000 // max(1, grids[0].size))
    return [grids[k : k + each] for k in range(0, len(grids), each)]


def _every_layout(counts: Ints) -> Ints | None:
    """All ways to put the ranks on nodes, where they are few. Shape (ways, ranks)."""
    ranks = int(counts.sum())
    ways = factorial(ranks) // prod(factorial(c) for c in counts.tolist()) if ranks <= _SMALL else _FEW + 1
    if ways > _FEW:
        return None
    left = np.array([counts])
    layouts = np.empty((1, 0), dtype=np.int64)
    for _ in range(ranks):
        at, node = np.nonzero(left)
        layouts = np.column_stack([layouts[at], node])
        left = left[at]
        left[np.arange(len(at)), node] -= 1
    return layouts


def _turns(ranks: int) -> Iterator[Ints]:
    """A few orders that mix far ranks: every k-th, for k without a common divisor."""
    for k in range(2, ranks):
        if gcd(k, ranks) == 1:
            yield np.arange(ranks) * k % ranks


def _cost(model: CostModel, grid: Ints) -> float:
    return float(rounded(model.priced(grid[None])[0])[0])


def _node_orders(edges: Edges, counts: Ints) -> list[Ints]:
    """Orders in which nodes are filled: as they stand, and with the fullest domains first."""
    plain = np.arange(len(counts))
    keys = [-counts, *(-np.bincount(level + 1, weights=counts)[level + 1] for level in edges.at[1:])]
    ids: list[Ints] = [plain, *edges.at[1:]]
    fullest = np.lexsort([part for pair in zip(ids, keys, strict=True) for part in pair])
    return [plain] if np.array_equal(fullest, plain) else [plain, fullest]


def _tilings(model: CostModel, counts: Ints, order: Ints) -> Iterator[tuple[_Tile, ...]]:
    """Nested blocks, innermost first: the plain orders, and strips of the blocks that suit a node best."""
    tp, dp, pp = whole = model.shape()[::-1]
    for axes in itertools.permutations(range(3)):
        yield tuple(_axis_tile(axes[:k], whole) for k in (1, 2))
    blocks = _shapes(_usual(counts), whole)
    prices = [_cost(model, _filled((block,), counts, order, model)) for block in blocks]
    best = min(range(len(blocks)), key=lambda k: (prices[k], k))
    for block in blocks if int(counts.sum()) <= _SMALL else blocks[best : best + 1]:
        # Strips are a few blocks wide and run along the other axis, so that a domain of any size
        # gets a piece that is neither long nor wide.
        for width in _strips(-(-dp // block[1])):
            yield block, (tp, width * block[1], pp)
        for width in _strips(-(-pp // block[2])):
            yield block, (tp, block[1], width * block[2])


def _strips(length: int) -> list[int]:
    """Narrow widths, and those that cut ``length`` into a few equal strips or nearly."""
    even = {-(-length // k) for k in range(1, _SHAPES)}
    return sorted(even | {n for n in (*range(1, 13), 14, 16) if n < length})


def _axis_tile(axes: Sequence[int], whole: _Tile) -> _Tile:
    tp, dp, pp = (whole[k] if k in axes else 1 for k in range(3))
    return tp, dp, pp


def _usual(counts: Ints) -> int:
    """How many ranks a node holds: the most common number."""
    sizes, times = np.unique(counts, return_counts=True)
    return int(sizes[times.argmax()])


def _shapes(size: int, whole: _Tile) -> list[_Tile]:
    """Blocks of at most ``size`` ranks that could not be longer in pp; the fullest first."""
    found: dict[_Tile, None] = {}
    for tp in _steps(whole[0], size):
        for dp in _steps(whole[1], size // tp):
            found[tp, dp, min(whole[2], size // (tp * dp))] = None
    full = sorted(found, key=lambda t: (-t[0] * t[1] * t[2], -t[0], -t[1]))
    return full[:_SHAPES]


def _steps(whole: int, most: int) -> list[int]:
    """Divisors of ``whole`` up to ``most``, and the largest that fits."""
    most = min(whole, most)
    return sorted({n for n in range(1, most + 1) if whole % n == 0} | {most})


def _filled(tiles: Iterable[_Tile], counts: Ints, order: Ints, model: CostModel) -> Ints:
    """The grid that results when ranks, in the order of the nested blocks, fill the nodes in ``order``."""
    shape = model.shape()
    p, d, t = (np.arange(n).reshape([-1 if a == k else 1 for a in range(3)]) for k, n in enumerate(shape))
    # One number a rank, whose digits are its place in the innermost block, then that block's in the next.
    key = (p * shape[1] + d) * shape[2] + t
    span = shape[0] * shape[1] * shape[2]
    for tp, dp, pp in tiles:
        across = -(-shape[1] // dp), -(-shape[2] // tp)
        key = key + span * ((p // pp * across[0] + d // dp) * across[1] + t // tp)
        span *= -(-shape[0] // pp) * across[0] * across[1]
    grid = np.empty(key.size, dtype=np.int64)
    grid[np.argsort(key.reshape(-1), kind="stable")] = np.repeat(order, counts[order])
    return grid.reshape(shape)


def priced(fleet: Fleet, places: Sequence[RankPlace], layout: Layout | None) -> RankOrder:
    """The modelled collectives of ranks that are where ``places`` (in rank order) say.

    Without a layout all ranks are one data group. The fabric is the first class that carries all
    traffic between the nodes; where none does, each link counts with its fastest.
    """
    tree = tree_of(fleet)
    position = {name: k for k, name in enumerate(tree.nodes)}
    where = np.array([position[place.node] for place in places], dtype=np.int64)
    nodes, node_of_rank = np.unique(where, return_inverse=True)
    layout = layout or Layout(dp=len(places))
    model = CostModel(edges_of(tree, nodes, _fabric(tree, nodes)), layout, usual_traffic(layout))
    return describe(tree, nodes, model, node_of_rank.reshape(model.shape()))


def _fabric(tree: Tree, nodes: Ints) -> LinkClass | None:
    if len(nodes) == 1:
        return None
    chains = [tree_chain(tree, int(v)) for v in np.unique(tree.above[nodes])]
    common = next(v for v in chains[0] if all(v in chain for chain in chains))
    depth = int(tree.depth[common])
    return next((c for c in CLASSES if int(tree.reach(c)[nodes].max()) <= depth), None)
