"""Attempts that hold devices, as the idle policy evaluates them."""

from __future__ import annotations

from itertools import pairwise

from unidle.fleet.policies import IdleTerms
from unidle.share.idle import ActiveNotice, AttemptId, Evidence, IdleHolder
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View


def holder_of(view: View, job: JobView, attempt: AttemptView, now_ns: int) -> IdleHolder:
    """The live ``attempt`` of the job at ``now_ns``."""
    use, notice, book = attempt.use, attempt.notice, view.book
    worked_ns = max((rank.worked_ns for rank in attempt.ranks), default=0)
    sign_ns = now_ns if use.use == "busy" else max(worked_ns, use.busy_ns)
    since_ns = max(attempt.placed_ns, sign_ns)
    if use.use == "quiet" and not sign_ns:
        since_ns = max(since_ns, use.quiet_ns)  # what it did before it was measured, is unknown
    said = None
    if notice is not None:
        if sign_ns <= notice.since_ns:
            since_ns = notice.since_ns
        begin_ns = max(notice.at_ns, use.at_ns)  # under a new controller it is counted again
        said = ActiveNotice(notice.since_ns, notice.notice_ns, book.watched_ns(begin_ns, now_ns))
    numbers = [book.index(piece) for place in attempt.places for piece in place.slices]
    return IdleHolder(
        AttemptId(job.id, attempt.number), job.spec.queue, since_ns, book.watched_ns(since_ns, now_ns), sign_ns,
        len(numbers), sum(book.slices[k].share_ppm for k in numbers), _evidence(attempt, worked_ns), said,
        _pace_ns(attempt) if use.use == "unknown" else 0, use.text,
    )  # fmt: skip


def terms_of(view: View, job: JobView) -> IdleTerms | None:
    """The terms of the fleet's policy for the job; None if it is exempt."""
    fleet = view.fleet
    parents = {queue.name: queue.parent for queue in fleet.queues}
    return fleet.idle.terms_of(job.spec.queue, parents, idle_ok=job.spec.idle_ok)


def _pace_ns(attempt: AttemptView) -> int:
    """The longest of the last times from step to step, of any rank; of few steps also that to the first."""
    longest_ns = 0
    for rank in attempt.ranks:
        times = rank.step_ns[-65:]
        if 0 < len(times) < 3:
            times = [attempt.placed_ns, *times]
        longest_ns = max([longest_ns, *(b - a for a, b in pairwise(times))])
    return longest_ns


def _evidence(attempt: AttemptView, worked_ns: int) -> Evidence | None:
    if attempt.use.use == "quiet":
        return "utilisation"
    if attempt.use.use == "unknown":
        return "steps" if worked_ns and not any(rank.guessed for rank in attempt.ranks) else "none"
    return None
