"""A failure in words: what its code or signal means, and what became of the other ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unidle.jobs import Failure
from unidle.words import listed, plural


def meaning_in_words(failure: Failure) -> str:
    """``SIGSEGV: it used memory that is not its own``; empty where the code or signal has no agreed meaning."""
    return f"{failure.signal or f'exit code {failure.code}'}: {failure.meaning}" if failure.meaning else ""


def others_in_words(because_of: Sequence[int], same: Sequence[int] = (), unsure: Sequence[int] = ()) -> str:
    """The other ranks that failed: ``ranks 0 and 2 failed because of it``; empty if there are none."""
    parts = [f"{_ranks(same)} failed with the same error"] if same else []
    if unsure:
        parts.append(f"{_ranks(unsure)} may have failed first: the hosts' clocks are known no better")
    if because_of:
        parts.append(f"{_ranks(because_of)} failed because of it")
    return "; ".join(parts)


def _ranks(numbers: Sequence[int]) -> str:
    shown = [str(k) for k in numbers[:8]]
    if len(numbers) > 8:
        shown = [*shown[:7], f"{len(numbers) - 7} more"]
    return f"{plural(len(numbers), 'rank')} {listed(shown)}"


def failure_lines(failure: Mapping[str, Any]) -> list[str]:
    """Why an attempt failed (``unidle.jobs.Failure`` as plain values): the error, the last lines, what to do next."""
    lines = [failure["text"], *(f"  | {line}" for line in failure["lines"])]
    ended = failure["signal"] or f"exit code {failure['code']}"
    more = (
        failure["meaning"] and f"{ended}: {failure['meaning']}",
        others_in_words(failure["because_of"], failure["same"], failure["unsure"]),
        failure["help"],
    )
    lines += [f"  {text}" for text in more if text]
    return [*lines, f"  next: {failure['next']}"] if failure["next"] else lines
