"""Which rank goes where in a gang's nodes, so that its slowest collective is as fast as can be.

Ranks are laid out in tiles: a block of tp x dp x pp neighbours fills a node, a block of those a leaf, and so on up.
For every tier the shapes of block that its size suggests are priced by the model of
:mod:`unidle.place.traffic`, and the cheapest stays. Small gangs are then improved by the best exchange of two
ranks, or of two whole groups, until none helps. No chance is involved: the same input gives the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import factorial, gcd, prod
from typing import Final

import numpy as np

from unidle.fleet import LinkClass
from unidle.jobs import Layout
from unidle.place.constraint import GROUPS, Group
from unidle.place.traffic import AXIS, Edges, Floats, Model, Traffic, edges_of
from unidle.place.tree import FLEET, NODE, Ints, Tree

_NS: Final = 1_000_000_000
_SHAPES: Final = 8  # of blocks that are tried for one tier
_STARTS: Final = 12  # layouts that the search sets out from
_SMALL: Final = 64  # ranks up to which tensor groups may be torn and exchanges are tried
_FEW: Final = 4_000  # layouts that are priced one and all
_PATIENCE: Final = 25  # steps without a gain that a walk takes
_WORK: Final = 600_000  # ranks that all exchanges together may look at

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
class Mapping:
    """``node_of_rank[r]`` indexes the gang's nodes. ``time_ns`` is the step's communication, modelled."""

    node_of_rank: Ints
    time_ns: int
    groups: dict[Group, GroupTime]


def map_ranks(
    tree: Tree, nodes: Ints, counts: Ints, layout: Layout, traffic: Traffic, fabric: LinkClass | None = None
) -> Mapping:
    """The order of ranks on ``nodes`` (positions, ascending), ``counts[i]`` of them on the i-th.

    Rank r is in tensor group r // tp, and so on: tensor index fastest, then data, then pipeline (Megatron's
    default order). Errors: ``ValueError`` where counts and layout disagree.
    """
    ranks = layout.tp * layout.dp * layout.pp
    if int(counts.sum()) != ranks or len(nodes) != len(counts):
        raise ValueError(f"{int(counts.sum())} places for {ranks} ranks of the layout")
    edges = edges_of(tree, nodes, fabric)
    # Large gangs keep the parts of a tensor group that fill a node evenly together.
    fold = 1 if ranks <= _SMALL else int(np.gcd.reduce([layout.tp, *counts.tolist()]))
    model = Model(edges, layout, traffic, fold)
    return describe(tree, nodes, model, _searched(model, counts // fold))


def describe(tree: Tree, nodes: Ints, model: Model, grid: Ints) -> Mapping:
    """What the layout ``grid`` (of indices into ``nodes``, shaped as the model says) costs, and how far it spreads."""
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
    return Mapping(np.repeat(grid.reshape(-1), model.fold), round(float(times.sum()) * _NS), groups)


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


def _searched(model: Model, counts: Ints) -> Ints:
    shape = model.shape()
    if (every := _every_layout(counts)) is not None:
        grids = every.reshape(-1, *shape)
        seconds = model.seconds(grids)
        costs, upper = _rounded(model.cost(seconds)), _rounded(model.upper(seconds))
        return grids[min(range(len(grids)), key=lambda k: (costs[k], upper[k]))]
    orders = _node_orders(model.edges, counts)
    grids = [
        _filled(t, counts, o, model)
        for t in dict.fromkeys(_tilings(model, counts, orders[0]))
        for o in orders
    ]
    if int(counts.sum()) <= _SMALL:
        grids += [grids[0].reshape(-1)[turn].reshape(shape) for turn in _turns(grids[0].size)]
    different = {grid.tobytes(): grid for grid in grids}
    starts = sorted(((_price(model, g), k, g) for k, g in enumerate(different.values())), key=lambda s: s[:2])
    best_price, _, best = starts[0]
    walk = _Walk(model, _WORK)
    for price, _, grid in starts[:_STARTS]:
        better_price, better = walk.best_from(grid, price)
        if better_price < best_price:
            best_price, best = better_price, better
    return best


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


def _price(model: Model, grid: Ints) -> tuple[float, float]:
    """The cost of a layout, and between equal ones that on the links which other gangs share."""
    seconds = model.seconds(grid[None])
    return _rounded(model.cost(seconds))[0], _rounded(model.upper(seconds))[0]


def _rounded(seconds: Floats) -> list[float]:
    """To 12 digits, so that the order of a sum decides nothing."""
    return [float(f"{value:.12g}") for value in seconds]


def _node_orders(edges: Edges, counts: Ints) -> list[Ints]:
    """Orders in which nodes are filled: as they stand, and with the fullest domains first."""
    plain = np.arange(len(counts))
    keys = [-counts, *(-np.bincount(level + 1, weights=counts)[level + 1] for level in edges.at[1:])]
    ids: list[Ints] = [plain, *edges.at[1:]]
    fullest = np.lexsort([part for pair in zip(ids, keys, strict=True) for part in pair])
    return [plain] if np.array_equal(fullest, plain) else [plain, fullest]


def _tilings(model: Model, counts: Ints, order: Ints) -> Iterator[tuple[_Tile, ...]]:
    """Sequences of nested blocks, innermost first: the best found tier by tier, and the plain orders."""
    whole = model.shape()[::-1]
    small = int(counts.sum()) <= _SMALL
    for axes in itertools.permutations(range(3)):
        yield tuple(_axis_tile(axes[:k], whole) for k in (1, 2))
    tiles: tuple[_Tile, ...] = ()
    for size in _sizes(model.edges, counts):
        last = tiles[-1] if tiles else (1, 1, 1)
        tried = [(*tiles, tile) for tile in _shapes(last, size, whole)]
        if not tried:
            continue
        prices = [_price(model, _filled(t, counts, order, model)) for t in tried]
        tiles = tried[min(range(len(tried)), key=prices.__getitem__)]
        yield from tried if small else (tiles,)


def _axis_tile(axes: Sequence[int], whole: _Tile) -> _Tile:
    tp, dp, pp = (whole[k] if k in axes else 1 for k in range(3))
    return tp, dp, pp


def _sizes(edges: Edges, counts: Ints) -> list[int]:
    """How many ranks a domain of each tier holds, from the node upwards: the most common number."""
    found = []
    for level in edges.at:
        held = np.bincount(level[level >= 0], weights=counts[level >= 0]).astype(np.int64)
        sizes, times = np.unique(held[held > 0], return_counts=True)
        found.append(int(sizes[times.argmax()]))
    return [size for k, size in enumerate(found) if size > max(found[:k], default=1)]


def _shapes(inner: _Tile, size: int, whole: _Tile) -> list[_Tile]:
    """Blocks of whole ``inner`` blocks with at most ``size`` ranks that no further block fits into."""
    room = size // (inner[0] * inner[1] * inner[2])
    found: dict[_Tile, None] = {}
    steps = [_steps(inner[k], whole[k], room) for k in range(3)]
    for tp, dp in itertools.product(steps[0], steps[1]):
        left = room // (-(-tp // inner[0]) * -(-dp // inner[1]))
        if left:
            found[tp, dp, min(whole[2], left * inner[2])] = None
    full = sorted(found, key=lambda t: (-(min(t[0] * t[1] * t[2], size)), -t[0], -t[1]))
    if len(full) <= _SHAPES:
        return full
    # the largest blocks, evenly between those wide in dp and those deep in pp
    best = [t for t in full if t[0] == full[0][0]]
    picked = np.unique(np.linspace(0, len(best) - 1, _SHAPES).round().astype(int))
    return [best[k] for k in picked.tolist()]


def _steps(inner: int, whole: int, room: int) -> list[int]:
    """Multiples of ``inner`` up to ``whole`` that divide it, and the largest that fits."""
    most = min(whole, inner * room)
    found = {n for n in range(inner, most + 1, inner) if whole % n == 0}
    return sorted(found | {most})


def _filled(tiles: Iterable[_Tile], counts: Ints, order: Ints, model: Model) -> Ints:
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


# Exchanges.


@dataclass(slots=True)
class _Walk:
    """A search over layouts that steps to the best neighbour not seen yet, even where that is no gain.

    The bottleneck alone leaves wide plateaus, so among equal costs the one with less load in all goes first.
    """

    model: Model
    work: int  # ranks that may still be looked at
    seen: set[bytes] = field(default_factory=set)

    def best_from(self, grid: Ints, price: tuple[float, float]) -> tuple[tuple[float, float], Ints]:
        """The best layout on a walk that ends when ``_PATIENCE`` steps brought nothing."""
        best, here, patience = (price[0], float("inf")), grid, _PATIENCE
        found = grid
        while patience and grid.size <= _SMALL and self.work > 0:
            self.seen.add(here.tobytes())
            step = self._step(here)
            if step is None:
                break
            here, reached = step
            patience -= 1
            if reached < best:
                patience = _PATIENCE if reached[0] < best[0] else patience
                best, found = reached, here
        return (price if found is grid else _price(self.model, found)), found

    def _step(self, here: Ints) -> tuple[Ints, tuple[float, float]] | None:
        moves = _moves(here)
        self.work -= moves.size
        seconds = self.model.seconds(moves)
        costs, loads = _rounded(self.model.cost(seconds)), _rounded(_load(seconds))
        for at in sorted(range(len(moves)), key=lambda k: (costs[k], loads[k])):
            if moves[at].tobytes() not in self.seen:
                return moves[at], (costs[at], loads[at])
        return None


def _load(seconds: Floats) -> Floats:
    result: Floats = np.square(seconds).sum(axis=(1, 2))
    return result


def _moves(grid: Ints) -> Ints:
    """All layouts that one exchange of two ranks, or of two rows along an axis or plane, leads to."""
    flat = grid.reshape(-1)
    a, b = np.triu_indices(flat.size, 1)
    differ = flat[a] != flat[b]
    a, b = a[differ], b[differ]
    moves = np.repeat(flat[None], len(a), axis=0)
    rows = np.arange(len(a))
    moves[rows, a], moves[rows, b] = flat[b], flat[a]
    found = [moves.reshape(-1, *grid.shape)]
    found += [_row_moves(grid, axis) for axis in range(3)]
    return np.concatenate(found)


def _row_moves(grid: Ints, axis: int) -> Ints:
    """Exchanges of two whole groups that run along ``axis``."""
    rows = np.moveaxis(grid, axis, -1)
    lines = rows.reshape(-1, rows.shape[-1])
    if lines.shape[1] < 2 or len(lines) < 2:
        return np.empty((0, *grid.shape), dtype=np.int64)
    a, b = np.triu_indices(len(lines), 1)
    differ = (lines[a] != lines[b]).any(axis=1)
    a, b = a[differ], b[differ]
    moves = np.repeat(lines[None], len(a), axis=0)
    at = np.arange(len(a))
    moves[at, a], moves[at, b] = lines[b], lines[a]
    return np.moveaxis(moves.reshape(-1, *rows.shape), -1, axis + 1)
