"""Speculation by an operation journal: what was done can be undone, step by step, to any mark."""

from __future__ import annotations

from collections.abc import Callable


class Journal:
    """Holds how to undo each operation, in order. Nothing is copied."""

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._undo)

    def note(self, undo: Callable[[], None]) -> None:
        """An operation was done, and this undoes it."""
        self._undo.append(undo)

    def mark(self) -> int:
        """The present, to come back to."""
        return len(self._undo)

    def back_to(self, mark: int) -> None:
        """Undo what was done since the mark, the last first."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def settle(self) -> None:
        """What was done stays; marks taken before are void."""
        self._undo.clear()
