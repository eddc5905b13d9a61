"""What is kept back, and which jobs may use it: hot spares, and nodes and devices on probation.

Spares are for jobs that come back after a fault, and for filler, which makes room for those at once. What is on
probation is for jobs of level low, if the fleet file allows it. For all other jobs these slices count as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from unidle.fleet import slices_of
from unidle.fleet.spares import Spares
from unidle.jobs import JobSpec
from unidle.place.network.tree import Bools, Ints
from unidle.place.nodes.hardware import WORD, Masks, SliceMasks, words_of
from unidle.view.jobs import JobView
from unidle.view.kept import busy_nodes, comes_back, coming_back, on_trial
from unidle.view.state import View


class Access(NamedTuple):
    """What of that a job may use; ``places``: those of gangs that come back soon."""

    spares: bool = True
    probation: bool = True
    places: bool = True


OPEN: Final = Access()
_ALL_BITS: Final = np.uint64((1 << WORD) - 1)
_NONE: Final = Access(spares=False, probation=False, places=False)
_Bits: TypeAlias = dict[str, dict[int, int]]
"""By kind and position, slices of a node as bits."""


def access_of(spec: JobSpec, job: JobView | None = None) -> Access:
    """``job``: the job of this spec, if it is known; without it, the access of a job that never ran."""
    if spec.preemption == "low":
        return Access(spec.filler, probation=True, places=False)
    back = job is not None and comes_back(job) and spec.share is None
    return Access(back, probation=False, places=back)


class Reserve:
    """``spares`` by name and ``at``, (N,), where they or something on probation are. ``version`` grows with each change."""

    def __init__(self, view: View, place: dict[str, int], pieces: dict[str, SliceMasks]) -> None:
        self._place, self._pieces = place, pieces
        self._rule = Spares(view.fleet)
        self._busy: set[str] = set()
        self._started: set[str] = set()  # nodes with work of this round that may not be stopped at once
        self._unfit: set[str] = set()
        self.spares: frozenset[str] = frozenset()
        self.trial: _Bits = {}  # slices on probation that nobody has
        self._trial_at: _Bits = {}  # the same with those that somebody has
        self._places: _Bits = {}  # slices of gangs that come back
        self.coming_back: frozenset[str] = frozenset()  # these gangs
        self.at: Bools = np.zeros(len(place), np.bool_)
        self.spare_at: Bools = np.zeros(len(place), np.bool_)
        self.version = 0
        self._shut: dict[tuple[Access, str], Masks | None] = {}
        self.ever: Bools = np.zeros(len(place), np.bool_)  # spares of the empty, healthy fleet
        self.ever[[place[name] for name in self._rule.of()]] = True

    def follow(self, view: View) -> set[int]:
        """Apply the current view; returns the positions at which something changed."""
        before = self.trial, self._trial_at, self._places
        self.trial, self._trial_at = self._on_trial(view)
        self._places = self._of_who_comes_back(view) if self._rule else {}
        now = self.trial, self._trial_at, self._places
        changed = set[int]().union(*(_changed(a, b) for a, b in zip(before, now, strict=True)))
        self._busy, self._unfit = busy_nodes(view) if self._rule else set(), self._rule.unfit(view.barred)
        self._started.clear()
        return changed | self._choose(anew=bool(changed))

    def took(self, nodes: Iterable[str]) -> tuple[set[int], Callable[[], set[int]]]:
        """Mark nodes with work that may not be stopped at once. Returns positions that changed, and what undoes it."""
        before = frozenset(self._started)
        self._started.update(nodes)
        changed = self._choose() if not self.spares.isdisjoint(self._started) else set[int]()

        def undo() -> set[int]:
            if len(before) == len(self._started):
                return set()
            self._started = set(before)
            return self._choose()

        return changed, undo

    def shut(self, access: Access, kind: str) -> Masks | None:
        """The slices of a kind that such a job may not use; None where it may use all."""
        key = (access, kind)
        if key not in self._shut:
            masks = self.kept(access, kind).values()
            self._shut[key] = np.bitwise_or.reduce(list(masks)) if masks else None
        return self._shut[key]

    def kept(self, access: Access, kind: str) -> dict[str, Masks]:
        """The same by why: ``spare``, ``probation``, ``place``."""
        found: dict[str, Masks] = {}
        if self.spares and not access.spares:
            found["spare"] = np.zeros((len(self.at), self._pieces[kind].words), np.uint64)
            found["spare"][self.spare_at] = _ALL_BITS
        if not access.probation and (bits := self._trial_at.get(kind)):
            found["probation"] = self._masks(bits, kind)
        if not access.places and (bits := self._places.get(kind)):
            found["place"] = self._masks(bits, kind)
        return found

    def _choose(self, *, anew: bool = False) -> set[int]:
        spares = self._rule.choose(self._busy, self._started, self._unfit)
        changed = {self._place[name] for name in spares ^ self.spares}
        if changed or anew:
            self.spares = spares
            self.spare_at = np.zeros_like(self.at)
            self.spare_at[[self._place[name] for name in spares]] = True
            self.at = self.spare_at.copy()
            self.at[[position for kind in self._trial_at.values() for position in kind]] = True
            self._shut.clear()
            self.version += 1
        return changed

    def _masks(self, bits: dict[int, int], kind: str) -> Masks:
        words = self._pieces[kind].words
        found = np.zeros((len(self.at), words), np.uint64)
        for position, mask in bits.items():
            found[position] = words_of(mask, words)
        return found

    def _of_who_comes_back(self, view: View) -> _Bits:
        """Slices on which gangs were that come back soon."""
        jobs, found = coming_back(view), _Bits()
        self.coming_back = frozenset(job.id for job in jobs)
        for piece in (s for job in jobs for place in job.attempts[-1].places for s in place.slices):
            if view.occupancy.knows(piece):
                kind, order, bit = view.occupancy.where(piece)
                at = found.setdefault(kind, {})
                position = self._place[view.occupancy.nodes[kind][order].node]
                at[position] = at.get(position, 0) | 1 << bit
        return found

    def _on_trial(self, view: View) -> tuple[_Bits, _Bits]:
        """Slices on probation: those that no job holds, and all."""
        targets = on_trial(view)
        free, every = _Bits(), _Bits()
        if not targets:
            return free, every
        nodes = {target if target in self._place else target.rpartition("/")[0] for target in targets}
        for node in view.fleet.nodes:
            for device in node.devices if node.id in nodes else ():
                if (node.id not in targets and device.id not in targets) or device.id in view.health:
                    continue
                for piece in slices_of(device):
                    kind, _, bit = view.occupancy.where(piece.id)
                    held = view.book.held[view.book.index(piece.id)] or view.occupancy.is_part(piece.id)
                    for found, mask in ((every, 1 << bit), (free, 0 if held else 1 << bit)):
                        at = found.setdefault(kind, {})
                        position = self._place[node.id]
                        at[position] = at.get(position, 0) | mask
        return free, every


def _changed(a: _Bits, b: _Bits) -> set[int]:
    """Positions at which two differ."""
    kinds = a.keys() | b.keys()
    both = [(a.get(kind, {}), b.get(kind, {})) for kind in kinds]
    return {at for one, other in both for at in one.keys() | other.keys() if one.get(at) != other.get(at)}


def first_choice(reserve: Reserve | None, access: Access, own: Ints) -> Bools | None:
    """The nodes that such a job had better use, (N,); None where it has no choice.

    Filler goes where others may not, first; who comes back leaves spares alone as long as it can, but for nodes on
    which it was (``own``: its ranks by position).
    """
    if reserve is None or access == _NONE or not reserve.at.any():
        return None
    if access.probation:
        return reserve.at
    return ~reserve.spare_at | (own > 0)
