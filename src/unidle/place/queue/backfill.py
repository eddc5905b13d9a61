"""Backfill: short jobs run in the gaps before large ones, whose reservations they never delay.

``easy`` reserves for the first jobs of the queue only (Lifka, "The ANL/IBM SP scheduling system",
1995), ``conservative`` for every job within the depth (Mu'alem and Feitelson, TPDS 2001). With both rules,
a job that waited beyond the starvation bound gets a reservation before all others. If the estimates hold,
it starts no later than planned at that time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from unidle.jobs import Reason
from unidle.place.model import Backfill, Demand, Fits, Ints

FOREVER_NS: Final = 1 << 62
ROWS_MOST: Final = 128


class StartSlot(NamedTuple):
    """A planned run: ``counts[node]`` ranks from ``start_ns`` on."""

    start_ns: int
    counts: Ints


class FreeProfile:
    """Rows are spans of time: row ``k`` is valid from ``times[k]`` to ``times[k + 1]``, the last one without end."""

    def __init__(
        self,
        free: Ints,
        now_ns: int,
        ends: Iterable[tuple[int, Mapping[int, int]]] = (),
        rows_most: int = ROWS_MOST,
    ) -> None:
        """``free``: devices free now; ``ends``: when which devices by node are expected to be given back.

        Beyond ``rows_most`` different times, ends are put off to the next of as many quantiles, so
        that memory stays bounded; a planned start may then be late, never early.
        """
        listed = [(max(end_ns, now_ns + 1), devices) for end_ns, devices in ends]
        times = sorted({end_ns for end_ns, _ in listed})
        if len(times) > rows_most:
            times = [times[(k + 1) * len(times) // rows_most - 1] for k in range(rows_most)]
        self.times = [now_ns, *times]
        rows = np.zeros((len(self.times), len(free)), np.int64)
        rows[0] = free
        if listed:
            row = np.repeat(
                np.searchsorted(times, [end_ns for end_ns, _ in listed]) + 1, [len(d) for _, d in listed]
            )
            total = len(row)
            node = np.fromiter((n for _, devices in listed for n in devices), np.int64, total)
            count = np.fromiter((c for _, devices in listed for c in devices.values()), np.int64, total)
            np.add.at(rows, (row, node), count)
        np.cumsum(rows, axis=0, out=rows)
        # a list, so that a row can be put between others without moving them
        self._rows: list[Ints] = list(rows)
        self._total: Ints = rows.sum(axis=1)  # of all nodes: a bound that is quickly looked at

    def __len__(self) -> int:
        return len(self.times)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self._rows[0])

    def earliest(
        self, ranks: int, each: int, length_ns: int, fits: Fits, after_ns: int = 0
    ) -> StartSlot | None:
        """The first time at which the gang fits for ``length_ns`` without a break; None if never.

        Only times at which devices are given back have to be tried: between them room only shrinks.
        """
        first = max(bisect_right(self.times, after_ns) - 1, 0)
        tail = self._tail(first, max(self.times[first], after_ns), length_ns)
        for k in range(first, tail):
            start_ns = max(self.times[k], after_ns)
            last = bisect_left(self.times, start_ns + length_ns, lo=k + 1)
            if int(self._total[k:last].min()) < ranks * each:
                continue
            room = self._window(start_ns, length_ns, k) // each
            if int(room.sum()) < ranks:
                continue
            counts = fits(room)
            if counts is not None:
                return StartSlot(start_ns, counts)
        return self._earliest_for_ever(tail, ranks, each, fits, after_ns)

    def _tail(self, first: int, start_ns: int, length_ns: int) -> int:
        """The first row, from ``first`` on, from which a run of this length outlasts the last change."""
        if start_ns + length_ns > self.times[-1]:
            return first
        return max(first + 1, bisect_right(self.times, self.times[-1] - length_ns))

    def _earliest_for_ever(
        self, tail: int, ranks: int, each: int, fits: Fits, after_ns: int
    ) -> StartSlot | None:
        """The same for runs to the end of all rows: room only grows with the start there, so few have to be tried."""
        if tail == len(self.times):
            return None
        least = np.minimum.accumulate(np.array(self._rows[tail:])[::-1], axis=0)[::-1]
        rooms = np.maximum(least, 0) // each
        low, high, found = int(np.searchsorted(rooms.sum(axis=1), ranks)), len(rooms), None
        at, step = (
            low,
            1,
        )  # the first that has the room mostly does; else in steps that double, then by halves
        while low < high:
            counts = fits(rooms[at])
            if counts is None:
                low, step = at + 1, step * 2
            else:
                high, found = at, counts
            at = min(low + step - 1, high - 1) if found is None else (low + high) // 2
        return None if found is None else StartSlot(max(self.times[tail + high], after_ns), found)

    def copy(self) -> FreeProfile:
        """Another profile that begins with the same reservations."""
        other = FreeProfile(self._rows[0], self.times[0])
        rows = [row.copy() for row in self._rows]
        other.times, other._rows, other._total = list(self.times), rows, self._total.copy()
        return other

    def room(self, at_ns: int, length_ns: int, each: int) -> Ints:
        """Ranks that each node holds from ``at_ns`` for ``length_ns``."""
        return self._window(at_ns, length_ns, bisect_right(self.times, at_ns) - 1) // each

    def take(self, slot: StartSlot, each: int, length_ns: int) -> None:
        """Reserve the slot's devices for ``length_ns``."""
        end_ns = min(slot.start_ns + length_ns, FOREVER_NS)
        first, last = self._cut(slot.start_ns), self._cut(end_ns) if end_ns < FOREVER_NS else len(self.times)
        nodes = np.flatnonzero(slot.counts)
        used = slot.counts[nodes] * each
        for row in self._rows[first:last]:
            row[nodes] -= used
        self._total[first:last] -= used.sum()

    def _window(self, at_ns: int, length_ns: int, first: int) -> Ints:
        last = bisect_left(self.times, at_ns + length_ns, lo=first + 1)
        least: Ints = self._rows[first] if last == first + 1 else np.minimum.reduce(self._rows[first:last])
        return np.maximum(least, 0)

    def _cut(self, at_ns: int) -> int:
        """The row that begins at this time; if no row does, one is split there."""
        k = bisect_left(self.times, at_ns)
        if k == len(self.times) or self.times[k] != at_ns:
            self.times.insert(k, at_ns)
            self._rows.insert(k, self._rows[k - 1].copy())
            self._total = np.concatenate((self._total[:k], self._total[k - 1 :]))
        return k


_UNASKED: Final = Reason("planned", "as running jobs are expected to end")


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


class Planner:
    """Plans jobs in order, each on what those before it left free.

    For each job call :meth:`room_now`, then :meth:`tell` or :meth:`later`. The profile of free devices over
    time is made when it is first needed. So are the starts of jobs without a reservation: they are only
    shown to users, and most are never read.
    """

    def __init__(
        self, profile_of: Callable[[], FreeProfile], fits_of: Callable[[Demand], Fits], now_ns: int, policy: Backfill,
        not_before_ns: Callable[[Demand], int | None] = lambda _: 0,
        late: Callable[[Demand], bool] | None = None,
    ) -> None:  # fmt: skip
        """``profile_of`` is what is free from now on, after all starts that were not passed to :meth:`tell`.

        ``not_before_ns`` is the earliest start of a job by what it needs other than devices; None: never. Room is
        reserved for a job that is ``late``: by default, that waits for as long as the policy has it.
        """
        self._late = late or (lambda demand: now_ns - demand.submitted_ns >= policy.starved_ns)
        self._not_before_ns = not_before_ns
        self._profile_of, self._fits_of, self._now_ns, self._policy = profile_of, fits_of, now_ns, policy
        self._profiles: tuple[FreeProfile, FreeProfile] | None = None
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
        return self._planned(demand, StartSlot(self._now_ns, counts), self._length_ns(demand), reserve=True)

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
        starved = self._starved < policy.starved_heads and self._late(demand)
        self._starved += starved
        self._looked += 1
        if self._looked > policy.depth and not starved:
            return Planned(demand.job, None, None, now=False, reserved=False, because=too_deep(policy))
        reserve = starved or policy.rule == "conservative" or self._reserved < policy.heads
        if not reserve and not wanted:
            self._unplanned.append((demand, after_ns))
            return Planned(demand.job, None, None, now=False, reserved=False, because=_UNASKED)
        slot = self._reservation(demand, after_ns) if reserve else self._forecast_slot(demand, after_ns)
        if slot is None:
            return _not_planned(
                demand, "never_free", "the nodes cannot hold it, even if all running jobs end"
            )
        self._reserved += reserve and not starved
        return self._planned(demand, slot, length_ns, reserve=reserve)

    def _reservation(self, demand: Demand, after_ns: int) -> StartSlot | None:
        length_ns, fits = self._length_ns(demand), self._fits_of(demand)
        other_ns = self._not_before_ns(demand)
        if other_ns is None:
            return None
        after_ns = max(self._now_ns + 1, after_ns, other_ns)
        return self._both()[0].earliest(demand.ranks, demand.each, length_ns, fits, after_ns)

    def _forecast_slot(self, demand: Demand, after_ns: int) -> StartSlot | None:
        """Its slot in the forecast, once those before it have theirs."""
        before, self._unplanned = self._unplanned, []
        for other, other_after_ns in before:
            slot = self._soonest_slot(other, other_after_ns)
            if slot is not None:
                self._both()[1].take(slot, other.each, self._length_ns(other))
        return self._soonest_slot(demand, after_ns)

    def _soonest_slot(self, demand: Demand, after_ns: int) -> StartSlot | None:
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

    def _both(self) -> tuple[FreeProfile, FreeProfile]:
        """What reservations leave, and what is expected of all jobs, for the times that users see."""
        if self._profiles is None:
            profile = self._profile_of()
            self._profiles = profile, profile if self._policy.rule == "conservative" else profile.copy()
        return self._profiles

    def _length_ns(self, demand: Demand) -> int:
        return max(self._policy.otherwise_ns if demand.estimate_ns is None else demand.estimate_ns, 1)

    def _planned(self, demand: Demand, slot: StartSlot, length_ns: int, *, reserve: bool) -> Planned:
        profile, forecast = self._both()
        if reserve:
            profile.take(slot, demand.each, length_ns)
        if not reserve or forecast is not profile:
            forecast.take(slot, demand.each, length_ns)
        now = slot.start_ns <= self._now_ns
        because = self._because(slot, now, reserve)
        return Planned(demand.job, slot.start_ns, slot.counts, now, reserve and not now, because)

    def _because(self, slot: StartSlot, now: bool, reserved: bool) -> Reason:
        wait_s = (slot.start_ns - self._now_ns) // 1_000_000_000
        nodes = int(np.count_nonzero(slot.counts))
        figures: dict[str, int | float | str] = {"wait_s": wait_s, "nodes": nodes}
        if now:
            before = self._reserved + self._starved
            ahead = f"and delays none of the {before} reserved before it" if before else ""
            return Reason("starts_now", f"fits now {ahead}".rstrip(), figures)
        if reserved:
            return Reason("reserved", f"room is reserved for it, in {wait_s} s", figures)
        return Reason("planned", f"as running jobs are expected to end, it starts in {wait_s} s", figures)


def too_deep(policy: Backfill) -> Reason:
    """The reason of a job that is beyond the depth and so not planned."""
    return Reason("depth", f"behind the first {policy.depth} jobs that wait; not planned yet")


def _not_planned(demand: Demand, code: str, text: str) -> Planned:
    return Planned(demand.job, None, None, now=False, reserved=False, because=Reason(code, text))
