"""Reduces the readings of a source to few marks: one global step count, and at most about 20 marks a second."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Mark = dict[str, Any]

GAP_NS = 50_000_000
LATE_LINES = 8
_REDONE_LINES = 3  # fewer are of a process that is late


class StepCounter:
    """One rising step count out of a source's own numbers.

    A number lower than the one before is a new epoch that counts from its start again: the count
    continues from where it was, one usual gap later. The gap is the difference between the last two
    numbers, so that an epoch may start at 0 or at 1 and lines may come every k steps.
    """

    __slots__ = (
        "_again",
        "_behind",
        "_epoch",
        "_gap",
        "_last",
        "_low",
        "_redone",
        "_start",
        "_twice",
        "base",
        "count",
    )

    def __init__(self, after: int | None = None) -> None:
        self.base = 0
        self.count = after  # the last global step, None before the first
        self._last = after
        self._gap = 1
        self._start = after  # the number with which the epoch began
        self._epoch: int | None = None
        self._twice = False  # whether a number came twice: several processes print
        self._behind = 0  # lines in a row whose number was passed before
        self._low: tuple[int, int] = (-1, -1)  # epoch and number of the last of them
        self._again = 0  # how many of them grow from one to the next
        self._redone = 0

    @property
    def redone(self) -> int:
        """Lines of steps that were done once more, from a checkpoint on: each step counts once."""
        return self._redone + (self._again if self._again >= _REDONE_LINES else 0)

    def see(self, number: int) -> int | None:
        """The global step for ``number``; ``None`` if it is the same as the last number."""
        if number == self._last:
            return None
        if self._last is None or number > self._last:
            if self._last is not None:
                self._gap = number - self._last
        else:
            self.base += self._last + self._gap - number
            self._start = number
        self._last = number
        self.count = self.base + number
        return self.count

    def see_line(
        self, number: int, epoch: int | None = None, total: int | None = None, first_epoch: int | None = None
    ) -> int | None:
        """As :meth:`see`, for lines that may name their epoch (of ``total`` steps) and may come from several processes.

        Where epochs count from ``first_epoch``, those before the first one seen count as well.
        """
        last, before = self._last, self._epoch
        if epoch is not None and before is None:
            self._epoch = epoch
            if total and first_epoch is not None and last is None:
                before_it = max(epoch - first_epoch, 0)
                self.base = (
                    before_it * total if before_it > 1 or first_epoch else 0
                )  # the first may be 1 for 0
        elif epoch is not None and before is not None and epoch > before:
            return self._next_epoch(number, epoch, epoch - before, total)
        if last is None or (number > last and epoch == self._epoch):
            self._start = number if last is None else self._start
            self._caught_up()
            return self.see(number)
        if number == last and epoch == self._epoch:
            self._twice = True
            self._again += self._again > 0
            self._behind = 0
            return None
        if self._is_late(number, epoch):
            return None
        self._caught_up()
        self._epoch = epoch
        self.base += last + self._gap - number
        self._last = self._start = number
        self.count = self.base + number
        return self.count

    def _caught_up(self) -> None:
        """A number is new: those before it that were not were steps done again, or a process that was late for a line or two."""
        if self._again >= _REDONE_LINES:
            self._redone += self._again
        self._behind = self._again = 0

    def _next_epoch(self, number: int, epoch: int, ahead: int, total: int | None) -> int | None:
        self._epoch = epoch
        self._caught_up()
        if self._last is None or number > self._last:
            return self.see(number)  # one count over all epochs
        self.base += total * ahead if total else self._last + self._gap - number
        self._last = self._start = number
        count = self.base + number
        if self.count is not None and count <= self.count:
            return None
        self.count = count
        return count

    def _is_late(self, number: int, epoch: int | None) -> bool:
        """Whether a number that was passed is of a process that is late, or of a step done again; if not, the count begins again."""
        low = (-1 if epoch is None else epoch, number)
        self._again = self._again + 1 if self._behind and low > self._low else 1
        self._behind += 1
        self._low = low
        ahead = 0 if self._last is None else self._last - number
        far = ahead >= 3 * self._gap
        begins = self._start is not None and number <= self._start + (self._gap if far else 0)
        begins = begins and (epoch is None or epoch != self._epoch)
        if begins and (far or not self._twice):
            return False
        patience = (
            LATE_LINES if begins or self._again < self._behind else LATE_LINES + 2 * self._to_redo(ahead)
        )
        return (self._twice or epoch is not None or not begins) and self._behind < patience

    def _to_redo(self, ahead: int) -> int:
        """How many lines it takes, from the last one on and from what it was when it went back, to where the count is."""
        return self._behind + max(ahead, 0) // max(self._gap, 1)


class MarkThinner:
    """Holds marks back so that a flood of steps becomes about 20 marks a second and kind.

    A step that is skipped is implied by the next one's number; the first one, which no other implies, is
    never skipped. Spans of one kind inside the same gap become one span with the sum of their lengths,
    which ends where the last of them ended. Nothing is held for longer than one gap once :meth:`take` is called.
    """

    __slots__ = ("_begun", "_first", "_held", "_late", "_open_ns")

    def __init__(self) -> None:
        self._begun = False  # whether a step was added
        self._first: list[Mark] = []
        self._held: dict[str, Mark] = {}
        self._late: list[Mark] = []
        self._open_ns = 0

    def add_late(self, marks: list[Mark]) -> None:
        """Steps that were known to be such only after some more: each has waited for long enough."""
        for mark in marks[:-1]:
            if not self._late or mark["t"] >= self._late[-1]["t"] + GAP_NS:
                self._late.append(mark)
        self._late += marks[-1:]
        self._begun = self._begun or bool(marks)

    def add(self, mark: Mark) -> None:
        kind = mark["k"]
        if kind == "step" and not self._begun:
            self._begun = True
            self._first.append(mark)
            return
        if kind == "span":
            kind = "span " + mark["w"]
            before = self._held.get(kind)
            if before is not None:
                mark = {**mark, "t": max(before["t"], mark["t"] - (before["e"] - before["t"]))}
        self._held[kind] = mark

    def take(self, t_ns: int, all_of_them: bool = False) -> list[Mark]:
        """What may be written at ``t_ns``, in time order."""
        marks = self._first + self._late
        if self._held and (t_ns >= self._open_ns or all_of_them):
            marks += sorted(self._held.values(), key=_end_ns)
            self._held = {}
            self._open_ns = t_ns + GAP_NS
        elif self._first:
            self._open_ns = t_ns + GAP_NS
        self._first, self._late = [], []
        return marks


def _end_ns(mark: Mark) -> int:
    end: int = mark["e"] if "e" in mark else mark["t"]
    return end
