"""Faults of nodes: given, or drawn from a seed. Pure."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

_S: Final = 1_000_000_000


class NodeFault(NamedTuple):
    """``node`` is down from ``at_ns`` until ``repaired_ns``; ``component`` is the part that failed, if known."""

    at_ns: int
    node: str
    repaired_ns: int
    component: str = ""


Fault: TypeAlias = tuple[int, str, int] | NodeFault


def in_order(faults: Iterable[Fault]) -> Iterator[NodeFault]:
    """Given faults by time."""
    return iter(sorted(NodeFault(*fault) for fault in faults))


def seeded_faults(
    nodes: Sequence[str], seed: int, *, mtbf_s: float, mttr_s: float, start_ns: int = 1
) -> Iterator[NodeFault]:
    """Faults without end, by time: each node fails and is repaired by itself.

    Times between the end of a repair and the next fault are exponential with mean ``mtbf_s``
    (seconds, per node), those of repairs with mean ``mttr_s``. The faults of a node depend on the
    seed and its name alone, so that another node more or less changes none of them.
    """
    chances = {node: random.Random(f"{seed}/{node}") for node in nodes}
    heap = [(start_ns + _drawn_ns(chances[node], mtbf_s), node) for node in nodes]
    heapq.heapify(heap)
    while heap:
        at_ns, node = heap[0]
        repaired_ns = at_ns + _drawn_ns(chances[node], mttr_s)
        yield NodeFault(at_ns, node, repaired_ns)
        heapq.heapreplace(heap, (repaired_ns + _drawn_ns(chances[node], mtbf_s), node))


def _drawn_ns(chance: random.Random, mean_s: float) -> int:
    return max(int(chance.expovariate(1 / mean_s) * _S), 1)
