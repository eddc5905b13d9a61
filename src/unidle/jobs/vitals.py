"""The state of a gang's ranks as observed from outside: whether they run, wait, sleep or are stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    ``to``: the address of the other end, where that is outside of what one machine sees of a gang.
    """

    peer: int
    busy_ns: int = 0
    rtt_ns: int = 0
    stuck: bool = False
    to: str = ""


@dataclass(frozen=True, slots=True)
class RankVitals:
    """One rank between two observations of its gang, and at the later one.

    ``since_ns``: since when every observation found ``doing``. ``cpu_ns`` and ``io_bytes`` are what all its
    processes used and moved in between. ``timed``: its wait ends by itself, at ``wakes_ns`` where that is known.
    ``halted`` counts its other processes that are stopped; ``disk``: one of its processes waits for a disk. Some
    of its ``links`` are stuck since ``stuck_ns`` (0: none is). ``throttled_ns``: how long in between the CPU
    quota of its control group held it. ``waiting_ns``: how long in between its main thread waited for a lock or
    the network. ``ends``: addresses of this end of its links with a ``to``.
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
    ends: tuple[str, ...] = ()

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


def continued(before: GangVitals, after: GangVitals) -> GangVitals:
    """Two observations of one gang, of which the second follows the first, as one."""
    known = {rank.rank: rank for rank in before.ranks}
    ranks = tuple(
        rank if rank.rank not in known else _continued(known[rank.rank], rank, after.links_read)
        for rank in after.ranks
    )
    return replace(
        after, from_ns=before.from_ns, ranks=ranks, links_read=before.links_read or after.links_read
    )


def _continued(before: RankVitals, after: RankVitals, links_read: bool) -> RankVitals:
    used = {(link.peer, link.to): link.busy_ns for link in before.links}
    links = tuple(
        replace(link, busy_ns=link.busy_ns + used.get((link.peer, link.to), 0)) for link in after.links
    )
    return replace(
        after,
        cpu_ns=before.cpu_ns + after.cpu_ns,
        io_bytes=before.io_bytes + after.io_bytes,
        waiting_ns=before.waiting_ns + after.waiting_ns,
        throttled_ns=before.throttled_ns + after.throttled_ns,
        links=links if links_read else before.links,
        ends=after.ends if links_read else before.ends,
    )


def as_one(one: LinkVitals | None, other: LinkVitals) -> LinkVitals:
    """Two connections of one link: of each figure the worse."""
    if one is None:
        return other
    return replace(
        one,
        busy_ns=max(one.busy_ns, other.busy_ns),
        rtt_ns=max(one.rtt_ns, other.rtt_ns),
        stuck=one.stuck or other.stuck,
    )


def stretched(seen: RankVitals, seen_ns: int, span_ns: int) -> RankVitals:
    """What was observed in ``seen_ns``, as for ``span_ns`` at the same rates."""
    if seen_ns <= 0 or seen_ns == span_ns:
        return seen
    return replace(
        seen,
        cpu_ns=seen.cpu_ns * span_ns // seen_ns,
        io_bytes=seen.io_bytes * span_ns // seen_ns,
        waiting_ns=seen.waiting_ns * span_ns // seen_ns,
        throttled_ns=seen.throttled_ns * span_ns // seen_ns,
        links=tuple(replace(link, busy_ns=link.busy_ns * span_ns // seen_ns) for link in seen.links),
    )


def moved(seen: RankVitals, offset_ns: int) -> RankVitals:
    """Its times on a clock that is ahead by so much."""
    return replace(
        seen,
        since_ns=seen.since_ns + offset_ns,
        wakes_ns=None if seen.wakes_ns is None else seen.wakes_ns + offset_ns,
        stuck_ns=seen.stuck_ns and seen.stuck_ns + offset_ns,
    )
