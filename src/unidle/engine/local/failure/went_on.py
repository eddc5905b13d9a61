"""Whether a program went on after a traceback that it printed: then something else ended it."""

from __future__ import annotations

import re

AT_END = 40  # lines after an exception that ended a program, at most
_FEW = 5  # other lines: an excuse, a farewell
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch|update)s?\b\W{0,3}\d|\bloss\b\W{0,3}\d", re.IGNORECASE
).search
_BAR = re.compile(r"\d%\||\d ?(?:it|s)/(?:it|s)\b").search
_FAREWELL = re.compile(r"\s*wandb: ").match  # a summary when the process ends, whatever ended it


def went_on(at: int, lines: list[str], both: list[str], code: int) -> bool:
    """Whether the exception at ``lines[at]`` was handled, by what was printed after it.

    ``both`` are the lines of the two streams as they came. Python ends with code 1 after an unhandled
    exception. With that code, the exception counts as handled only if its stream has later lines, and if training
    or other output continued before the last of them.
    """
    own = [line for line in lines[at + 1 :] if line.strip() and not _FAREWELL(line)]
    if code == 1:
        own = [line for line in own if not _BAR(line)]  # a bar is drawn once more when it is closed
    after = [line for line in _after(lines[at], both) if not _FAREWELL(line)]
    if code != 1:
        others = _without(after, own)
        return len(own) > AT_END or len(others) > _FEW or any(_STEP(one) or _BAR(one) for one in own + others)
    if not own:
        return False
    last = len(after) - 1 - after[::-1].index(own[-1]) if own[-1] in after else 0
    between = [line for line in _without(after[:last], own) if not _BAR(line)]
    return len(between) > _FEW or any(map(_STEP, between)) or any(map(_STEP, own[:-1]))


def _after(line: str, both: list[str]) -> list[str]:
    """What came after the last such line."""
    for k in range(len(both) - 1, -1, -1):
        if both[k] == line:
            return [one for one in both[k + 1 :] if one.strip()]
    return []


def _without(lines: list[str], taken: list[str]) -> list[str]:
    """Without those of ``taken``, each as often as it is there."""
    left: dict[str, int] = {}
    for line in taken:
        left[line] = left.get(line, 0) + 1
    found = []
    for line in lines:
        if left.get(line, 0):
            left[line] -= 1
        else:
            found.append(line)
    return found
