"""What the hub allows, and its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unidle import wire

DEADLINE_NS: Final = 15_000_000_000


@dataclass(frozen=True, slots=True)
class HubLimits:
    """``deadline_ns``: how long a box keeps its ranks without an acknowledgement. All times in ns.

    ``grace_ns``: how long a connection without a hello keeps its place while others wait; ``linger_ns``: how long a refused
    one may take to read why. ``unpolled_bytes``: above it, who sent more than ``unpolled_of_peer`` is not read.
    """

    every_ns: int = wire.EVERY_NS
    deadline_ns: int = DEADLINE_NS
    hello_ns: int = int(wire.HELLO_WITHIN_S * 1e9)
    grace_ns: int = 1_000_000_000
    linger_ns: int = 1_000_000_000
    ungreeted: int = wire.UNGREETED
    ungreeted_of_address: int = wire.UNGREETED_OF_ADDRESS
    lingering: int = 64
    unread_bytes: int = wire.UNREAD_BYTES
    unpolled_bytes: int = 64 << 20
    unpolled_of_peer: int = 64 << 10
    peers: int = 12_000
    least_silence_ns: int = 10_000_000_000

    @property
    def silent_ns(self) -> int:
        """A connection without a pong for so long is of no use: the lease that it renewed is over."""
        return max(self.deadline_ns, self.least_silence_ns)
