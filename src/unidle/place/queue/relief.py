"""Room for a job by stopping others where devices are in parts: for a part, or for a device to be whole again.

A device that several have parts of is whole only when all of them have left, and a part is there as soon as those
left that it needs: neither is a sum over jobs, so a set of victims is tried as a whole, in the state in which they
have left. Sets are prefixes of the candidates in order of cost per device, of all that may be stopped and of those of
each device by itself; of the cheapest set that makes room, who is not needed is spared, the dearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from unidle.jobs import Reason
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.model import Amounts, Demand, Hold
from unidle.place.queue.preempt import Preemption
from unidle.place.queue.victims import Candidates, rights
from unidle.words import counted, device_time

PLACES_MOST: Final = 64


class Room(NamedTuple):
    """What a job would start on: whole devices by node, those that it gets parts of, and what it is charged."""

    devices: Mapping[int, int]
    parts: tuple[str, ...]
    charged: Amounts


Then = Callable[[Demand, frozenset[str]], Room | None]
"""``then(demand, gone)``: what the job would start on, once these jobs, which the cluster has stopped, have left."""


class Relief(NamedTuple):
    """Stop these jobs, at ``cost`` device-microseconds, and the job starts on ``room``."""

    victims: tuple[str, ...]
    cost: int
    room: Room


def cheapest_relief(cluster: Cluster, known: Candidates, demand: Demand, then: Then) -> Relief | None:
    """The set of jobs that loses least of those that were tried; the cluster is left as it was."""
    known.refresh()
    may = rights(cluster.shares, demand)
    allowed = known.alive & np.isin(known.leaf, may.leaves())
    order = np.lexsort((np.arange(len(allowed)), known.density))
    rows = order[allowed[order]]
    good = np.array(may.within([known.jobs[k] for k in rows], known.leaf[rows].tolist()), np.bool_)
    search = _Search(cluster, known, demand, then)
    best: Relief | None = None
    for some in _places(known, rows[good].tolist()):
        if best is None or min(int(known.cost[k]) for k in some) < best.cost:
            found = search.among(some)
            best = found if found is not None and (best is None or found.cost < best.cost) else best
    known.stopped(())
    return best


def stop_for(cluster: Cluster, demand: Demand, found: Relief, expires_ns: int) -> Preemption:
    """Carry it out: the victims are stopped, and what they leave is held for the job and charged to its queue."""
    victims = found.victims
    for victim in victims:
        cluster.stop(victim)
    hold = Hold.of(replace(demand, charged=found.room.charged), found.room.devices, expires_ns)
    cluster.hold(hold)
    what = "a device whole again" if demand.ranks else "a part of a device"
    text = f"stopping {counted(len(victims), 'low job')} makes room for it ({what}) and loses {device_time(found.cost)}, the least that was found"
    because = Reason(
        "preempt", text, {"victims": len(victims), "lost_us": found.cost, "parts": len(found.room.parts)}
    )
    return Preemption(demand.job, victims, found.cost, hold, because)


def _places(known: Candidates, rows: Sequence[int]) -> Iterator[list[int]]:
    """Those of each device in parts, and of whole ones of each node, the cheapest first; and all of them."""
    found: dict[tuple[str, int], list[int]] = {}
    for k in rows:
        run = known.jobs[k]
        for key in [*run.parts.items(), *(("", node) for node in run.devices)]:
            found.setdefault(key, []).append(k)
    some = sorted(found.items(), key=lambda item: (float(known.density[item[1][0]]), item[0]))
    yield from (local for _, local in some[:PLACES_MOST])
    if len(found) > 1:
        yield list(rows)


class _Search:
    def __init__(self, cluster: Cluster, known: Candidates, demand: Demand, then: Then) -> None:
        self._cluster, self._known, self._demand, self._then = cluster, known, demand, then
        self._leaf = cluster.shares.tree.leaf(demand.queue)

    def among(self, rows: Sequence[int]) -> Relief | None:
        """The shortest prefix that makes room, without those that it does not need."""
        low, high, room = 1, len(rows), self._without(rows)
        if room is None:
            return None
        while low < high:
            middle = (low + high) // 2
            found = self._without(rows[:middle])
            if found is None:
                low = middle + 1
            else:
                high, room = middle, found
        kept = list(rows[:high])
        for k in sorted(kept, key=lambda k: (-int(self._known.cost[k]), k)):
            rest = [row for row in kept if row != k]
            found = self._without(rest) if rest else None
            if found is not None:
                kept, room = rest, found
        victims = tuple(sorted(self._known.jobs[k].job for k in kept))
        return Relief(victims, sum(int(self._known.cost[k]) for k in kept), room)

    def _without(self, rows: Sequence[int]) -> Room | None:
        cluster, demand = self._cluster, self._demand
        before = cluster.journal.mark()
        gone = [self._known.jobs[k].job for k in rows]
        for job in gone:
            cluster.stop(job)
        room = None
        if cluster.shares.refusal(self._leaf, demand.charged, firm=demand.firm) is None:
            room = self._then(demand, frozenset(gone))
        cluster.journal.back_to(before)
        return room
