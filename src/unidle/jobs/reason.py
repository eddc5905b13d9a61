"""Why something was decided: what ``unidle explain`` prints."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision's reason: a stable ``code``, one sentence, and the figures behind it."""

    code: str
    text: str
    figures: dict[str, int | float | str] = field(default_factory=dict)
