"""Quota now and over time: the most that a job may be charged, when its queue will let it start, and what is reserved then."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np

from unidle.place.model import NOTHING, Amounts, Demand, Fits, Ints, Running
from unidle.place.queue.fair_share import FairShare, Refusal
from unidle.place.queue.state import Allocations, ranks_on


def affordable(
    shares: FairShare, leaf: int, demand: Demand, reserved: Mapping[int, Amounts] | None = None
) -> Demand:
    """The demand, of which the least may be charged, with the most that its queue lets it be charged now."""
    if not demand.most or demand.most == demand.charged:
        return demand
    return replace(
        demand,
        charged=most_of(shares, leaf, demand.charged, demand.most, firm=demand.firm, reserved=reserved),
    )


def most_of(
    shares: FairShare, leaf: int, least: Amounts, most: Amounts, *, firm: bool,
    reserved: Mapping[int, Amounts] | None = None,
) -> Amounts:  # fmt: skip
    """The most from ``least``, which may be charged, to ``most`` that may; by bisection, as what is more is refused, too."""
    low, high = max(least), max(most)
    if shares.refusal(leaf, most, firm=firm, reserved=reserved) is None:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        may = shares.refusal(leaf, counted_as(least, middle), firm=firm, reserved=reserved) is None
        low, high = (middle, high) if may else (low, middle)
    return counted_as(least, low)


def counted_as(amounts: Amounts, milli: int) -> Amounts:
    """The same resources, charged for so many thousandths of devices."""
    return tuple(milli if amount else 0 for amount in amounts)


class QuotaReservations:
    """Reservations of quota made in one round."""

    def __init__(self, state: Allocations, now_ns: int, otherwise_ns: int) -> None:
        self._state, self._now_ns, self._otherwise_ns = state, now_ns, otherwise_ns
        self._planned: list[tuple[int, frozenset[int], Amounts]] = []
        self._gone: dict[tuple[int, int], Amounts] = {}
        # by leaf, and how many are planned by then
        self._reserved: dict[tuple[int, int], Mapping[int, Amounts]] = {}
        self.heads: set[int] = set()  # queues whose first refused job has its quota reserved
        self._hosts: tuple[int, list[int], Ints, Ints, Ints] | None = None

    def ends(self) -> Iterator[tuple[int, Running]]:
        """Running jobs by expected end; those that run now."""
        return self._state.ends(self._now_ns, self._otherwise_ns)

    def free_ns(self, refusal: Refusal) -> int | None:
        """When enough of the queue's jobs are expected to have ended; None where that never suffices."""
        tree = self._state.shares.tree
        missing = refusal.used + refusal.asked - refusal.bound
        for end_ns, run in self.ends():
            counts = run.firm if refusal.rule == "deserved" else True
            if counts and refusal.queue in tree.path(tree.leaf(run.queue)):
                missing -= run.charged[refusal.resource]
                if missing <= 0:
                    return end_ns
        return None

    def hosts_free_ns(self, demand: Demand, fits: Fits) -> int | None:
        """When the CPU and memory that the job requests are expected to be free; None if never.

        Based on the ends of running jobs; the requests of other waiting jobs are not counted.
        """
        state, nodes = self._state, len(self._state.free)
        have = state.free_for(demand)[1]
        if demand.asks == NOTHING or fits(ranks_on(have, demand.asks, nodes)) is not None:
            return 0
        ends, behind, host, gain = self._hosts_of_ends()

        def holds(ended: int) -> bool:
            then, last = have.copy(), int(behind[ended])
            for amount, more in zip(then, gain, strict=True):
                np.add.at(amount, host[:last], more[:last])
            return fits(ranks_on(then, demand.asks, nodes)) is not None

        first = bisect_left(range(len(ends)), True, key=holds)
        return None if first == len(ends) else ends[first]

    def _hosts_of_ends(self) -> tuple[list[int], Ints, Ints, Ints]:
        """Of running jobs by expected end: that end, parts by then, and by part its host and what is freed there."""
        changes = self._state.changes
        if self._hosts is None or self._hosts[0] != changes:
            runs = [(end_ns, run) for end_ns, run in self.ends() if run.asks != NOTHING]
            parts = [len(run.devices) for _, run in runs]
            host = np.fromiter((node for _, run in runs for node in run.devices), np.int64)
            ranks = np.fromiter((c // run.each for _, run in runs for c in run.devices.values()), np.int64)
            asks = np.array([run.asks for _, run in runs], np.int64).reshape(-1, 2)
            gain: Ints = ranks * np.repeat(asks, parts, 0).T
            behind: Ints = np.cumsum(parts)
            host %= self._state.hosts.shape[1]
            self._hosts = changes, [end_ns for end_ns, _ in runs], behind, host, gain
        return self._hosts[1:]

    def reserve(self, leaf: int, amounts: Amounts, start_ns: int) -> None:
        """From ``start_ns`` on the queue and its ancestors have to have these amounts free."""
        queues = frozenset(self._state.shares.tree.path(leaf))
        insort(self._planned, (start_ns, queues, amounts), key=itemgetter(0))
        self._reserved.clear()

    def reserved(self, leaf: int, demand: Demand) -> Mapping[int, Amounts]:
        """By queue on the leaf's path: the most that reserved jobs will use there before this one would end.

        What runs now and is expected to have ended by then is taken off: it counts as used already.
        """
        if not self._planned:
            return {}
        length_ns = self._otherwise_ns if demand.estimate_ns is None else demand.estimate_ns
        count = bisect_left(self._planned, self._now_ns + length_ns, key=itemgetter(0))
        known = self._reserved.get((leaf, count))
        if known is None:
            known = self._reserved[leaf, count] = self._most_reserved(leaf, count)
        return known

    def _most_reserved(self, leaf: int, count: int) -> Mapping[int, Amounts]:
        found: dict[int, Amounts] = {}
        coming: dict[int, Amounts] = {}
        for start_ns, queues, amounts in self._planned[:count]:
            for queue in self._state.shares.tree.path(leaf):
                if queue in queues:
                    zero = (0,) * len(amounts)
                    now = coming.get(queue, zero)
                    coming[queue] = tuple(a + b for a, b in zip(now, amounts, strict=True))
                    net = (c - f for c, f in zip(coming[queue], self._freed(queue, start_ns), strict=True))
                    found[queue] = tuple(map(max, found.get(queue, zero), net))
        return found

    def _freed(self, queue: int, by_ns: int) -> Amounts:
        """What running jobs of the queue, and of those below it, are expected to give back by then."""
        known = self._gone.get((queue, by_ns))
        if known is None:
            tree = self._state.shares.tree
            freed = [0] * len(tree.resources)
            for end_ns, run in self.ends():
                if end_ns > by_ns:
                    break
                if queue in tree.path(tree.leaf(run.queue)):
                    freed = [a + b for a, b in zip(freed, run.charged, strict=True)]
            known = self._gone[queue, by_ns] = tuple(freed)
        return known
