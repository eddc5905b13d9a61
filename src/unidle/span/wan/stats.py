"""Counts of a channel. The loop's thread writes them; others read a copy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """All since the channel was made; times in nanoseconds.

    ``blocked_*`` is the time in which something waited to be sent: for room in the window, for the peer to post a
    buffer (``credit``), for its slot or the rate (``pacing``), for the sockets and the acknowledgements (``wire``), for any
    flow at all (``cut``). ``exposed_ns`` is how long callers waited in ``result()``.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    resent_bytes: int = 0
    sent_chunks: int = 0
    received_chunks: int = 0
    duplicate_chunks: int = 0
    crc_failures: int = 0
    header_failures: int = 0
    negative_acks: int = 0
    connects: int = 0
    reconnects: int = 0
    in_flight_bytes: int = 0
    in_flight_peak_bytes: int = 0
    early_bytes: int = 0
    early_peak_bytes: int = 0
    blocked_window_ns: int = 0
    blocked_credit_ns: int = 0
    blocked_pacing_ns: int = 0
    blocked_wire_ns: int = 0
    blocked_cut_ns: int = 0
    exposed_ns: int = 0

    def blocked(self, why: str, ns: int) -> None:
        """Add to one of the times."""
        name = f"blocked_{why}_ns"
        setattr(self, name, getattr(self, name) + ns)
