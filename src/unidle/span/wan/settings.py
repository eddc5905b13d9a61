"""Settings of the channels of an endpoint, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
