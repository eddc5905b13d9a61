"""Repair after several nodes failed at once: surviving ranks stay, and their leaf is looked at first.

Gangs are repaired tier by tier: first every gang that finds its lost ranks' devices in a leaf where
it survives, then the others one tier further up, so that no gang takes a leaf's spares from one
that lives there. Within a tier high jobs come first, then larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.jobs import Reason
from unidle.place.queue.model import Fits, Ints, Running

_LEVEL: Final = {"high": 0, "medium": 1, "low": 2}


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


def repair(
    jobs: Sequence[Running], failed: Collection[int], free: Ints, tiers: Sequence[Ints],
    fits_of: Callable[[Running], Fits],
) -> dict[str, Repair | Reason]:  # fmt: skip
    """New places for the ranks that were on failed nodes, by job.

    ``free``: devices by node; those of failed nodes are not used. ``tiers[k][node]`` is the domain
    of the node at tier ``k``, leaves first. A gang whose topology allows no place beside its
    survivors is moved as far as it must; one that finds none at all waits, with the reason.
    """
    plan = _Plan(jobs, failed, free, tiers, fits_of)
    for tier in range(len(tiers) + 1):
        for run in list(plan.open):
            plan.beside_survivors(run, tier)
    for run in list(plan.open):
        plan.anywhere(run)
    return {run.job: plan.done[run.job] for run in jobs if run.job in plan.done}


class _Plan:
    def __init__(
        self, jobs: Sequence[Running], failed: Collection[int], free: Ints, tiers: Sequence[Ints],
        fits_of: Callable[[Running], Fits],
    ) -> None:  # fmt: skip
        self._failed = set(failed)
        self._free = np.array(free, np.int64)
        self._free[sorted(self._failed)] = 0
        self._tiers, self._fits_of = tiers, fits_of
        hit = (run for run in jobs if any(node in self._failed for node in run.devices))
        self.open = sorted(hit, key=lambda run: (_LEVEL[run.level], -run.size, run.job))
        self.done: dict[str, Repair | Reason] = {}

    def beside_survivors(self, run: Running, tier: int) -> None:
        """Replace the lost ranks on nodes that share a domain of this tier with a survivor."""
        keep = self._survivors(run)
        near = self._near(keep, tier)
        if near is None:
            return
        room = np.where(near, self._free // run.each, 0)
        lost = run.ranks - int(keep.sum())
        if int(room.sum()) < lost:
            return
        fits = self._fits_of(run)
        counts = fits(keep + _fewest(room, lost))
        if counts is None:
            counts = fits(keep + room)  # the fewest nodes will not do; others may
        if counts is not None and (counts >= keep).all():
            self._settle(run, keep, counts)

    def anywhere(self, run: Running) -> None:
        """Place the gang again, on what is free and on what its survivors hold."""
        keep = self._survivors(run)
        counts = self._fits_of(run)(keep + self._free // run.each)
        if counts is not None:
            self._settle(run, keep, counts)
            return
        lost, spare = run.ranks - int(keep.sum()), int((self._free // run.each).sum())
        text = f"lost {lost} of {run.ranks} ranks; free nodes hold {spare}"
        text += ", but not in the shape that the job needs" if spare >= lost else ""
        self.done[run.job] = Reason("no_spare", text, {"lost": lost, "ranks": run.ranks, "spare": spare})
        self.open.remove(run)

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
        where = (
            "in the leaves of its survivors"
            if tier == 0
            else f"{tier} tier{'s' if tier > 1 else ''} further up"
        )
        if tier == len(self._tiers):
            where = "elsewhere" if kept else "where the whole gang fits"
        text = f"lost {lost} of {run.ranks} ranks, keeps {kept}, and finds {int(adds.sum())} {where}"
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
