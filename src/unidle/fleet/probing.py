"""Measurements of a fleet's links: the plan, and the links that result from it.

Flows run in phases. First, nodes that hang from one tier send to each other in disjoint pairs: what a pair
carries is a bound of both nodes' ways up, and each node takes the best that it saw. Then, kind by kind
upwards, all nodes of one tier send at once to those of a sibling: the sum is what the smaller of the two
ways up carries. Phases do not grow in number with the fleet: pairs that share nothing run together.

Latency is half a round trip of one byte, less what the links below already take.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet.model import Fleet, Link

ALIKE: Final = 0.2  # links of one kind that differ by less are written as one


@dataclass(frozen=True, slots=True)
class Flow:
    """``source`` sends to ``target`` (nodes); both hang under ``above`` and ``beside``, whose ways up are tried."""

    source: str
    target: str
    above: str
    beside: str


@dataclass(frozen=True, slots=True)
class Phase:
    """Flows at the same time; ``kind`` is of the vertices whose ways up they try."""

    kind: str
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class FlowSample:
    """One flow: bytes a second at the receiver, and half a round trip."""

    flow: Flow
    bytes_per_s: float
    one_way_ns: int


def phases(fleet: Fleet) -> list[Phase]:
    """The phases of the measurement, from the nodes upwards. Pure."""
    tree = _Tree(fleet)
    found = [
        Phase("node", tuple(Flow(a, b, a, b) for a, b in pairs))
        for pairs in _rounds([tree.nodes[tier] for tier in tree.nodes])
    ]
    for kind in tree.kinds_upwards():
        families = [[v for v in family if tree.kind[v] == kind] for family in tree.families()]
        for pairs in _rounds(families):
            flows = [flow for a, b in pairs for flow in tree.between(a, b)]
            if flows:
                found.append(Phase(kind, tuple(flows)))
    return [phase for phase in found if phase.flows]


def links_of(fleet: Fleet, measured: Sequence[tuple[Phase, Sequence[FlowSample]]]) -> tuple[Link, ...]:
    """The links that the measurements show; one for each kind if all links of it are equal. Pure.

    A tier without a sibling has no entry: nothing could be measured across its way up.
    """
    tree = _Tree(fleet)
    bps: dict[str, float] = {}
    latency: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for phase, flows in measured:
        sums: dict[tuple[str, str], float] = {}
        ways: dict[tuple[str, str], list[int]] = {}
        for one in flows:
            pair = (one.flow.above, one.flow.beside)
            sums[pair] = sums.get(pair, 0.0) + 8 * one.bytes_per_s
            ways.setdefault(pair, []).append(one.one_way_ns - _below(tree, latency, one.flow))
        for pair, rate in sums.items():
            own_ns = max(round(statistics.median(ways[pair]) / 2), 0)
            for vertex in pair:
                bps[vertex] = max(bps.get(vertex, 0.0), rate)
                latency[vertex] = min(latency.get(vertex, own_ns), own_ns)
                kinds[vertex] = phase.kind
    return tuple(_written(tree, bps, latency, kinds))


def _written(
    tree: _Tree, bps: Mapping[str, float], latency: Mapping[str, int], kinds: Mapping[str, str]
) -> Iterator[Link]:
    by_kind: dict[str, list[str]] = {}
    for vertex, kind in kinds.items():
        by_kind.setdefault(kind, []).append(vertex)
    for kind, vertices in by_kind.items():
        rates = [bps[v] for v in vertices]
        middle = statistics.median(rates)
        whole = len(vertices) == tree.count(kind)
        if whole and max(rates) - min(rates) <= ALIKE * middle:
            late = round(statistics.median(latency[v] for v in vertices))
            yield Link("", "", _rounded(middle), late, tier=kind)
            continue
        for vertex in vertices:
            parent = tree.parent.get(vertex)
            if parent:
                yield Link(vertex, parent, _rounded(bps[vertex]), latency[vertex])


def _rounded(bps: float) -> int:
    """Three digits: more were not measured."""
    return max(int(float(f"{bps:.3g}")), 1)


def _below(tree: _Tree, latency: Mapping[str, int], flow: Flow) -> int:
    """What the links under the two ways up take of the flow's time."""
    found = 0
    for node, top in ((flow.source, flow.above), (flow.target, flow.beside)):
        here: str | None = node
        while here is not None and here != top:
            found += latency.get(here, 0)
            here = tree.parent.get(here)
    return found


class _Tree:
    """Parents, siblings and leaves by name."""

    def __init__(self, fleet: Fleet) -> None:
        known = {tier.id for tier in fleet.tiers}
        self.parent: dict[str, str | None] = {tier.id: tier.parent for tier in fleet.tiers}
        self.kind = {tier.id: tier.kind for tier in fleet.tiers}
        self._tiers = [tier.id for tier in fleet.tiers]
        self._kinds = list(dict.fromkeys(tier.kind for tier in fleet.tiers))
        self.nodes: dict[str, list[str]] = {}
        for node in fleet.nodes:
            above = node.parent if node.parent in known else ""
            self.parent[node.id] = above or None
            self.nodes.setdefault(above, []).append(node.id)
        self._all = len(fleet.nodes)
        self._under: dict[str, list[str]] = {}
        for tier, nodes in self.nodes.items():
            here: str | None = tier or None
            while here is not None:
                self._under.setdefault(here, []).extend(nodes)
                here = self.parent.get(here)

    def count(self, kind: str) -> int:
        return self._all if kind == "node" else sum(k == kind for k in self.kind.values())

    def families(self) -> list[list[str]]:
        """Tiers that hang from the same tier; the roots are one family."""
        found: dict[str, list[str]] = {}
        for tier in self._tiers:
            if self._under.get(tier):
                found.setdefault(self.parent.get(tier) or "", []).append(tier)
        return list(found.values())

    def kinds_upwards(self) -> list[str]:
        """Kinds of tiers, those next to the nodes first."""
        depth: dict[str, int] = {}
        for tier in self._tiers:
            steps, here = 0, self.parent.get(tier)
            while here is not None:
                steps, here = steps + 1, self.parent.get(here)
            depth[self.kind[tier]] = max(depth.get(self.kind[tier], 0), steps)
        return sorted(self._kinds, key=lambda kind: -depth[kind])

    def between(self, a: str, b: str) -> Iterator[Flow]:
        """Every node under ``a`` sends to one under ``b``, as far as there are two."""
        for source, target in zip(self._under.get(a, ()), self._under.get(b, ()), strict=False):
            yield Flow(source, target, a, b)


def _rounds(families: Iterable[Sequence[str]]) -> list[list[tuple[str, str]]]:
    """Two rounds of disjoint pairs of neighbours in each family, in a ring: each member has two partners."""
    rounds: list[list[tuple[str, str]]] = [[], [], []]
    for family in families:
        n = len(family)
        for k in range(n - 1):
            rounds[k % 2].append((family[k], family[k + 1]))
        if n > 2:
            rounds[2].append((family[-1], family[0]))
    return [pairs for pairs in rounds if pairs]
