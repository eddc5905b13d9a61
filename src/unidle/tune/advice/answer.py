"""What all advice has: values by name, and a line of arithmetic for each step to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = int | float | str | None


@dataclass(frozen=True, slots=True)
class WorkedAdvice:
    """``values``: for programs. ``settings``: what to write where, as lines. ``arithmetic``: how the values follow from what was given."""

    values: Mapping[str, Value]
    arithmetic: tuple[str, ...]
    settings: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """As the commands give it with ``--json``."""
        rounded = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in self.values.items()
        }
        return {**rounded, "settings": list(self.settings), "arithmetic": list(self.arithmetic)}
