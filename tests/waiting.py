"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float = 60.0, what: str = "") -> T:
    """Call ``predicate`` until its answer is true and return that answer.

    Raises :class:`AssertionError`, naming ``what`` was waited for, after ``timeout_s``. A busy machine may need ten times as long
    as an idle one, and a limit costs nothing when it is not reached: give less only where the end of the wait is the result.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.002
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"still waiting after {timeout_s} s for {what or predicate}; last answer: {answer!r}"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)
    return answer
