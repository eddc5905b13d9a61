"""What a caller of the transport meets besides endpoints and channels: errors, settings, counts, and futures."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import TypeVar


class WanError(Exception):
    """Base of every error of this package."""


class ChannelLost(WanError):
    """The peer could not be reached for ``give_up_s``, was started again, or its link damages everything."""


class ChannelClosed(WanError):
    """The channel was closed, here or by the peer, before this was done."""


class Refused(WanError):
    """The connection was refused: another run, another secret, another version."""


class PortTaken(WanError):
    """Another process listens on the port, usually another run."""


class WrongSize(WanError):
    """A message does not have the length of the buffer that was posted for it."""


class BadFrame(WanError):
    """The data received over a flow is not a frame. The flow is closed and opened again; users never see this."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Both ends may differ in all of these. Errors: ``ValueError`` naming field, value and remedy.

    flows: TCP connections of a channel; the side that connects decides.
    chunk_bytes: what one flow carries at a time.
    window_bytes: most bytes of a channel that are sent and not acknowledged; at least capacity times round trip.
    early_bytes: most bytes that a peer may send here before a buffer is posted for them.
    largest_bytes: longest message that is taken without a posted buffer of its size.
    flow_buffer_bytes: SO_SNDBUF and SO_RCVBUF of each flow. 0 leaves them to the kernel, which grows them up to
        ``net.ipv4.tcp_wmem`` and ``tcp_rmem``: those should reach bandwidth of a flow times round trip (25 MB for 5 Gbit/s
        at 40 ms). What is set here ends that growth and is cut to ``net.core.wmem_max`` and ``rmem_max``.
    unsent_bytes: TCP_NOTSENT_LOWAT of each flow, so that a slow flow does not hoard chunks that another could carry.
    rate_bytes_per_s: most that a channel sends a second; 0 is no bound.
    kernel_pacing: by SO_MAX_PACING_RATE where the kernel has it, each flow its share; else by a token bucket.
    burst_bytes: what the token bucket holds.
    congestion: TCP_CONGESTION of each flow, for instance ``bbr``; empty leaves the kernel's.
    heartbeat_s, dead_s: a flow that is silent for ``dead_s`` is opened again; something is sent each ``heartbeat_s``.
    connect_s: longest time that opening one flow may take.
    backoff_s, backoff_most_s: pause before a flow is tried again, doubled each time up to the second, with jitter.
    give_up_s: how long a channel may have no flow at all before all that is pending fails.
    first_s: the same for a channel that was never open; 0 is ``give_up_s``.
    tries: how often one chunk may arrive damaged before the channel is given up.
    """

    flows: int = 8
    chunk_bytes: int = 512 << 10
    window_bytes: int = 64 << 20
    early_bytes: int = 8 << 20
    largest_bytes: int = 1 << 30
    flow_buffer_bytes: int = 0
    unsent_bytes: int = 1 << 20
    rate_bytes_per_s: int = 0
    kernel_pacing: bool = True
    burst_bytes: int = 1 << 20
    congestion: str = ""
    heartbeat_s: float = 0.5
    dead_s: float = 5.0
    connect_s: float = 3.0
    backoff_s: float = 0.05
    backoff_most_s: float = 1.0
    give_up_s: float = 60.0
    first_s: float = 0.0
    tries: int = 16

    def __post_init__(self) -> None:
        may_be_none = ("flow_buffer_bytes", "rate_bytes_per_s", "early_bytes", "first_s")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (str, bool)):
                continue
            if value < 0 or (value == 0 and field.name not in may_be_none):
                raise ValueError(
                    f"{field.name}: must be above 0 (got {value!r}); leave it out for the usual one"
                )
        if self.flows > 256:
            raise ValueError(f"flows: at most 256 (got {self.flows}); more do not help")
        if not 1024 <= self.chunk_bytes <= 1 << 30:
            raise ValueError(
                f"chunk_bytes: must be 1 KiB to 1 GiB (got {self.chunk_bytes}); 512 KiB is usual"
            )
        if self.dead_s <= self.heartbeat_s:
            raise ValueError(
                f"dead_s: must be above heartbeat_s (got {self.dead_s} and {self.heartbeat_s}); ten times it is usual"
            )


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


T = TypeVar("T")


class Pending(Future[T]):
    """A future that cannot be cancelled, because sent data cannot be withdrawn."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """As of any future; the time in here counts as exposed. Errors: :class:`unidle.span.wan.WanError`."""
        if self.done():
            return super().result(0)
        begun = time.monotonic_ns()
        try:
            return super().result(timeout)
        finally:
            self._stats.exposed_ns += time.monotonic_ns() - begun
