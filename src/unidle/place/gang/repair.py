"""Repair after several nodes failed at once: surviving ranks stay, and their leaf is searched first.

Gangs are repaired tier by tier: first every gang that finds devices for its lost ranks in a leaf where
some of its ranks survive, then the others one tier further up. So no gang takes the spares of a leaf from
a gang that has ranks there. Within a tier jobs of level high come first, then larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unidle.jobs import Reason
from unidle.place.model import LEVEL, Fits, Ints, Running
from unidle.words import counted


@dataclass(frozen=True, slots=True)
class Repair:
    """``keep[node]`` ranks stay, ``add[node]`` ranks replace the lost ones (and ``moved`` survivors).

    ``tier`` is how far up the tree one had to look for the devices: 0 for the survivors' leaves.
    """

    job: str
    keep: Mapping[int, int]
    add: Mapping[int, int]
    moved: int
    tier: int
    because: Reason


@dataclass(frozen=True, slots=True, eq=False)
class RepairBounds:
    """``most[node]``: ranks of the gang that the node holds when all that is free, and what it keeps, is its own.

    ``unit`` ranks must be together on a node, ``unit_wished`` had better be (1: each may be alone).
    """

    most: Ints
    unit: int = 1
    unit_wished: int = 1


def repair(
    jobs: Sequence[Running], failed: Collection[int], free: Ints, tiers: Sequence[Ints],
    fits_of: Callable[[Running], Fits], bounds_of: Callable[[Running], RepairBounds] | None = None,
) -> dict[str, Repair | Reason]:  # fmt: skip
    """New places for the ranks that are missing, by job: those on failed nodes, or without devices.

    ``free``: devices by node; those of failed nodes are not used. ``tiers[k][node]`` is the domain
    of the node at tier ``k``, leaves first. A gang whose topology allows no place with all of its
    survivors keeps as many as it can; one that finds none at all waits, with the reason.
    """
    plan = _Plan(jobs, failed, free, tiers, fits_of, bounds_of)
    for tier in range(len(tiers) + 1):
        for run in list(plan.open):
            plan.next_to_survivors(run, tier)
    for run in list(plan.open):
        plan.next_to_some(run)
    for run in list(plan.open):
        plan.anywhere(run)
    return {run.job: plan.done[run.job] for run in jobs if run.job in plan.done}


class _Plan:
    def __init__(
        self, jobs: Sequence[Running], failed: Collection[int], free: Ints, tiers: Sequence[Ints],
        fits_of: Callable[[Running], Fits], bounds_of: Callable[[Running], RepairBounds] | None,
    ) -> None:  # fmt: skip
        self._failed = set(failed)
        self._free = np.array(free, np.int64)
        self._free[sorted(self._failed)] = 0
        self._tiers, self._fits_of = tiers, fits_of
        self._bounds_of = bounds_of or (lambda _: RepairBounds(np.full(len(self._free), 1 << 40)))
        hit = (run for run in jobs if int(self._survivors(run).sum()) < run.ranks)
        self.open = sorted(hit, key=lambda run: (LEVEL[run.level], -run.size, run.job))
        self.done: dict[str, Repair | Reason] = {}

    def next_to_survivors(self, run: Running, tier: int) -> None:
        """Replace the lost ranks on nodes that share a domain of this tier with a survivor."""
        keep = self._survivors(run)
        counts = self._next_to(run, keep, keep, tier)
        if counts is not None and (counts >= keep).all():
            self._settle(run, keep, counts)

    def next_to_some(self, run: Running) -> None:
        """Where not all survivors can stay, as many of their nodes as can, those of its fullest leaf first."""
        keep = self._survivors(run)
        nodes, top = np.flatnonzero(keep), len(self._tiers)
        leaf = np.unique(self._tiers[0], return_inverse=True)[1] if top else np.zeros(len(keep), np.int64)
        fullest = np.bincount(leaf, weights=keep)[leaf[nodes]]
        order = nodes[np.lexsort((nodes, -keep[nodes], leaf[nodes], -fullest))]
        low, high = 0, len(order) + 1  # the first ``low`` nodes can stay, the first ``high`` cannot
        while high - low > 1:
            middle = (low + high) // 2
            if self._next_to(run, keep, _only(keep, order[:middle]), top) is not None:
                low = middle
            else:
                high = middle
        for tier in range(top + 1) if low else ():
            counts = self._next_to(run, keep, _only(keep, order[:low]), tier)
            if counts is not None:
                self._settle(run, keep, counts)
                return

    def anywhere(self, run: Running) -> None:
        """Place the gang again, on what is free and on what its survivors hold."""
        keep = self._survivors(run)
        counts = self._fits_of(run)(self._room(run, keep, np.zeros_like(keep)))
        if counts is not None:
            self._settle(run, keep, counts)
            return
        lost, spare = run.ranks - int(keep.sum()), int(self._room(run, keep, keep).sum())
        text = f"lost {lost} of {counted(run.ranks, 'rank')}; free nodes hold {spare}"
        text += ", but not in the shape that the job needs" if spare >= lost else ""
        self.done[run.job] = Reason("no_spare", text, {"lost": lost, "ranks": run.ranks, "spare": spare})
        self.open.remove(run)

    def _next_to(self, run: Running, keep: Ints, stay: Ints, tier: int) -> Ints | None:
        """Ranks by node where those of ``stay`` that form whole groups stay, and the others are near them."""
        near = self._near(stay, tier)
        if near is None:
            return None
        bounds = self._bounds_of(run)
        room = np.where(near, self._room(run, keep, stay), 0)
        if int((stay + room).sum()) < run.ranks:
            return None
        part = stay % bounds.unit  # of a group that must be together: it is made whole, or moves
        fill = np.where(part > 0, bounds.unit - part, 0)
        fixed = np.where(fill <= room, stay + fill, stay - part)
        room = stay + room - fixed
        lost, fits = run.ranks - int(fixed.sum()), self._fits_of(run)
        if lost < 0:
            return None
        whole = room // bounds.unit_wished * bounds.unit_wished
        few = _fewest(whole if int(whole.sum()) >= lost else room, lost)
        counts = fits(fixed + few)
        if counts is None:
            counts = fits(fixed + room)  # the fewest nodes will not do; others may
        return counts if counts is not None and (counts >= np.minimum(fixed, stay)).all() else None

    def _room(self, run: Running, keep: Ints, stay: Ints) -> Ints:
        """Ranks that each node holds besides ``stay``: on what is free and what other survivors give up."""
        room: Ints = np.minimum(self._free // run.each + keep - stay, self._bounds_of(run).most - stay)
        return np.maximum(room, 0)

    def _survivors(self, run: Running) -> Ints:
        keep = np.zeros(len(self._free), np.int64)
        for node, devices in run.devices.items():
            if node not in self._failed:
                keep[node] = devices // run.each
        return keep

    def _near(self, keep: Ints, tier: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        if not keep.any():
            return None
        if tier == len(self._tiers):
            return np.ones(len(keep), np.bool_)
        domain = self._tiers[tier]
        return np.isin(domain, domain[keep > 0])

    def _settle(self, run: Running, keep: Ints, counts: Ints) -> None:
        stays, adds = np.minimum(keep, counts), np.maximum(counts - keep, 0)
        moved = int((keep - stays).sum())
        self._free += (keep - stays - adds) * run.each
        kept, lost = int(stays.sum()), run.ranks - int(keep.sum())
        tier = self._farthest(stays, adds)
        where = "in the leaves of its survivors" if tier == 0 else f"{counted(tier, 'tier')} further up"
        if tier == len(self._tiers):
            where = "elsewhere" if kept else "where the whole gang fits"
        text = (
            f"lost {lost} of {counted(run.ranks, 'rank')}, keeps {kept}, and finds {int(adds.sum())} {where}"
        )
        because = Reason("repair", text, {"lost": lost, "kept": kept, "moved": moved, "tier": tier})
        self.done[run.job] = Repair(run.job, _places(stays), _places(adds), moved, tier, because)
        self.open.remove(run)

    def _farthest(self, stays: Ints, adds: Ints) -> int:
        """The lowest tier at which every new node shares a domain with a survivor; the number of tiers if none."""
        for tier in range(len(self._tiers)):
            near = self._near(stays, tier)
            if near is not None and near[adds > 0].all():
                return tier
        return len(self._tiers)


def _only(keep: Ints, nodes: Ints) -> Ints:
    """The survivors of these nodes."""
    found = np.zeros_like(keep)
    found[nodes] = keep[nodes]
    return found


def _fewest(room: Ints, ranks: int) -> Ints:
    """The ranks on as few nodes as can be, the last on the node that it fills best."""
    counts = np.zeros(len(room), np.int64)
    for node in np.argsort(-room, kind="stable").tolist():
        if ranks <= 0:
            break
        if room[node] >= ranks:
            enough = np.flatnonzero((room >= ranks) & (counts == 0))
            node = int(enough[np.argmin(room[enough])])
        counts[node] = min(int(room[node]), ranks)
        ranks -= int(counts[node])
    return counts


def _places(counts: Ints) -> dict[int, int]:
    return {int(node): int(counts[node]) for node in np.flatnonzero(counts)}
