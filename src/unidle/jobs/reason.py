"""Why something was decided: what ``unidle explain`` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NEVER_BY_QUEUE: Final = frozenset({"over_limit", "no_queue"})
NEVER: Final = NEVER_BY_QUEUE | {"never_fits"}
"""Codes of jobs that wait and that no state of the fleet and its queues lets start."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision's reason: a stable ``code``, one sentence, and the figures behind it."""

    code: str
    text: str
    figures: dict[str, int | float | str] = field(default_factory=dict)
