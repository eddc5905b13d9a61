"""Many GPUs of one MIG model: on which of them an instance is placed, and where.

Only the occupied memory slices of each GPU matter, and there are at most 256 such states. So GPUs are kept
in one heap per state, and a decision compares states, not GPUs. An instance is placed where it wastes the
fewest compute slices (those that no further instance of the requested profiles could reach). Ties are broken
by the fullest GPU, then by the first. If whole GPUs are requested too, an empty GPU is opened only if no
other has room.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from unidle.errors import BadInput
from unidle.share.mig import potential
from unidle.share.mig_models import MigModel


class Spot(NamedTuple):
    """GPU ``gpu`` (an index) and the memory slice at which the instance begins."""

    gpu: int
    start: int


class MigPool:
    """Occupied memory slices of ``gpus`` GPUs of one model, all empty at first.

    ``demand`` is how often each profile is requested (any scale); without it, all profiles are expected.
    Profiles with media engines are not handled here.
    """

    def __init__(self, model: MigModel, gpus: int, demand: Mapping[str, float] | None = None) -> None:
        self._model = model
        self._profiles = {p.name: p for p in model.profiles if not p.media}
        self._occupied = [0] * gpus
        self._at: list[list[int]] = [[] for _ in range(1 << model.memory)]
        self._at[0] = list(range(gpus))
        self._order = self._rank(demand)

    @property
    def occupied(self) -> tuple[int, ...]:
        """The mask of occupied memory slices by GPU."""
        return tuple(self._occupied)

    def find(self, profile: str) -> Spot | None:
        """Where an instance of the profile goes; None when it fits nowhere. Changes nothing."""
        for mask, start in self._wishes(profile):
            gpu = self._first(mask)
            if gpu is not None:
                return Spot(gpu, start)
        return None

    def take(self, profile: str, spot: Spot) -> None:
        """Occupy what :meth:`find` gave, or any other free place; BadInput when it is not free."""
        bits = self._profiles[profile].mask(spot.start)
        if spot.start not in self._profiles[profile].starts or self._occupied[spot.gpu] & bits:
            raise BadInput("the place is not free", field="start", value=spot, remedy="ask find() again")
        self._move(spot.gpu, self._occupied[spot.gpu] | bits)

    def give_back(self, profile: str, spot: Spot) -> None:
        """Free the place of an instance."""
        bits = self._profiles[profile].mask(spot.start)
        if self._occupied[spot.gpu] & bits != bits:
            raise BadInput("nothing stands there", field="start", value=spot, remedy="give back once")
        self._move(spot.gpu, self._occupied[spot.gpu] & ~bits)

    def _wishes(self, profile: str) -> list[tuple[int, int]]:
        try:
            return self._order[profile]
        except KeyError:
            raise BadInput(
                f"{self._model.name} has no such MIG profile",
                field="profile",
                value=profile,
                remedy="use one of " + ", ".join(self._profiles),
            ) from None

    def _rank(self, demand: Mapping[str, float] | None) -> dict[str, list[tuple[int, int]]]:
        """By profile: states that have room for it, the best first, with the best start in each."""
        model = self._model
        asked = [p for p in self._profiles.values() if demand is None or demand.get(p.name, 0) > 0]
        still = potential(model, frozenset(p.name for p in asked))
        spare_empty = any(p.compute == model.compute for p in asked)
        order = {}
        for profile in self._profiles.values():
            found = []
            for mask in range(1 << model.memory):
                after = [(mask | profile.mask(s), s) for s in profile.starts if not profile.mask(s) & mask]
                if after:
                    left, start = max((still[m], -s) for m, s in after)
                    waste = still[mask] - profile.compute - left
                    opens = spare_empty and mask == 0
                    found.append((opens, waste, model.memory - mask.bit_count(), mask, -start))
            order[profile.name] = [(mask, start) for *_, mask, start in sorted(found)]
        return order

    def _first(self, mask: int) -> int | None:
        """The lowest GPU in this state; entries of GPUs that left it are dropped on the way."""
        heap = self._at[mask]
        while heap and self._occupied[heap[0]] != mask:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _move(self, gpu: int, mask: int) -> None:
        self._occupied[gpu] = mask
        heapq.heappush(self._at[mask], gpu)
