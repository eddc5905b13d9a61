"""What a stop costs a running job: measured where its log shows it, else assumed. Pure."""

from __future__ import annotations

from typing import Final

from unidle.view.jobs import AttemptView, JobView

RESTART_NS: Final = 30_000_000_000  # until a stopped job is at work again, where nothing was measured


def restart_ns(job: JobView) -> int:
    """How long a job is away from its work by a stop: its last time to leave, and to begin again, that were seen."""
    begin = next((ns for a in reversed(job.attempts) if (ns := begin_ns(a)) is not None), None)
    return RESTART_NS if begin is None else begin + next(map(_leave_ns, _stopped(job)), 0)


def begin_ns(attempt: AttemptView) -> int | None:
    """From its placement until it began its first step; None before that was seen."""
    return None if attempt.begun_ns is None else max(attempt.begun_ns - attempt.placed_ns, 0)


def settled_ns(job: JobView) -> int:
    """From when on a running job may be moved: once it worked for as long as its last move cost it. 0: it was not moved."""
    for moved, after in zip(job.attempts[-2::-1], job.attempts[:0:-1], strict=True):
        if moved.stop is not None and moved.stop.why == "moved":
            since_ns = max(moved.placed_ns, moved.saved_ns or 0)  # what was done since then is done again
            began_ns = begin_ns(after)
            begun_ns = after.placed_ns + (restart_ns(job) if began_ns is None else began_ns)
            return begun_ns + max(begun_ns - since_ns, 0)
    return 0


def _stopped(job: JobView) -> list[AttemptView]:
    """Its attempts that were asked to make room, the latest first."""
    return [
        a
        for a in reversed(job.attempts)
        if a.stop is not None and a.stop.why in ("preempted", "moved") and not a.live
    ]


def _leave_ns(attempt: AttemptView) -> int:
    return max((attempt.ended_ns or 0) - (attempt.stop_ns or 0), 0)
