"""A failure in words: what its code or signal means, and what became of the other ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

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
