"""Best fit and spread: gangs in queue order, as first fit, on other nodes.

Best fit takes the node on which the fewest devices are left over, so that large holes stay; spread
takes the node with the most, so that neighbours on a node are few. A gang that no node holds whole
goes on the fewest nodes: those with the most room, and for its last ranks the tightest that holds
them (best fit) or again the roomiest (spread). Equals are taken in the order of the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass

from unidle.place.first_fit import Chosen, Search, in_queue_order
from unidle.place.plan import Plan
from unidle.view.occupancy import NodeSlots
from unidle.view.state import Shape, View


@dataclass(frozen=True, slots=True)
class BestFit:
    """The node with the least left over first (see the module)."""

    def decide(self, view: View, now_ns: int) -> Plan:
        return in_queue_order(view, now_ns, _Tightest(view.occupancy))


@dataclass(frozen=True, slots=True)
class Spread:
    """The node with the most free first (see the module)."""

    def decide(self, view: View, now_ns: int) -> Plan:
        return in_queue_order(view, now_ns, _Roomiest(view.occupancy))


class _Tightest(Search):
    code = "best_fit"
    first = "tightest"

    def _nodes(self, kind: str, shape: Shape) -> Chosen:
        best: tuple[int, NodeSlots] | None = None
        roomy: list[tuple[int, int, NodeSlots]] = []
        for node, room, free in self._rooms(kind, shape):
            if room >= shape.ranks:
                if best is None or free < best[0]:
                    best = (free, node)
                    if free == shape.ranks * shape.devices_per_rank:
                        break  # nothing is left over: no other node can be better
            elif best is None:
                roomy.append((-room, free, node))
        if best is not None:
            return [(best[1], shape.ranks)]
        return self._together(roomy, shape.ranks)

    def _together(self, roomy: list[tuple[int, int, NodeSlots]], ranks: int) -> Chosen:
        """The roomiest nodes, then the tightest one that holds the rest."""
        roomy.sort(key=lambda r: (r[0], r[1], r[2].order))
        if -sum(r[0] for r in roomy) < ranks:
            return []
        chosen: Chosen = []
        missing = ranks
        for k, (room, _, node) in enumerate(roomy):
            if -room >= missing:
                holds = [r for r in roomy[k:] if -r[0] >= missing]
                last = min(holds, key=lambda r: (r[1], r[2].order))
                return [*chosen, (last[2], missing)]
            chosen.append((node, -room))
            missing += room
        return []


class _Roomiest(Search):
    code = "spread"
    first = "emptiest"

    def _nodes(self, kind: str, shape: Shape) -> Chosen:
        found = [(-free, node.order, node, room) for node, room, free in self._rooms(kind, shape)]
        if not found:
            return []
        if (widest := min(found))[3] >= shape.ranks:
            return [(widest[2], shape.ranks)]
        found.sort()
        chosen: Chosen = []
        missing = shape.ranks
        for _, _, node, room in found:
            here = min(room, missing)
            chosen.append((node, here))
            missing -= here
            if not missing:
                return chosen
        return []
