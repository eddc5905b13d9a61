"""Refusals of a queue, and why no job is stopped for one that waits, in words that a person can check against ``unidle queue``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from unidle.jobs import Reason
from unidle.place.model import Amounts, Demand
from unidle.place.queue.fair_share import FairShare, Refusal
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import QueueTree
from unidle.place.queue.victims import deserves, dominant, takeable


def refused(tree: QueueTree, refusal: Refusal) -> Reason:
    """Which bound of which queue is in the way, with its figures in devices or cores."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = {
        "limit": f"{name} uses {used} {resource} of at most {bound}, and the job needs {asked}",
        "deserved": f"jobs that are never preempted use {used} of the {bound} {resource} that {name} deserves, "
        f"and this one needs {asked}; with preemption low it could borrow",
        "kept": f"{name} has {bound} {resource} that are not kept for others, {used} of them used, "
        f"and the job needs {asked}",
        "full": f"{name} uses {used} of {bound} {resource}, and the job needs {asked}",
    }[refusal.rule]
    return Reason("quota", text, _plain(tree, refusal))


def behind(tree: QueueTree, refusal: Refusal) -> Reason:
    """A job that would use up the quota of one before it; a shorter one might start."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = (
        f"it would still run when a job before it is planned to start, and {name} has no quota for both: "
        f"{used} of {bound} {resource} are in use or planned, and this one needs {asked}"
    )
    return Reason("behind", text, _plain(tree, refusal))


def _figures(tree: QueueTree, refusal: Refusal) -> tuple[str, str, str, str, str]:
    used, bound, asked = (f"{x / 1000:g}" for x in (refusal.used, refusal.bound, refusal.asked))
    return tree.name(refusal.queue) or "the fleet", tree.resources[refusal.resource], used, bound, asked


def _plain(tree: QueueTree, refusal: Refusal) -> dict[str, int | float | str]:
    return {
        "queue": tree.name(refusal.queue) or "the fleet", "resource": tree.resources[refusal.resource],
        "used": refusal.used, "bound": refusal.bound, "asked": refusal.asked,
    }  # fmt: skip


Like: TypeAlias = tuple[str, str, int, int, Amounts, str, Hashable]
"""See :func:`like_of`."""


class NoVictims(dict[Like, Reason | None]):
    """Kinds of jobs for which no other job may be stopped, with the reason if it is known already."""

    def __init__(self, state: Allocations) -> None:
        super().__init__()
        self._state = state
        self._looked: set[Like] = set()

    def why(self, like: Like, demand: Demand) -> Reason | None:
        """The reason for a job of this kind; None if others may be stopped for it, or if no reason is needed."""
        if like in self and self[like] is None and like not in self._looked:
            self._looked.add(like)
            self[like] = why_no_victims(self._state, demand)
        return self.get(like)

    def clear(self) -> None:
        super().clear()
        self._looked.clear()


class Learned:
    """What a decision has learned of equal jobs, so that nothing is asked twice. Void once others leave."""

    def __init__(self, state: Allocations) -> None:
        self.refused: dict[Like, Reason] = {}  # jobs like this may not start, and none may stop for them
        self.no_room: set[Like] = set()  # the nodes do not hold jobs like this, and none may stop for them
        self.no_part: set[Like] = set()  # no device has a part for jobs like this
        self.no_filler: set[Like] = set()  # no filler can make room for jobs like this
        self.part_ns: dict[Like, int | None] = {}  # when a part is expected to be free for them
        self.no_victims = NoVictims(state)  # none may be stopped for jobs like this
        self.asked_to_move = False  # whether moving others was weighed for any job

    def started(self, demand: Demand) -> None:
        """The job starts: what is free shrinks, but others may join it on a device that they could not open."""
        self.part_ns.clear()
        if not demand.ranks:
            self.no_part.clear()
            self.refused = {like: why for like, why in self.refused.items() if like[2]}

    def forget(self) -> None:
        """Others leave: what was learned of those that wait is void."""
        for memo in (self.refused, self.no_room, self.no_part, self.no_filler, self.part_ns, self.no_victims):
            memo.clear()


def like_of(demand: Demand, apart: Hashable) -> Like:
    """The class of jobs with the same outcome as long as no job leaves; ``apart`` is what else sets jobs for parts apart."""
    return demand.queue, demand.level, demand.ranks, demand.each, demand.charged, demand.alike, apart


def why_no_victims(state: Allocations, demand: Demand) -> Reason | None:
    """Why no queue has jobs that may be stopped for it; None if its queue has nothing to reclaim.

    That is so if each queue above it uses all that it deserves, or no other uses more than it deserves.
    """
    shares, tree = state.shares, state.shares.tree
    leaf = tree.leaf(demand.queue)
    for at in tree.path(leaf)[:-1]:
        text = _at(state, demand, leaf, at)
        if text:
            return Reason("no_right_to_preempt", text)
    if demand.level == "high" and not state.soft.get(leaf) and any(shares.used[leaf]):
        return Reason("no_right_to_preempt", f"{demand.queue} runs no job of level low")
    return None


def _at(state: Allocations, demand: Demand, leaf: int, at: int) -> str:
    """What keeps this queue on the way up from taking back from its siblings."""
    shares, tree = state.shares, state.shares.tree
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
    if not any(state.soft.get(k) for k in bounds):
        names = ", ".join(tree.name(k) for k in sorted(bounds)[:3])
        return f"no job of level low runs in {names}, and only such jobs can be stopped"
    return ""


def _beyond(shares: FairShare, demand: Demand, at: int) -> str:
    """The queue deserves more than it uses, and less than it would use with this job."""
    tree, used, deserved = shares.tree, shares.used[at], shares.quota.deserved[at]
    for r, asked in enumerate(demand.charged):
        if asked and used[r] < deserved[r] < used[r] + asked:
            has, would, most = (f"{x / 1000:g}" for x in (used[r], used[r] + asked, deserved[r]))
            what = tree.resources[r]
            return f"{tree.name(at)} uses {has} {what}, would use {would} with it, and deserves {most}"
    return ""
