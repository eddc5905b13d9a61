"""Why no job is stopped for a job that waits, in words that a person can check against ``unidle queue``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from unidle.jobs import Reason
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.fair import Shares
from unidle.place.queue.model import Demand
from unidle.place.queue.victims import deserves, dominant, takeable

Like = TypeVar("Like", bound=Hashable)


class Nobody(dict[Like, Reason | None], Generic[Like]):
    """Kinds of jobs for which no other job may be stopped, with the reason if it is known already."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._looked: set[Like] = set()

    def why(self, like: Like, demand: Demand) -> Reason | None:
        """The reason for a job of this kind; None if others may be stopped for it, or if no reason is needed."""
        if like in self and self[like] is None and like not in self._looked:
            self._looked.add(like)
            self[like] = why_nobody(self._cluster, demand)
        return self.get(like)

    def clear(self) -> None:
        super().clear()
        self._looked.clear()


def why_nobody(cluster: Cluster, demand: Demand) -> Reason | None:
    """Why no queue has jobs that may be stopped for it; None if its queue has nothing to reclaim.

    That is so if each queue above it uses all that it deserves, or no other uses more than it deserves.
    """
    shares, tree = cluster.shares, cluster.shares.tree
    leaf = tree.leaf(demand.queue)
    for at in tree.path(leaf)[:-1]:
        text = _at(cluster, demand, leaf, at)
        if text:
            return Reason("no_right_to_preempt", text)
    if demand.level == "high" and not cluster.soft.get(leaf) and any(shares.used[leaf]):
        return Reason("no_right_to_preempt", f"{demand.queue} runs no job of level low")
    return None


def _at(cluster: Cluster, demand: Demand, leaf: int, at: int) -> str:
    """What keeps this queue on the way up from taking back from its siblings."""
    shares, tree = cluster.shares, cluster.shares.tree
    resource = dominant(shares, demand.charged)
    siblings = [k for k in tree.children[tree.parent[at]] if k != at and shares.above(k, resource) > 0]
    if not siblings:
        return ""
    bounds: dict[int, tuple[int, ...]] = {}
    for sibling in siblings:
        takeable(shares, sibling, (), resource, bounds, {})
    if tree.specs[leaf - 1].kind == "public":
        return f"{demand.queue} is public and reclaims nothing"
    if not deserves(shares, at, demand.charged):
        return _beyond(shares, demand, at)
    if not bounds:
        names = ", ".join(tree.name(k) for k in siblings[:3])
        return f"{names} {'uses' if len(siblings) == 1 else 'use'} more than deserved, but this is not reclaimable"
    if not any(cluster.soft.get(k) for k in bounds):
        names = ", ".join(tree.name(k) for k in sorted(bounds)[:3])
        return f"no job of level low runs in {names}, and only such jobs can be stopped"
    return ""


def _beyond(shares: Shares, demand: Demand, at: int) -> str:
    """The queue deserves more than it uses, and less than it would use with this job."""
    tree, used, deserved = shares.tree, shares.used[at], shares.quota.deserved[at]
    for r, asked in enumerate(demand.charged):
        if asked and used[r] < deserved[r] < used[r] + asked:
            has, would, most = (f"{x / 1000:g}" for x in (used[r], used[r] + asked, deserved[r]))
            what = tree.resources[r]
            return f"{tree.name(at)} uses {has} {what}, would use {would} with it, and deserves {most}"
    return ""
