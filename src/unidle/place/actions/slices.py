"""Parts of devices under queues: where a job could start, whom to stop for a part, and when one is expected to be free.

A device that several have parts of is whole only when all of them have left, and a part is there as soon as those
left that it needs: neither is a sum over jobs, so a set of victims is tried as a whole, in the state in which they
have left. Sets are prefixes of the candidates in order of cost per device, of all that may be stopped and of those of
each device by itself; of the cheapest set that makes room, who is not needed is spared, the dearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.jobs import Reason
from unidle.place.model import Demand, Hold, Running
from unidle.place.queue.reservations import affordable
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates, rights
from unidle.place.session import Parts, Preemption
from unidle.place.slices.fit import StartRoom
from unidle.words import counted, device_time

PLACES_MOST: Final = 64


Then: TypeAlias = Callable[[Demand, frozenset[str]], StartRoom | None]
"""``then(demand, gone)``: what the job would start on, once these jobs, which the state has stopped, have left."""


class PartRelief(NamedTuple):
    """Stop these jobs, at ``cost`` device-microseconds, and the job starts on ``room``."""

    victims: tuple[str, ...]
    cost: int
    room: StartRoom


def cheapest_relief(state: Allocations, known: Candidates, demand: Demand, then: Then) -> PartRelief | None:
    """The set of jobs that loses least of those that were tried; the cluster is left as it was."""
    known.refresh()
    may = rights(state.shares, demand)
    allowed = known.alive & np.isin(known.leaf, may.leaves())
    order = np.lexsort((np.arange(len(allowed)), known.density))
    rows = order[allowed[order]]
    good = np.array(may.within([known.jobs[k] for k in rows], known.leaf[rows].tolist()), np.bool_)
    search = _Search(state, known, demand, then)
    best: PartRelief | None = None
    for some in _places(known, rows[good].tolist()):
        if best is None or min(int(known.cost[k]) for k in some) < best.cost:
            found = search.among(some)
            best = found if found is not None and (best is None or found.cost < best.cost) else best
    known.stopped(())
    return best


def stop_for(state: Allocations, demand: Demand, found: PartRelief, expires_ns: int) -> Preemption:
    """Carry it out: the victims are stopped, and what they leave is held for the job and charged to its queue."""
    victims = found.victims
    for victim in victims:
        state.stop(victim)
    hold = Hold.of(replace(demand, charged=found.room.charged), found.room.devices, expires_ns)
    state.hold(hold)
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
    def __init__(self, state: Allocations, known: Candidates, demand: Demand, then: Then) -> None:
        self._state, self._known, self._demand, self._then = state, known, demand, then
        self._leaf = state.shares.tree.leaf(demand.queue)

    def among(self, rows: Sequence[int]) -> PartRelief | None:
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
        return PartRelief(victims, sum(int(self._known.cost[k]) for k in kept), room)

    def _without(self, rows: Sequence[int]) -> StartRoom | None:
        state, demand = self._state, self._demand
        before = state.log.checkpoint()
        gone = [self._known.jobs[k].job for k in rows]
        for job in gone:
            state.stop(job)
        room = None
        if state.shares.refusal(self._leaf, demand.charged, firm=demand.firm) is None:
            room = self._then(demand, frozenset(gone))
        state.log.rollback(before)
        return room


NO_PART: Final = Reason(
    "no_victims", "stopping all jobs that may be stopped frees no part of a device for it"
)
PARTS_LATER: Final = "parts_later"  # code of the reason of one that waits for a part, with its planned start


def part_free_ns(
    state: Allocations, parts: Parts, leaf: int, demand: Demand, expected: Iterable[tuple[int, Running]]
) -> int | None:
    """When enough running jobs are expected to have left for its parts; None where no known end is enough."""
    ends = [(end_ns, run.job) for end_ns, run in expected if run.estimate_ns is not None]
    before = state.log.checkpoint()
    low, high, found = 1, len(ends), None
    while low <= high:
        middle = (low + high) // 2
        gone = frozenset(job for _, job in ends[:middle])
        for _, job in ends[:middle]:
            state.stop(job)
        if parts.then(affordable(state.shares, leaf, demand), gone) is None:
            low = middle + 1
        else:
            found, high = ends[middle - 1][0], middle - 1
        state.log.rollback(before)
    return found


def starts_in(wait_ns: int) -> Reason:
    """Why one waits for a part that is expected to be free by then."""
    wait_s = wait_ns // 1_000_000_000
    text = f"as running jobs are expected to end, it starts in {wait_s} s"
    return Reason(PARTS_LATER, text, {"wait_s": wait_s})


def stop_in_parts(
    state: Allocations, known: Candidates, parts: Parts, demand: Demand,
    preempt_one: Callable[[Demand], Preemption | Reason], whole_then: Then, expires_ns: int,
) -> Preemption | Reason:  # fmt: skip
    """Stop the job that loses least, whether on whole devices or on parts; what they leave is held for the job. Or why not."""
    then = whole_then if demand.ranks else parts.then
    found = cheapest_relief(state, known, demand, then)
    before = state.log.checkpoint()
    answer = preempt_one(demand) if demand.ranks else None
    if found is not None and not (isinstance(answer, Preemption) and answer.lost_us <= found.cost):
        state.log.rollback(before)
        answer = stop_for(state, demand, found, expires_ns)
        parts.keep(demand.job, found.room.parts)
    if not isinstance(answer, Preemption):
        return answer or NO_PART
    for victim in answer.victims:
        parts.keep(demand.job, parts.parts_of(victim))
    return answer


def whole_again(ends: Iterable[tuple[int, Running]]) -> list[tuple[int, Mapping[int, int]]]:
    """When devices in parts are expected to be whole: when the last of those on them ends."""
    last: dict[str, tuple[int, int]] = {}
    for end_ns, run in ends:
        last.update((device, (end_ns, node)) for device, node in run.parts.items())
    return [(end_ns, {node: 1}) for end_ns, node in last.values()]
