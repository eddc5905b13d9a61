"""Bad checkpoints of a job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unidle.jobs import Reason

if TYPE_CHECKING:
    from unidle.events.guard import CheckpointBad
    from unidle.view.state import View

_KEPT = 31


class BadCheckpoint(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint that was found bad at ``at_ns``, when an attempt was about to resume."""

    at_ns: int
    path: str
    because: Reason
    step: int | None = None


def checkpoint_bad(view: View, event: CheckpointBad, now: int) -> None:
    """Fold the event into its attempt."""
    job = view.jobs.open.get(event.job)
    if job is None or not 1 <= event.attempt <= len(job.attempts):
        return  # it is over: nothing goes on from it
    attempt = job.attempts[event.attempt - 1]
    attempt.bad = [*attempt.bad[-_KEPT:], BadCheckpoint(now, event.path, event.because, event.step)]
