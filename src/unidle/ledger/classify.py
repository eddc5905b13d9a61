"""The decision function: from the facts about a moment of a slice to its one leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNSEEN: Final = "unseen"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one moment of one slice: per group a leaf of it, or None for nothing.

    ``free`` is why the slice would be free if nothing else were known; it always has an answer, so
    every moment has a leaf.
    """

    covered: bool = True
    down: str | None = None
    lost: str | None = None
    fill: str | None = None
    serve: str | None = None
    held: str | None = None
    step: str | None = None
    free: str = "no_demand"


def classify(facts: Facts) -> str:
    """The leaf of a moment. Total; the first fact in the order of ``PRECEDENCE`` wins."""
    if not facts.covered:
        return UNSEEN
    return facts.down or facts.lost or facts.fill or facts.serve or facts.held or facts.step or facts.free
