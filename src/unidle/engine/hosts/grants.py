"""What hosts give the ranks of a gang before any of them starts: the seam between gangs and how devices reach ranks.

Agents of hosts make parts of devices (``gang_cuts.py``). In pods it is the kubelet that chooses the devices
(``unidle.engine.kube.pod_grants``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from unidle.engine.hosts.gang_state import GangState
from unidle.hub import frames


class RankGrant(msgspec.Struct, frozen=True):
    """What a host gives one rank: variables, and bounds where they are not None."""

    rank: frames.Ordinal
    slices: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cpus: float | None = None
    memory_bytes: int | None = None


class RankGrants(Protocol):
    """Of all gangs. Every call may be repeated; none waits."""

    def grants(self, gang: GangState) -> Mapping[int, RankGrant]:
        """By rank; nothing for a rank that gets what was placed."""
        ...

    def ready(
        self, gang: GangState, again: Callable[[GangState], None], refused: Callable[[GangState, str], None]
    ) -> bool:
        """Whether hosts have given the ranks what they get. If not, agents are asked: ``again`` or ``refused`` follows."""
        ...

    def waits(self, gang: GangState) -> list[str]:
        """Nodes of which something is missing without which the gang does not start."""
        ...

    def joined(self, node: str) -> None:
        """An agent has a new connection."""
        ...

    def released(self, gang: GangState | None) -> list[str]:
        """An attempt is over. Its nodes; none for one that is not known."""
        ...
