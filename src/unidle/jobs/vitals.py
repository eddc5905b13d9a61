"""What can be seen of a gang's ranks from outside: whether they run, wait, sleep or stand still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Doing = Literal["running", "network", "lock", "pipe", "child", "sleep", "disk", "stopped", "gone"]
"""What a rank's main thread was found at: it computes (or wants a CPU), or waits for this."""


@dataclass(frozen=True, slots=True)
class RankVitals:
    """One rank between two looks of its gang, and at the later one.

    ``since_ns``: from when on every look found it at ``doing``. ``cpu_ns`` and ``io_bytes`` are what all its
    processes used and moved in between. ``timed``: its wait ends by itself, at ``wakes_ns`` where that is known.
    ``halted`` counts its other processes that are stopped; ``disk``: one of its processes waits for a disk. ``stuck`` are ranks (-1: somebody outside the gang)
    that have acknowledged nothing of what it sent since ``stuck_ns``; to those in ``queued`` it has sent what did not arrive yet.
    ``waiting_ns``: how long in between its main thread waited for a lock or the network.
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
    stuck: tuple[int, ...] = ()
    stuck_ns: int = 0
    waiting_ns: int = 0
    queued: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GangVitals:
    """The ranks of one attempt that are alive, in ``[from_ns, at_ns)``."""

    job: str
    attempt: int
    from_ns: int
    at_ns: int
    ranks: tuple[RankVitals, ...]
