"""Where one rank of a gang runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank ``rank`` runs on ``node`` with the slices ``slices`` (ids)."""

    rank: int
    node: str
    slices: tuple[str, ...]
