"""The latest changes of a view, for readers that follow it instead of reading all of it. Never stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_KEPT: Final = 8_192  # readers follow every decision


@dataclass(slots=True)
class Changes(Generic[T]):
    """A list of the latest changes; readers keep how far they read."""

    _latest: list[T] = field(default_factory=list)
    _forgotten: int = 0  # changes before them

    def add(self, change: T) -> None:
        if len(self._latest) >= _KEPT:
            self._forgotten += len(self._latest)
            self._latest.clear()
        self._latest.append(change)

    def since(self, count: int) -> tuple[int, list[T] | None]:
        """How many changes there were in all, and those after the first ``count``; None if they are forgotten."""
        now = self._forgotten + len(self._latest)
        return now, self._latest[count - self._forgotten :] if count >= self._forgotten else None
