"""The state of a gang's ranks as observed from outside: whether they run, wait, sleep or are stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Doing = Literal["running", "network", "lock", "pipe", "child", "sleep", "disk", "stopped", "gone"]
"""What a rank's main thread was found at: it computes (or waits for a CPU), or waits for this."""
Pair = tuple[int, int]
"""Two ranks, the lower first."""


@dataclass(frozen=True, slots=True)
class LinkVitals:
    """The way from a rank to ``peer`` (-1: outside the gang) between two observations, if it has sent data.

    ``busy_ns``: how long something of it was not acknowledged yet. ``rtt_ns``: until an acknowledgement comes, smoothed; 0
    where none came or it is not known. ``stuck``: nothing is acknowledged although it was sent again, twice or more.
    """

    peer: int
    busy_ns: int = 0
    rtt_ns: int = 0
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class RankVitals:
    """One rank between two observations of its gang, and at the later one.

    ``since_ns``: since when every observation found ``doing``. ``cpu_ns`` and ``io_bytes`` are what all its
    processes used and moved in between. ``timed``: its wait ends by itself, at ``wakes_ns`` where that is known.
    ``halted`` counts its other processes that are stopped; ``disk``: one of its processes waits for a disk. Some
    of its ``links`` are stuck since ``stuck_ns`` (0: none is). ``throttled_ns``: how long in between the CPU
    quota of its control group held it. ``waiting_ns``: how long in between its main thread waited for a lock or
    the network.
    """

    rank: int
    doing: Doing
    since_ns: int
    cpu_ns: int = 0
    io_bytes: int = 0
    timed: bool = False
    wakes_ns: int | None = None
    halted: int = 0
    disk: bool = False
    stuck_ns: int = 0
    waiting_ns: int = 0
    throttled_ns: int = 0
    links: tuple[LinkVitals, ...] = ()

    @property
    def stuck(self) -> tuple[int, ...]:
        """Peers that receive nothing."""
        return tuple(link.peer for link in self.links if link.stuck)


@dataclass(frozen=True, slots=True)
class GangVitals:
    """The ranks of one attempt that are alive, in ``[from_ns, at_ns)``.

    ``links_read``: whether this observation includes links. While something is stuck: ``reached`` are ranks whose
    nodes were found to reach each other, ``unreached`` those whose do not.
    """

    job: str
    attempt: int
    from_ns: int
    at_ns: int
    ranks: tuple[RankVitals, ...]
    reached: tuple[Pair, ...] = ()
    unreached: tuple[Pair, ...] = ()
    links_read: bool = True
