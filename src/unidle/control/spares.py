"""Logs which nodes are kept as spares, for the ledger and for the status of the fleet."""

from __future__ import annotations

from collections.abc import Iterator

from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.spares import Spares
from unidle.view.kept import busy_nodes
from unidle.view.state import View

_KEEPING: tuple[str, ...] = ("", "unidle")
"""Placement policies that keep spares."""


class SpareWatch:
    """Determines the spares again after each new event; they follow from the view (``unidle.place.nodes.free``)."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._rule: Spares | None = None
        self._seq = -1

    def look(self, view: View) -> Iterator[ev.SparesSet]:
        """The spares, where they changed."""
        if view.seq == self._seq:
            return
        self._seq = view.seq
        if self._rule is None or self._fleet is not view.fleet:
            self._fleet, self._rule = view.fleet, Spares(view.fleet)
        spares = self._rule.of(busy_nodes(view), view.barred) if view.policy in _KEEPING else frozenset()
        if spares != view.spares:
            yield ev.SparesSet(tuple(sorted(spares)))
