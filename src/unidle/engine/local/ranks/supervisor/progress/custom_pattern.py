"""A job's own progress pattern, and what keeps a bad one from holding up its rank."""

from __future__ import annotations

import re
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .step_forms import Reading

LINE_CHARS = 4096
_BUDGET_S = 0.25
_PATTERN_CHARS = 2000


def validate_pattern(pattern: str) -> str | None:
    """What is wrong with a job's progress pattern, in words; ``None`` when it can be used."""
    if not isinstance(pattern, str) or not pattern:
        return "the pattern is empty"
    if len(pattern) > _PATTERN_CHARS:
        return f"the pattern is longer than {_PATTERN_CHARS} characters"
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a regular expression: {error}"
    if compiled.search("") is not None:
        return "the pattern matches an empty line, so every line would be a step"
    return None


class CustomPattern:
    """Finds steps by the group ``step``, else by the first group, else by counting matches.

    Groups ``epoch`` and ``total`` (how many steps an epoch has) are read where the pattern has them. With ``total``
    alone the epoch is that of the heading before the line (see ``forms.Headings``).
    """

    def __init__(self, pattern: str) -> None:
        compiled = re.compile(pattern)
        self._search = compiled.search
        self._group: str | int = "step" if "step" in compiled.groupindex else 1
        self._others = [name if name in compiled.groupindex else None for name in ("epoch", "total")]
        self.counts_matches = compiled.groups == 0
        self.counts_epochs = self._others[0] is not None
        self._headings = None
        if self._others == [None, "total"]:
            from .step_forms import Headings  # few patterns need it

            self._headings = Headings()
        self.too_slow = False
        self._matches = 0

    def steps(self, block: bytes) -> list[Reading]:
        """The steps in a block of lines, in order, each with its epoch and the steps of that epoch, if the pattern finds them.

        A pattern that needs more than 0.25 s of processor time for one block is not used again
        (``too_slow``): the re module polls for signals, so a timer can interrupt it.
        """
        found: list[Reading] = []
        if self.too_slow:
            return found
        try:
            before = signal.signal(signal.SIGVTALRM, _interrupt)
        except ValueError:  # not the main thread, which alone gets signals
            self._collect(block, found)
            return found
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, _BUDGET_S)
            try:
                self._collect(block, found)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _OverBudget:
            self.too_slow = True
        finally:
            signal.signal(signal.SIGVTALRM, before)
        return found

    def _collect(self, block: bytes, found: list[Reading]) -> None:
        search = self._search
        for line in block.decode("utf-8", "replace").split("\n"):
            match = search(line, 0, LINE_CHARS) if line else None
            if match is None:
                if self._headings is not None and "poch" in line[:LINE_CHARS].lower():
                    self._headings.see(line.encode())
                continue
            if self.counts_matches:
                self._matches += 1
                found.append((self._matches, None, None))
                continue
            step = _integer(match[self._group])
            if step is not None:
                epoch, total = (None if name is None else _integer(match[name]) for name in self._others)
                reading = (step, epoch, total)
                if self._headings is not None:
                    headed = self._headings.reading(step, total)
                    if headed is None:
                        continue
                    reading = headed
                found.append(reading)


class _OverBudget(Exception):
    """The timer of :meth:`CustomPattern.steps` went off."""


def _interrupt(_signum: int, _frame: object) -> None:
    raise _OverBudget


def _integer(text: str | None) -> int | None:
    digits = (text or "").replace(",", "").replace("_", "").strip()
    # int() takes other scripts' digits too, which is fine; it must not take a number of megabytes
    return int(digits) if digits.isdecimal() and len(digits) <= 18 else None
