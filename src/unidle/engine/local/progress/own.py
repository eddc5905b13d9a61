"""A job's own progress pattern, and what keeps a bad one from holding up its rank."""

from __future__ import annotations

import re
import signal

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


class OwnPattern:
    """Finds steps by the group ``step``, else by the first group, else by counting matches."""

    def __init__(self, pattern: str) -> None:
        compiled = re.compile(pattern)
        self._search = compiled.search
        self._group: str | int = "step" if "step" in compiled.groupindex else 1
        self.counts_matches = compiled.groups == 0
        self.too_slow = False
        self._matches = 0

    def steps(self, block: bytes) -> list[int]:
        """The steps in a block of lines, in order.

        A pattern that needs more than 0.25 s of processor time for one block is not used again
        (``too_slow``): the re module polls for signals, so a timer can interrupt it.
        """
        found: list[int] = []
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

    def _collect(self, block: bytes, found: list[int]) -> None:
        search = self._search
        for line in block.decode("utf-8", "replace").split("\n"):
            match = search(line, 0, LINE_CHARS) if line else None
            if match is None:
                continue
            if self.counts_matches:
                self._matches += 1
                found.append(self._matches)
                continue
            step = _integer(match[self._group])
            if step is not None:
                found.append(step)


class _OverBudget(Exception):
    """The timer of :meth:`OwnPattern.steps` went off."""


def _interrupt(_signum: int, _frame: object) -> None:
    raise _OverBudget


def _integer(text: str | None) -> int | None:
    digits = (text or "").replace(",", "").replace("_", "").strip()
    # int() takes other scripts' digits too, which is fine; it must not take a number of megabytes
    return int(digits) if digits.isdecimal() and len(digits) <= 18 else None
