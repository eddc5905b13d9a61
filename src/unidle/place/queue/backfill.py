"""Backfill: short jobs run in the gaps before large ones, whose reservations they never delay.

``easy`` reserves for the first jobs of the queue only (Lifka, "The ANL/IBM SP scheduling system",
1995), ``conservative`` for every job within the depth (Mu'alem and Feitelson, TPDS 2001). With both rules,
a job that waited beyond the starvation bound gets a reservation before all others. If the estimates hold,
it starts no later than planned at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from unidle.jobs import Reason
from unidle.place.queue.model import Demand, Fits, Ints
from unidle.place.queue.profile import FOREVER_NS, Profile, Slot
from unidle.place.queued import STARVED_NS

HOUR_NS: Final = 3_600_000_000_000
_UNASKED: Final = Reason("planned", "as running jobs are expected to end")
_LEVEL: Final = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Backfill:
    """Each ``age_ns`` of waiting counts as one point of priority; a job that waited ``starved_ns`` comes first.

    ``heads`` is for how many jobs ``easy`` reserves, besides the first ``starved_heads`` that starve;
    ``depth`` is how many are planned in all.
    ``otherwise_ns`` is the run time of a job without an estimate.
    """

    rule: Literal["easy", "conservative"] = "easy"
    heads: int = 1
    starved_heads: int = 16
    depth: int = 200
    age_ns: int = HOUR_NS
    starved_ns: int = STARVED_NS
    otherwise_ns: int = 24 * HOUR_NS


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """When a waiting job is expected to start and where; ``now`` where it can start at once.

    ``start_ns`` is None where no end of a running job would make room.
    """

    job: str
    start_ns: int | None
    counts: Ints | None
    now: bool
    reserved: bool
    because: Reason


def order_key(demand: Demand, policy: Backfill) -> tuple[int, int, str]:
    """Level, then submission, earlier by ``age_ns`` for each point of priority; it never changes with time."""
    return (_LEVEL[demand.level], demand.submitted_ns - demand.priority * policy.age_ns, demand.job)


def in_order(demands: Iterable[Demand], now_ns: int, policy: Backfill) -> list[Demand]:
    """Starved jobs by age, then the others by :func:`order_key`."""
    starved: list[Demand] = []
    others: list[Demand] = []
    for demand in demands:
        (starved if now_ns - demand.submitted_ns >= policy.starved_ns else others).append(demand)
    starved.sort(key=lambda demand: (demand.submitted_ns, demand.job))
    others.sort(key=lambda demand: order_key(demand, policy))
    return starved + others


class Planner:
    """Plans jobs in order, each on what those before it left free.

    For each job call :meth:`room_now`, then :meth:`tell` or :meth:`later`. The profile of free devices over
    time is made when it is first needed. So are the starts of jobs without a reservation: they are only
    shown to users, and most are never read.
    """

    def __init__(
        self, profile_of: Callable[[], Profile], fits_of: Callable[[Demand], Fits], now_ns: int, policy: Backfill,
        not_before_ns: Callable[[Demand], int | None] = lambda _: 0,
    ) -> None:  # fmt: skip
        """``profile_of`` is what is free from now on, after all starts that were not passed to :meth:`tell`.

        ``not_before_ns`` is the earliest start of a job by what it needs other than devices; None: never.
        """
        self._not_before_ns = not_before_ns
        self._profile_of, self._fits_of, self._now_ns, self._policy = profile_of, fits_of, now_ns, policy
        self._profiles: tuple[Profile, Profile] | None = None
        self._reserved = 0
        self._looked = self._starved = 0
        self._unplanned: list[tuple[Demand, int]] = []  # without a reservation, and not in the forecast yet
        self._soonest: dict[tuple[object, ...], int] = {}  # jobs like this find no room before

    @property
    def reserves(self) -> bool:
        """Whether room is reserved for any job."""
        return self._reserved + self._starved > 0

    def room_now(self, demand: Demand) -> Ints:
        """How many of its ranks each node holds from now on without a delay of any reservation."""
        return self._both()[0].room(self._now_ns, self._length_ns(demand), demand.each)

    def start(self, demand: Demand, counts: Ints) -> Planned:
        """It starts now."""
        return self._planned(demand, Slot(self._now_ns, counts), self._length_ns(demand), reserve=True)

    def tell(self, demand: Demand, devices: Mapping[int, int]) -> None:
        """It starts now, or what it starts on is held for it from now on."""
        if self._profiles is None:
            return  # what is made later is made of what is free then
        counts = np.zeros(self._profiles[0].nodes, np.int64)
        for node, count in devices.items():
            counts[node] = count // demand.each
        self.start(demand, counts)

    def later(self, demand: Demand, after_ns: int = 0, *, wanted: bool = True) -> Planned:
        """When a job starts that cannot start now (or before ``after_ns``), and whether room is reserved for it.

        If its start is not needed (not ``wanted``), it is planned only if room is reserved.
        """
        policy, length_ns = self._policy, self._length_ns(demand)
        starved = (
            self._now_ns - demand.submitted_ns >= policy.starved_ns and self._starved < policy.starved_heads
        )
        self._starved += starved
        self._looked += 1
        if self._looked > policy.depth and not starved:
            return Planned(demand.job, None, None, now=False, reserved=False, because=too_deep(policy))
        reserve = starved or policy.rule == "conservative" or self._reserved < policy.heads
        if not reserve and not wanted:
            self._unplanned.append((demand, after_ns))
            return Planned(demand.job, None, None, now=False, reserved=False, because=_UNASKED)
        slot = self._reservation(demand, after_ns) if reserve else self._foretell(demand, after_ns)
        if slot is None:
            return _not_planned(
                demand, "never_free", "the nodes cannot hold it, even if all running jobs end"
            )
        self._reserved += reserve and not starved
        return self._planned(demand, slot, length_ns, reserve=reserve)

    def _reservation(self, demand: Demand, after_ns: int) -> Slot | None:
        length_ns, fits, other_ns = (
            self._length_ns(demand),
            self._fits_of(demand),
            self._not_before_ns(demand),
        )
        if other_ns is None:
            return None
        after_ns = max(self._now_ns + 1, after_ns, other_ns)
        return self._both()[0].earliest(demand.ranks, demand.each, length_ns, fits, after_ns)

    def _foretell(self, demand: Demand, after_ns: int) -> Slot | None:
        """Its slot in the forecast, once those before it have theirs."""
        before, self._unplanned = self._unplanned, []
        for other, other_after_ns in before:
            slot = self._soonest_slot(other, other_after_ns)
            if slot is not None:
                self._both()[1].take(slot, other.each, self._length_ns(other))
        return self._soonest_slot(demand, after_ns)

    def _soonest_slot(self, demand: Demand, after_ns: int) -> Slot | None:
        """The forecast only fills up, so that no job finds room before one like it did."""
        length_ns = self._length_ns(demand)
        key = (demand.ranks, demand.each, demand.alike, length_ns)
        known_ns = self._soonest.get(key, self._now_ns + 1)
        if known_ns >= FOREVER_NS:
            return None
        fits, first_ns = self._fits_of(demand), max(after_ns, known_ns)
        if key not in self._soonest:
            other_ns = self._not_before_ns(demand)
            first_ns = FOREVER_NS if other_ns is None else max(first_ns, other_ns)
        slot = None
        if first_ns < FOREVER_NS:
            slot = self._both()[1].earliest(demand.ranks, demand.each, length_ns, fits, first_ns)
        if after_ns <= known_ns:
            self._soonest[key] = FOREVER_NS if slot is None else slot.start_ns
        return slot

    def _both(self) -> tuple[Profile, Profile]:
        """What reservations leave, and what is expected of all jobs, for the times that users see."""
        if self._profiles is None:
            profile = self._profile_of()
            self._profiles = (
                profile,
                profile if self._policy.rule == "conservative" else profile.copy(),
            )
        return self._profiles

    def _length_ns(self, demand: Demand) -> int:
        return max(self._policy.otherwise_ns if demand.estimate_ns is None else demand.estimate_ns, 1)

    def _planned(self, demand: Demand, slot: Slot, length_ns: int, *, reserve: bool) -> Planned:
        profile, forecast = self._both()
        if reserve:
            profile.take(slot, demand.each, length_ns)
        if not reserve or forecast is not profile:
            forecast.take(slot, demand.each, length_ns)
        now = slot.start_ns <= self._now_ns
        because = self._because(slot, now, reserve)
        return Planned(demand.job, slot.start_ns, slot.counts, now, reserve and not now, because)

    def _because(self, slot: Slot, now: bool, reserved: bool) -> Reason:
        wait_s = (slot.start_ns - self._now_ns) // 1_000_000_000
        figures: dict[str, int | float | str] = {
            "wait_s": wait_s,
            "nodes": int(np.count_nonzero(slot.counts)),
        }
        if now:
            ahead = (
                f"and delays none of the {self._reserved + self._starved} reserved before it"
                if self._reserved + self._starved
                else ""
            )
            return Reason("starts_now", f"fits now {ahead}".rstrip(), figures)
        if reserved:
            return Reason("reserved", f"room is reserved for it, in {wait_s} s", figures)
        return Reason("planned", f"as running jobs are expected to end, it starts in {wait_s} s", figures)


def too_deep(policy: Backfill) -> Reason:
    """The reason of a job that is beyond the depth and so not planned."""
    return Reason("depth", f"behind the first {policy.depth} jobs that wait; not planned yet")


def _not_planned(demand: Demand, code: str, text: str) -> Planned:
    return Planned(demand.job, None, None, now=False, reserved=False, because=Reason(code, text))
