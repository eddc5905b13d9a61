"""How far the clocks of hosts are from the controller's."""

from __future__ import annotations

from typing import Protocol

from unidle.hub.protocol import ClockOffset


class PeerClocks(Protocol):
    """The part of a hub that has the clocks of its peers."""

    def offset(self, peer: int) -> ClockOffset | None:
        """Of the peer of a connection; None while it was not measured."""
        ...
