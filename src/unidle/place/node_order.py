"""Best fit and spread: gangs in queue order, as first fit, on other nodes.

Best fit takes the node on which the fewest devices are left over, so that large holes stay; spread
takes the node with the most, so that neighbours on a node are few. A gang that no node holds whole
goes on the fewest nodes: those with the most room, and for its last ranks the tightest that holds
them (best fit) or again the roomiest (spread). Equals are taken in the order of the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unidle.place.first_fit import Chosen, Counts, Search, in_queue_order, in_turn
from unidle.place.plan import Plan
from unidle.view.state import View


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

    def choose(self, free: Counts, room: Counts, ranks: int) -> Chosen:
        whole = np.flatnonzero(room >= ranks)
        if len(whole):
            return [(int(whole[free[whole].argmin()]), ranks)]
        some = np.flatnonzero(room)
        order = some[np.lexsort((some, free[some], -room[some]))]
        chosen = in_turn(order, room, ranks)
        if not chosen:
            return []
        # the last ranks go on the tightest node that holds them, among those not taken
        left, rest = chosen[-1][1], order[len(chosen) - 1 :]
        rest = np.sort(rest[room[rest] >= left])
        return [*chosen[:-1], (int(rest[free[rest].argmin()]), left)]


class _Roomiest(Search):
    code = "spread"
    first = "emptiest"

    def choose(self, free: Counts, room: Counts, ranks: int) -> Chosen:
        at = int(free.argmax())
        if room[at] >= ranks:
            return [(at, ranks)]
        some = np.flatnonzero(room)
        return in_turn(some[np.argsort(-free[some], kind="stable")], room, ranks)
