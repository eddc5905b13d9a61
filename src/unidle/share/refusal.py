"""The answer when a wish cannot be granted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unidle.jobs import Reason

CUT_REFUSED: Final = "cut_refused"
"""Code of the reason why an attempt ended for which the machine would not make a part of a device."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is changed; ``because`` has the obstacle, and what would help."""

    because: Reason


def refused(code: str, text: str, **figures: float | str) -> Refused:
    """A refusal with the reason's figures as keywords."""
    return Refused(Reason(code, text, figures))
