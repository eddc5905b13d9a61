"""Which jobs may be stopped for which, and why none may be for a job.

There are two rights. A high job may stop low jobs of its own queue. A queue that uses less than it deserves
reclaims from those that use more, but never below what those deserve. The second right is checked at the
level where the branches of the two queues part, and on the victim's side at every level below it. It is
checked in the resource of which the job requests the largest part of the fleet.
Jobs that are not low are never stopped, nor any job before its minimum runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from unidle.jobs import Reason
from unidle.place.model import Amounts, Demand, Ints, Mask, Running, RunningRows, rows_of
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import ROOT


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Columns, in order of node: on ``node[i]`` item ``i`` frees ``devices[i]`` at ``cost[i]``; ``job[i]`` owns it.

    It has ``ranks[i]`` ranks there, each with its CPU and memory.
    """

    node: Ints
    devices: Ints
    cost: Ints
    job: Ints
    ranks: Ints

    def __len__(self) -> int:
        return len(self.node)

    def take(self, pick: Ints | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Items:
        """The items of a mask or of indexes."""
        return Items(self.node[pick], self.devices[pick], self.cost[pick], self.job[pick], self.ranks[pick])


_PLENTY: Final = 1 << 60


class Candidates:
    """All jobs that could be stopped at ``now_ns``, as columns; follows the cluster while it is used."""

    def __init__(
        self, state: Allocations, now_ns: int, may_stop: Callable[[Running], bool] | None = None
    ) -> None:
        """Jobs that ``may_stop`` (low ones by default), past their minimum runtime and not started just now."""
        self._state, self._may_stop = state, may_stop
        self.now_ns = now_ns
        self._build()

    def _build(self) -> None:
        rows = self._rows()
        rows = rows.where(rows.since_ns <= self.now_ns)
        self.jobs: list[Running] = rows.jobs
        self.cost: Ints = rows.cost(self.now_ns)
        self.size, self.leaf, self.each, self.asks = rows.size, rows.leaf, rows.each, rows.asks
        self.density = self.cost / np.maximum(rows.milli / 1_000, 0.001)  # cost per device
        self.spread = rows.nodes > 1
        self.parted: Mask = rows.milli > 1_000 * rows.size
        self.alive = np.ones(len(self.jobs), np.bool_)
        self.items = self._items(rows)
        self._seen = self._state.changes

    def _rows(self) -> RunningRows:
        if self._may_stop is None:
            return self._state.stoppable()
        runs = (run for run in self._state.running.values() if self._may_stop(run))
        return rows_of(sorted(runs, key=attrgetter("job")), self._state.shares.tree.leaf)

    def _items(self, rows: RunningRows) -> Items:
        job = np.repeat(np.arange(len(rows.jobs)), rows.nodes)
        node, devices = rows.node, rows.devices
        # a job's cost by devices; rounded up, so that a node's part of a job is never free
        cost = -(-self.cost[job] * devices // np.maximum(self.size[job], 1))
        order = np.lexsort((job, self.density[job], node))
        return Items(node[order], devices[order], cost[order], job[order], (devices // self.each[job])[order])

    def in_parts(self, leaves: Sequence[int]) -> bool:
        """Whether any job of these queues has parts of devices."""
        self.refresh()
        return bool((self.parted & self.alive & np.isin(self.leaf, leaves)).any())

    def refresh(self) -> None:
        """Apply what was started or stopped since the last look."""
        if self._seen != self._state.changes:
            self._build()

    def stopped(self, rows: Sequence[int]) -> None:
        """These were stopped, and nothing else changed since the last look."""
        self.alive[list(rows)] = False
        self._seen = self._state.changes

    def revived(self, rows: Sequence[int]) -> None:
        """That these were stopped was taken back, and nothing else changed since the last look."""
        self.alive[list(rows)] = True
        self._seen = self._state.changes


@dataclass(frozen=True, slots=True)
class Rights:
    """For one demand: which queues' jobs may be stopped, and how much may be taken, by queue.

    ``bounds[leaf]`` lists the queues on that leaf's side, and ``above`` how much of resource
    ``resource`` each uses beyond what it deserves.
    """

    resource: int
    own: int | None  # the leaf whose low jobs may be stopped without bound
    bounds: dict[int, tuple[int, ...]]
    above: dict[int, int]

    def leaves(self) -> list[int]:
        """Queues whose jobs may be stopped."""
        return sorted(set(self.bounds) | ({self.own} if self.own is not None else set()))

    def within(self, jobs: Sequence[Running], leaves: Sequence[int]) -> list[bool]:
        """For each job in turn, whether it can be stopped with all before it that could be."""
        left = dict(self.above)
        found = []
        for run, leaf in zip(jobs, leaves, strict=True):
            if leaf == self.own:
                found.append(True)
                continue
            amount = run.charged[self.resource]
            path = self.bounds.get(leaf)
            fits = path is not None and amount > 0 and all(left[queue] >= amount for queue in path)
            if fits and path is not None:
                for queue in path:
                    left[queue] -= amount
            found.append(fits)
        return found

    def excess(self, jobs: Sequence[Running], leaves: Sequence[int]) -> list[int]:
        """Indexes of a few of these jobs that cannot all be stopped; [] where all of them can."""
        taken: dict[int, list[int]] = {}
        for k, (run, leaf) in enumerate(zip(jobs, leaves, strict=True)):
            if leaf == self.own:
                continue
            if leaf not in self.bounds or run.charged[self.resource] <= 0:
                return [k]
            for queue in self.bounds[leaf]:
                taken.setdefault(queue, []).append(k)
        for queue, members in sorted(taken.items()):
            members.sort(key=lambda k: (-jobs[k].charged[self.resource], k))
            left = self.above[queue]
            for count, k in enumerate(members, 1):
                left -= jobs[k].charged[self.resource]
                if left < 0:
                    return members[:count]
        return []


def rights(shares: FairShare, demand: Demand, copies: int = 1) -> Rights:
    """What ``copies`` such demands together may take from whom."""
    tree = shares.tree
    leaf = tree.leaf(demand.queue)
    amounts = tuple(amount * copies for amount in demand.charged)
    resource = dominant(shares, demand.charged)
    bounds: dict[int, tuple[int, ...]] = {}
    above: dict[int, int] = {}
    if tree.specs[leaf - 1].kind != "public":
        for at in tree.path(leaf)[:-1]:
            if not deserves(shares, at, amounts):
                continue
            for sibling in tree.children[tree.parent[at]]:
                if sibling != at:
                    takeable(shares, sibling, (), resource, bounds, above)
    return Rights(resource, leaf if demand.level == "high" else None, bounds, above)


def anyone(shares: FairShare, demand: Demand) -> Rights:
    """All that the demand could take, of whichever queue and without bound: for candidates that have no right to stay."""
    leaves: dict[int, tuple[int, ...]] = {
        leaf: (leaf,) for leaf, children in enumerate(shares.tree.children) if not children
    }
    return Rights(dominant(shares, demand.charged), None, leaves, dict.fromkeys(leaves, _PLENTY))


def copies_deserved(shares: FairShare, demand: Demand, most: int) -> int:
    """How many such demands, up to ``most``, the queue may take back room for on its present books."""
    tree = shares.tree
    best = 0
    for at in tree.path(tree.leaf(demand.queue))[:-1]:
        fits = [
            (shares.quota.deserved[at][r] - shares.used[at][r]) // amount
            for r, amount in enumerate(demand.charged)
            if amount
        ]
        best = max(best, min(fits, default=0))
    return min(best, most)


def dominant(shares: FairShare, amounts: Amounts) -> int:
    """The resource of which these amounts are the largest part of the fleet; the first of equals."""
    capacity = shares.quota.capacity
    width = range(len(amounts))
    return max(width, key=lambda r: (amounts[r] / capacity[r] if capacity[r] else float(amounts[r] > 0), -r))


def deserves(shares: FairShare, queue: int, amounts: Amounts) -> bool:
    """Whether the queue deserves these amounts besides what it uses."""
    used, deserved = shares.used[queue], shares.quota.deserved[queue]
    return all(u + a <= d for u, a, d in zip(used, amounts, deserved, strict=True) if a)


def takeable(
    shares: FairShare, queue: int, over: tuple[int, ...], resource: int,
    bounds: dict[int, tuple[int, ...]], above: dict[int, int],
) -> None:  # fmt: skip
    """Walk down a branch as long as it uses more than it deserves."""
    beyond = shares.above(queue, resource)
    if queue == ROOT or beyond <= 0 or not shares.tree.specs[queue - 1].reclaimable:
        return
    above[queue] = beyond
    if not shares.tree.children[queue]:
        bounds[queue] = (*over, queue)
    for child in shares.tree.children[queue]:
        takeable(shares, child, (*over, queue), resource, bounds, above)


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
