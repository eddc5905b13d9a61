"""Events of the profiler, applied to the view. Part of the fold.

Events come in the order of the log. A window that overlaps one that is known already is left out, so that one that
was reported twice counts once.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from unidle.events import types as ev
from unidle.ledger.profiled_causes import Look, coarser, fitted
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView, Watched
from unidle.view.state import View

LOOKS_KEPT: Final = 4096  # of a rank: three days at one a minute
WATCHED_KEPT: Final = 16
STEPS_KEPT: Final = 64  # of a window, the latest


def budget_measured(view: View, event: ev.BudgetMeasured, _now: int) -> None:
    attempt = _attempt(view, event.job, event.attempt)
    if attempt is None:
        return
    for number, parts in event.ranks.items():
        if 0 <= number < len(attempt.ranks):
            _look(attempt.ranks[number], event.start_ns, event.end_ns, parts)


def steps_watched(view: View, event: ev.StepsWatched, _now: int) -> None:
    attempt = _attempt(view, event.job, event.attempt)
    if attempt is None:
        return
    for number, times in event.ranks.items():
        if 0 <= number < len(attempt.ranks):
            _watch(attempt.ranks[number], event.start_ns, event.end_ns, times)
    view.touch(event.job)


def profiler_set(view: View, event: ev.ProfilerSet, _now: int) -> None:
    view.profiler = event.why_not


def _attempt(view: View, job: str, number: int) -> AttemptView | None:
    """The attempt, as long as the books of its job are open: a look may end after that."""
    found: JobView | None = view.jobs.open.get(job)
    if found is None or not 1 <= number <= len(found.attempts):
        return None
    return found.attempts[number - 1]


def _look(rank: RankView, start_ns: int, end_ns: int, parts: dict[str, int]) -> None:
    if start_ns >= end_ns:
        return
    at = bisect_right(rank.looks, start_ns, key=lambda look: look.start_ns)
    if at and rank.looks[at - 1].end_ns > start_ns:
        return
    if at < len(rank.looks) and rank.looks[at].start_ns < end_ns:
        return
    rank.looks.insert(at, Look(start_ns, end_ns, fitted(parts, end_ns - start_ns)))
    if len(rank.looks) > LOOKS_KEPT:
        rank.looks = coarser(rank.looks)[-LOOKS_KEPT:]  # those far apart are not put together


def _watch(rank: RankView, start_ns: int, end_ns: int, times: tuple[int, ...]) -> None:
    if start_ns >= end_ns or (rank.watched and rank.watched[-1].end_ns > start_ns):
        return
    inside = tuple(sorted(t for t in times if start_ns <= t <= end_ns))
    rank.watched = [*rank.watched[-WATCHED_KEPT + 1 :], Watched(start_ns, end_ns, inside[-STEPS_KEPT:])]
    if inside:
        rank.worked_ns = max(rank.worked_ns, inside[-1])
        if rank.watched_ns is None:
            rank.watched_ns = inside[0]
