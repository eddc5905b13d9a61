"""What a gang's collectives cost on given places, and the search for better orders of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import LinkClass
from unidle.fleet.network import CLASSES
from unidle.jobs import Layout
from unidle.place.network.constraint import GROUPS, Group
from unidle.place.network.tree import Ints, Tree

_BITS: Final = 8
AXIS: Final[dict[str, int]] = {"pp": 0, "dp": 1, "tp": 2}  # of a grid of ranks

TORN_S: Final = 1e9

Floats = NDArray[np.float64]
Limit = tuple[Group, Ints]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes in one step: all-reduced in each tensor and data group, and sent on between two stages."""

    tp_bytes: int
    dp_bytes: int
    pp_bytes: int

    def of(self, group: Group) -> int:
        return int(getattr(self, f"{group}_bytes"))


def usual_traffic(
    layout: Layout, params: int = 70_000_000_000, layers: int = 80, hidden: int = 8192
) -> Traffic:
    """What a dense transformer sends, where nothing was measured: 16-bit, 8 microbatches of 4,096 tokens.

    Four all-reduces of the activations per layer and microbatch in a tensor group; the gradients once in a
    data group; the activations forth, and as much back, between stages (Narayanan et al., 2021, section 3).
    """
    activations = 8 * 4096 * hidden * 2
    return Traffic(
        tp_bytes=4 * activations * layers // layout.pp if layout.tp > 1 else 0,
        dp_bytes=2 * params // (layout.tp * layout.pp) if layout.dp > 1 else 0,
        pp_bytes=activations // layout.tp if layout.pp > 1 else 0,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The part of the network that a gang on n nodes uses: its nodes' ways up, and those of tiers above them.

    ``at[d]`` gives for each of the gang's nodes its edge at one depth, -1 where it has none. ``bps`` is by
    edge. ``vertex`` is the tier of each edge, or -1 - position for a node's.
    """

    at: Ints  # depths x n
    bps: Floats
    vertex: Ints
    inside_bps: int  # the slowest of a device's links inside its node


def edges_of(tree: Tree, nodes: Ints, fabric: LinkClass | None = None) -> Edges:
    """The edges below the lowest tier that holds all ``nodes`` (positions).

    Where ``fabric`` is None each edge counts with its fastest class.
    """
    up = _columns(tree.node_up_bps[nodes], fabric)
    chains = {int(v): tree_chain(tree, int(v)) for v in np.unique(tree.above[nodes])}
    common = set.intersection(*map(set, chains.values()))
    numbers: dict[int, int] = {}
    for chain in chains.values():
        for tier in chain:
            if tier in common:
                break
            numbers.setdefault(tier, len(numbers))
    n, above = len(nodes), tree.above[nodes]
    tiers = np.array(list(numbers), dtype=np.int64)
    levels = [np.arange(n)] if n > 1 else []
    for depth in sorted({int(tree.depth[tier]) for tier in numbers}, reverse=True):
        by_vertex = {
            vertex: next((n + numbers[t] for t in chain if t in numbers and tree.depth[t] == depth), -1)
            for vertex, chain in chains.items()
        }
        levels.append(np.array([by_vertex[int(v)] for v in above], dtype=np.int64))
    bps = np.concatenate([up, _columns(tree.tier_up_bps[tiers], fabric)]) if len(tiers) else up
    return Edges(
        np.array(levels, dtype=np.int64).reshape(-1, n),
        bps,
        np.concatenate([-1 - nodes, tiers]),
        int(tree.inside_bps[nodes].min()),
    )


def tree_chain(tree: Tree, vertex: int) -> list[int]:
    """``vertex`` and all above it."""
    found = []
    while vertex >= 0:
        found.append(vertex)
        vertex = int(tree.parent[vertex])
    return found


def _columns(bps: Ints, fabric: LinkClass | None) -> Floats:
    chosen: Ints = bps.max(axis=1) if fabric is None else bps[:, CLASSES.index(fabric)]
    return np.maximum(chosen, 1).astype(np.float64)


class CostModel:
    """The cost of putting ranks on nodes; ``grid`` has the node (0 to n-1) of each rank.

    A grid is shaped (pp, dp, tp), or with leading axes for several layouts at once: rank
    ``t + tp * (d + dp * p)`` is at ``[p, d, t]``, Megatron's order of ranks, tensor groups fastest.

    ``fold`` neighbours of a tensor group that always share a node may be folded into one: the last axis is then
    tp / fold long, and each data group and pipeline that crosses an edge counts ``fold`` times.
    ``limits`` are kinds of groups that must not be split, each with the domain of every node.
    """

    def __init__(
        self, edges: Edges, layout: Layout, traffic: Traffic, fold: int = 1, limits: Sequence[Limit] = ()
    ) -> None:
        self.edges, self.layout, self.traffic, self.fold = edges, layout, traffic, fold
        self.limits = tuple(limits)
        self.ring_bytes = {g: self._ring(g) for g in GROUPS}
        inside = [8.0 * self.ring_bytes[g] / edges.inside_bps for g in GROUPS]
        self.inside_s: Floats = np.array(inside)

    def _ring(self, group: Group) -> float:
        """Bytes on one link of the group's ring or chain in a step."""
        n = int(getattr(self.layout, group))
        if n < 2:
            return 0.0
        return float(self.traffic.of(group)) * (1.0 if group == "pp" else 2.0 * (n - 1) / n)

    def seconds(self, grids: Ints) -> Floats:
        """Time on every edge for every kind of group. Shape (B, pp, dp, tp) in, (B, 3, E) out."""
        batch, edges = len(grids), len(self.edges.bps)
        crossed = np.zeros((batch, len(GROUPS), edges))
        for k, group in enumerate(GROUPS):
            if not self.ring_bytes[group]:
                continue
            for level in self.edges.at:
                on_edge = level[grids]
                which, edge = _chain(on_edge) if group == "pp" else _rings(on_edge, AXIS[group])
                kept = edge >= 0
                flat = np.bincount(which[kept] * edges + edge[kept], minlength=batch * edges)
                crossed[:, k] += flat.reshape(batch, edges)
            crossed[:, k] *= self.ring_bytes[group] * _BITS * (1 if group == "tp" else self.fold)
        result: Floats = crossed / self.edges.bps
        return result

    def shape(self) -> tuple[int, int, int]:
        """Of a grid: (pp, dp, tp / fold)."""
        return self.layout.pp, self.layout.dp, self.layout.tp // self.fold

    def torn(self, grids: Ints) -> Ints:
        """How many groups are in more than one domain that must not be. Shape (B, ...) in, (B,) out."""
        found = np.zeros(len(grids), dtype=np.int64)
        for group, domain in self.limits:
            rows = np.moveaxis(domain[grids], AXIS[group] + 1, -1)
            found += (rows != rows[..., :1]).any(axis=-1).reshape(len(grids), -1).sum(axis=1)
        return found

    def priced(self, grids: Ints) -> tuple[Floats, Floats]:
        """Cost in seconds, shape (B,), where each torn group counts for more than any layout does; and
        :meth:`seconds`."""
        seconds = self.seconds(grids)
        return self.cost(seconds) + self.torn(grids) * TORN_S, seconds

    def cost(self, seconds: Floats) -> Floats:
        """Seconds of communication in a step. Shape (B, 3, E) in, (B,) out."""
        result: Floats = np.maximum(seconds.max(axis=2, initial=0.0), self.inside_s).sum(axis=1)
        return result


def _rings(on_edge: Ints, axis: int) -> tuple[Ints, Ints]:
    """(layout, edge) for every group and every edge that some, but not all, of its ranks are behind."""
    rows = np.moveaxis(on_edge, axis + 1, -1)
    batch, size = rows.shape[0], rows.shape[-1]
    rows = np.sort(rows.reshape(-1, size), axis=1)
    first = np.ones(rows.shape, dtype=np.bool_)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    first &= rows[:, :1] != rows[:, -1:]
    at, _ = np.nonzero(first)
    return at // (len(rows) // batch), rows[first]


def _chain(on_edge: Ints) -> tuple[Ints, Ints]:
    """(layout, edge) for every pair of neighbouring stages and every edge between them."""
    a, b = on_edge[:, :-1], on_edge[:, 1:]
    differ = a != b
    which = np.nonzero(differ)[0]
    return np.concatenate([which, which]), np.concatenate([a[differ], b[differ]])


@dataclass(slots=True)
class LocalSearch:
    """A walk over layouts that steps to the best neighbour not visited yet, even if that is no improvement.

    The cost of the bottleneck has wide plateaus, so among equal costs the layout with the smaller total load
    is taken. ``work`` is how many ranks may still be evaluated, over all walks. A walk ends after
    ``patience`` steps without an improvement.
    """

    model: CostModel
    work: int
    patience: int
    seen: set[bytes] = field(default_factory=set)
    exchanges: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.exchanges = exchanges(self.model.shape())

    def best_from(self, grid: Ints) -> Ints:
        """The best layout found on a walk from ``grid``."""
        here = found = grid.reshape(-1)
        best, patience = (float("inf"), float("inf")), self.patience
        while patience and self.work > 0:
            self.seen.add(here.tobytes())
            step = self._step(here)
            if step is None:
                break
            here, reached = step
            patience = self.patience if reached[0] < best[0] else patience - 1
            if reached < best:
                best, found = reached, here
        return found.reshape(grid.shape)

    def _step(self, here: Ints) -> tuple[Ints, tuple[float, float]] | None:
        moves = here[self.exchanges]
        moves = moves[(moves != here).any(axis=1)]
        self.work -= moves.size
        prices, seconds = self.model.priced(moves.reshape(-1, *self.model.shape()))
        costs, loads = rounded(prices), rounded(np.square(seconds).sum(axis=(1, 2)))
        for at in np.lexsort([loads, costs]):
            if moves[at].tobytes() not in self.seen:
                return moves[at], (float(costs[at]), float(loads[at]))
        return None


def rounded(seconds: Floats) -> Floats:
    """To about 12 digits, so that the order of a sum decides nothing. Values are at least 0."""
    digit = np.exp2(np.floor(np.log2(np.maximum(seconds, 1e-300))) - 40)
    found: Floats = np.round(seconds / digit) * digit
    return found


def exchanges(shape: tuple[int, int, int]) -> Ints:
    """All exchanges of two ranks, and of two groups along one axis, as orders of the ranks. Shape (M, ranks)."""
    ids = np.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    found = [_swapped(ids.reshape(-1, 1), ids.size)]
    for axis in range(3):
        lines = np.moveaxis(ids, axis, -1).reshape(-1, shape[axis])
        if shape[axis] > 1 and len(lines) > 1:
            found.append(_swapped(lines, ids.size))
    return np.concatenate(found)


def _swapped(lines: Ints, ranks: int) -> Ints:
    """One order for each pair of ``lines`` (shape (L, n), of ranks), with the two exchanged."""
    a, b = np.triu_indices(len(lines), 1)
    orders = np.repeat(np.arange(ranks)[None], len(a), axis=0)
    at = np.arange(len(a))[:, None]
    orders[at, lines[a]], orders[at, lines[b]] = lines[b], lines[a]
    return orders


_WORK: Final = 50_000_000  # counts that are compared at most; beyond, numbers stay as they are


def closest(new: Ints, old: Ints) -> Ints:
    """The order ``new`` with data and tensor indices given out so that many ranks are where ``old`` has them.

    Both are grids of nodes, shaped (pp, dp, tp), -1 in ``old`` where a rank has no place to keep. Every group stays a
    group, on the same nodes, so no cost changes. Pipelines are chains, so their stages stay in order.
    """
    by_data = _matched(new, AXIS["dp"], _overlap(new, old))
    by_both = _matched(by_data, AXIS["tp"], _equal(by_data, old))
    return max((new, by_data, by_both), key=lambda grid: int((grid == old).sum()))


def _overlap(new: Ints, old: Ints) -> Ints | None:
    """For each data index of ``old`` and ``new``, how many ranks of a stage could stay on their nodes. Shape (dp, dp)."""
    stages, size, _ = new.shape
    nodes = int(max(new.max(), old.max())) + 1
    if size == 1 or size * size * stages * nodes > _WORK:
        return None
    found = np.zeros((size, size), np.int64)
    was, now = (_counts(grid, nodes) for grid in (old, new))
    for index in range(size):
        found[index] = np.minimum(was[index], now).sum(axis=1)
    return found


def _counts(grid: Ints, nodes: int) -> Ints:
    """Ranks of each data index by stage and node. Shape (dp, pp * nodes)."""
    stages, size, _ = grid.shape
    stage, index, _ = np.indices(grid.shape)
    there = grid >= 0
    flat = (index * stages + stage)[there] * nodes + grid[there]
    return np.bincount(flat, minlength=size * stages * nodes).reshape(size, -1).astype(np.int64)


def _equal(new: Ints, old: Ints) -> Ints | None:
    """For each tensor index of ``old`` and ``new``, how many ranks would be where they were. Shape (tp, tp)."""
    size = new.shape[AXIS["tp"]]
    if size == 1 or size * new.size > _WORK:
        return None
    was, now = (np.moveaxis(grid, AXIS["tp"], 0).reshape(size, -1) for grid in (old, new))
    return np.array([(row == now).sum(axis=1) for row in was], np.int64)


def _matched(grid: Ints, axis: int, met: Ints | None) -> Ints:
    """The grid's indices along ``axis`` in the order that meets best, the best match first; stable."""
    if met is None:
        return grid
    size = len(met)
    order = np.full(size, -1, np.int64)
    taken = np.zeros(size, np.bool_)
    for flat in np.argsort(-met, axis=None, kind="stable").tolist():
        to, source = divmod(flat, size)
        if order[to] < 0 and not taken[source]:
            order[to], taken[source] = source, True
    found: Ints = np.take(grid, order, axis=axis)
    return found
