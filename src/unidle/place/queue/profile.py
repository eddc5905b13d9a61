"""Free devices of every node over time, as jobs are expected to end: where a reservation fits first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from unidle.place.queue.model import Fits, Ints

FOREVER_NS: Final = 1 << 62
ROWS_MOST: Final = 128


class Slot(NamedTuple):
    """A planned run: ``counts[node]`` ranks from ``start_ns`` on."""

    start_ns: int
    counts: Ints


class Profile:
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

    def earliest(self, ranks: int, each: int, length_ns: int, fits: Fits, after_ns: int = 0) -> Slot | None:
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
                return Slot(start_ns, counts)
        return self._earliest_for_ever(tail, ranks, each, fits, after_ns)

    def _tail(self, first: int, start_ns: int, length_ns: int) -> int:
        """The first row, from ``first`` on, from which a run of this length outlasts the last change."""
        if start_ns + length_ns > self.times[-1]:
            return first
        return max(first + 1, bisect_right(self.times, self.times[-1] - length_ns))

    def _earliest_for_ever(self, tail: int, ranks: int, each: int, fits: Fits, after_ns: int) -> Slot | None:
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
        return None if found is None else Slot(max(self.times[tail + high], after_ns), found)

    def copy(self) -> Profile:
        """Another profile that begins with the same reservations."""
        other = Profile(self._rows[0], self.times[0])
        rows = [row.copy() for row in self._rows]
        other.times, other._rows, other._total = list(self.times), rows, self._total.copy()
        return other

    def room(self, at_ns: int, length_ns: int, each: int) -> Ints:
        """Ranks that each node holds from ``at_ns`` for ``length_ns``."""
        return self._window(at_ns, length_ns, bisect_right(self.times, at_ns) - 1) // each

    def take(self, slot: Slot, each: int, length_ns: int) -> None:
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
