"""From what a source says to few marks: one global step count, and at most about 20 marks a second."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Mark = dict[str, Any]

GAP_NS = 50_000_000


class Counter:
    """One rising step count out of a source's own numbers.

    A number lower than the one before is a new epoch that counts from its start again: the count
    goes on from where it was, one usual gap later. The gap is the difference between the last two
    numbers, so that an epoch may start at 0 or at 1 and lines may come every k steps.
    """

    __slots__ = ("_gap", "_last", "base", "count")

    def __init__(self, after: int | None = None) -> None:
        self.base = 0
        self.count = after  # the last global step, None before the first
        self._last = after
        self._gap = 1

    def see(self, number: int) -> int | None:
        """The global step for ``number``; ``None`` when it says nothing new."""
        if number == self._last:
            return None
        if self._last is None or number > self._last:
            if self._last is not None:
                self._gap = number - self._last
        else:
            self.base += self._last + self._gap - number
        self._last = number
        self.count = self.base + number
        return self.count


class Thinner:
    """Holds marks back so that a flood of steps becomes about 20 marks a second and kind.

    A step that is skipped is implied by the next one's number. Spans of one kind inside the same
    gap become one span with the sum of their lengths, which ends where the last of them ended.
    Nothing is held for longer than one gap once :meth:`take` is called.
    """

    __slots__ = ("_held", "_open_ns")

    def __init__(self) -> None:
        self._held: dict[str, Mark] = {}
        self._open_ns = 0

    def add(self, mark: Mark) -> None:
        kind = mark["k"]
        if kind == "span":
            kind = "span " + mark["w"]
            before = self._held.get(kind)
            if before is not None:
                mark = {**mark, "t": max(before["t"], mark["t"] - (before["e"] - before["t"]))}
        self._held[kind] = mark

    def take(self, t_ns: int, all_of_them: bool = False) -> list[Mark]:
        """What may be written at ``t_ns``, in time order."""
        if not self._held or (t_ns < self._open_ns and not all_of_them):
            return []
        marks = sorted(self._held.values(), key=_end_ns)
        self._held = {}
        self._open_ns = t_ns + GAP_NS
        return marks


def _end_ns(mark: Mark) -> int:
    end: int = mark["e"] if "e" in mark else mark["t"]
    return end
