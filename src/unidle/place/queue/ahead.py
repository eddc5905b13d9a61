"""Quota over time: when a refused job's queue will let it start, and that no later job is in its way then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unidle.place.queue.cluster import Cluster
from unidle.place.queue.fair import Refusal
from unidle.place.queue.model import Amounts, Demand, Running


class Ahead:
    """Reservations of quota made in one round."""

    def __init__(self, cluster: Cluster, now_ns: int, otherwise_ns: int) -> None:
        self._cluster, self._now_ns, self._otherwise_ns = cluster, now_ns, otherwise_ns
        self._planned: list[tuple[int, frozenset[int], Amounts]] = []

    def ends(self) -> Iterator[tuple[int, Running]]:
        """Running jobs by expected end; those that run now."""
        return self._cluster.ends(self._now_ns, self._otherwise_ns)

    def free_ns(self, refusal: Refusal) -> int | None:
        """When enough of the queue's jobs are expected to have ended; None where that never suffices."""
        tree = self._cluster.shares.tree
        missing = refusal.used + refusal.asked - refusal.bound
        for end_ns, run in self.ends():
            counts = run.firm if refusal.rule == "deserved" else True
            if counts and refusal.queue in tree.path(tree.leaf(run.queue)):
                missing -= run.charged[refusal.resource]
                if missing <= 0:
                    return end_ns
        return None

    def reserve(self, leaf: int, amounts: Amounts, start_ns: int) -> None:
        """From ``start_ns`` on the queue and its ancestors have to have these amounts free."""
        self._planned.append((start_ns, frozenset(self._cluster.shares.tree.path(leaf)), amounts))

    def beside(self, leaf: int, demand: Demand) -> Mapping[int, Amounts]:
        """By queue on the leaf's path: what reserved jobs will use there before this one would end."""
        if not self._planned:
            return {}
        length_ns = self._otherwise_ns if demand.estimate_ns is None else demand.estimate_ns
        found: dict[int, Amounts] = {}
        for start_ns, queues, amounts in self._planned:
            if self._now_ns + length_ns <= start_ns:
                continue
            for queue in self._cluster.shares.tree.path(leaf):
                if queue in queues:
                    before = found.get(queue, (0,) * len(amounts))
                    found[queue] = tuple(a + b for a, b in zip(before, amounts, strict=True))
        return found
