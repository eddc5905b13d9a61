"""What a WAN link carries: latency, capacity of a pair of nodes, and the limit of one TCP flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A default congestion window over the round trip: 12 Mbit / latency fits 1220, 600, 396 and 293 Mbit/s, which the
# ATLAS paper measured at 10, 20, 30 and 40 ms.
WINDOW_MBIT: Final = 12


@dataclass(frozen=True, slots=True)
class WanLink:
    """Two sites and the link between them, the same in both directions.

    ``capacity_gbps``: of each pair of nodes; ``flow_gbps``: of one flow, None where only the latency limits it.
    """

    a: str
    b: str
    latency_ns: int
    capacity_gbps: float
    flow_gbps: float | None = None
    egress_per_gb: float = 0.0

    def rate_gbps(self, flows: int | None) -> float:
        """What ``flows`` together carry between two nodes; None: as many as it takes."""
        if flows is None:
            return self.capacity_gbps
        one = self.flow_gbps
        if one is None:
            one = WINDOW_MBIT * 1e6 / self.latency_ns if self.latency_ns else self.capacity_gbps
        return min(self.capacity_gbps, flows * one)


@dataclass(frozen=True, slots=True)
class Path:
    """A way between two sites over one or more links."""

    links: tuple[WanLink, ...]

    @property
    def latency_ns(self) -> int:
        return sum(link.latency_ns for link in self.links)

    @property
    def egress_per_gb(self) -> float:
        """Each site on the way charges for what leaves it."""
        return sum(link.egress_per_gb for link in self.links)

    def rate_gbps(self, flows: int | None) -> float:
        """As :meth:`WanLink.rate_gbps`; the window of a flow is spread over the latency of the whole way."""
        if len(self.links) == 1:
            return self.links[0].rate_gbps(flows)
        capacity = min(link.capacity_gbps for link in self.links)
        limits = [link.flow_gbps for link in self.links if link.flow_gbps is not None]
        whole = WanLink("", "", self.latency_ns, capacity, min(limits) if limits else None)
        return whole.rate_gbps(flows)


def shortest(links: tuple[WanLink, ...], start: str, end: str) -> Path | None:
    """The path of least latency between two sites; None if none exists."""
    best: dict[str, tuple[int, tuple[WanLink, ...]]] = {start: (0, ())}
    todo = {start}
    while todo:
        here = min(todo, key=lambda name: (best[name][0], name))
        todo.remove(here)
        if here == end:
            return Path(best[here][1])
        for link in links:
            if here not in (link.a, link.b):
                continue
            there = link.b if here == link.a else link.a
            found = (best[here][0] + link.latency_ns, (*best[here][1], link))
            if there not in best or found[0] < best[there][0]:
                best[there] = found
                todo.add(there)
    return None
