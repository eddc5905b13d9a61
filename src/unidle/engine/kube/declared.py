"""The seam between the engine and what is declared of a cluster's fleet, such as queues and policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from unidle.fleet import Fleet, Tier
from unidle.kube.nodes import FleetRules


class FleetDeclarations(Protocol):
    """All of a cluster's fleet that its nodes do not show."""

    def poll(self) -> bool:
        """Whether anything is otherwise than at the last call. Never blocks."""

    @property
    def names_nodes(self) -> bool:
        """Whether :meth:`fleet` depends on which nodes there are."""

    def rules(self, before: FleetRules) -> FleetRules:
        """How nodes are read now."""

    def fleet(self, tiers: Sequence[Tier], nodes: Iterable[str]) -> Fleet:
        """The fleet without its nodes, on these tiers."""
