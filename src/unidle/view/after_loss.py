"""Events that follow a hole in the log: whether each fits what is left, and what must have happened in between.

A log without a hole never comes here: there, an event that does not fit is damage. Pure, as all of the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.jobs.state import TRANSITIONS
from unidle.view import fold_jobs as of_jobs
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import pass_gaps
from unidle.view.state import View

WHY: Final = Reason("events_lost", "its end stood in a part of the log that is lost")
_WAITING: Final = ("queued", "restarting")


def fits(view: View, event: ev.Event, now: int) -> bool:
    """Whether the event can be applied; what it presupposes, and was lost, is applied first."""
    if isinstance(event, ev.JobsRemoved | ev.KeepSet):
        return all(job in view.jobs for job in event.jobs)
    if isinstance(event, ev.DeviceCut):
        return _can_be_cut(view, event)
    name = getattr(event, "job", None)
    if not isinstance(name, str) or isinstance(event, ev.JobSubmitted | ev.EventsLost):
        return True
    if name not in view.jobs:
        return not name and not isinstance(event, tuple(_OF_JOBS))
    job = view.jobs.open.get(name) or view.jobs[name]
    rule = _OF_JOBS.get(type(event))
    if rule is not None:
        return rule(view, job, event, now)
    number = getattr(event, "attempt", 0)
    return isinstance(event, ev.Predicted) or number <= len(job.attempts)


def _can_be_cut(view: View, event: ev.DeviceCut) -> bool:
    from unidle.fleet import WHOLE_PPM, slices_of
    from unidle.view.partitions import recut

    before = view.cuttable(event.device)
    if before is None:
        return False
    old, new = slices_of(before), {piece.id: piece for piece in slices_of(recut(before, event.cut))}
    whole = sum(piece.share_ppm for piece in new.values()) == WHOLE_PPM
    return whole and all(
        view.book.knows(piece.id) and (new.get(piece.id) == piece or not view.book.held[view.book.index(piece.id)])
        for piece in old
    )  # fmt: skip


def _placed(view: View, job: JobView, event: ev.AttemptPlaced, now: int) -> bool:
    wanted = [s for place in event.places for s in place.slices]
    if job.terminal or event.attempt <= len(job.attempts) or not all(map(view.book.knows, wanted)):
        return False
    if any(view.book.slices[k].gone_ns is not None for k in view.book.indexes(wanted)):
        return False
    _end_live(view, job, now, "failed")
    for other in sorted(_holding(view, set(wanted))):
        _end_live(view, view.jobs.open[other], now, "failed")
    if job.state not in _WAITING:
        of_jobs.requeued(view, ev.Requeued(job.id, WHY), now)
    while len(job.attempts) + 1 < event.attempt:  # attempts keep their numbers
        lost = AttemptView(len(job.attempts) + 1, now, (), WHY, [], ended_ns=now, outcome="failed", why=WHY)
        job.attempts.append(lost)
    return True


def _holding(view: View, slices: set[str]) -> Iterable[str]:
    return [
        name
        for name in view.live
        if (attempt := view.jobs.open[name].attempts[-1]).yielded_ns is None
        and any(not slices.isdisjoint(place.slices) for place in attempt.places)
    ]


def _end_live(view: View, job: JobView, now: int, outcome: ev.Outcome) -> None:
    """The end of the job's attempt was lost."""
    if job.live is not None:
        for rank in job.attempts[-1].ranks:
            pass_gaps(rank)
        of_jobs.attempt_ended(view, ev.AttemptEnded(job.id, len(job.attempts), outcome, WHY), now)


def _of_rank(_view: View, job: JobView, event: ev.RankSaw, _now: int) -> bool:
    return 1 <= event.attempt <= len(job.attempts) and event.rank < len(job.attempts[event.attempt - 1].ranks)


def _of_ranks(_view: View, job: JobView, event: ev.RanksSilent, _now: int) -> bool:
    known = 1 <= event.attempt <= len(job.attempts)
    return known and all(0 <= k < len(job.attempts[event.attempt - 1].ranks) for k in event.ranks)


def _landed(view: View, job: JobView, event: ev.RankLanded, _now: int) -> bool:
    from unidle.view.fold_hosts import may_land

    if not 1 <= event.attempt <= len(job.attempts):
        return False
    places = job.attempts[event.attempt - 1].places
    return 0 <= event.rank < len(places) and may_land(view, places[event.rank].slices, event.slices)


def _attempt_ended(view: View, job: JobView, event: ev.AttemptEnded, _now: int) -> bool:
    if job.live is None or event.attempt != len(job.attempts) or job.id not in view.live:
        return False
    for rank in job.attempts[-1].ranks:
        pass_gaps(rank)
    return True


def _waits_again(view: View, job: JobView, _event: ev.Event, now: int) -> bool:
    if job.terminal or not job.attempts or job.state in _WAITING:
        return False
    _end_live(view, job, now, "failed")
    return True


def _requeued(view: View, job: JobView, _event: ev.Requeued, now: int) -> bool:
    _end_live(view, job, now, "preempted")
    return not job.terminal


def _ended(view: View, job: JobView, event: ev.JobEnded, now: int) -> bool:
    if job.terminal:
        return False
    _end_live(view, job, now, event.state)
    if event.state not in TRANSITIONS[job.state] and job.state in _WAITING:
        of_jobs.set_state(view, job, "starting")  # its attempt was lost
    return True


def _judged(_view: View, job: JobView, _event: ev.JobJudged, _now: int) -> bool:
    return job.state in _WAITING


def _open(_view: View, job: JobView, _event: ev.Event, _now: int) -> bool:
    return not job.terminal


_OF_JOBS: Final[dict[type, Callable[[View, JobView, Any, int], bool]]] = {
    ev.AttemptPlaced: _placed,
    ev.RankSaw: _of_rank,
    ev.RanksSilent: _of_ranks,
    ev.RankLanded: _landed,
    ev.AttemptEnded: _attempt_ended,
    ev.RetryPlanned: _waits_again,
    ev.Requeued: _requeued,
    ev.JobEnded: _ended,
    ev.JobJudged: _judged,
    ev.Resized: _open,
}
