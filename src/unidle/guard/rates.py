"""How often gangs like this one fail, and how long they take to come back, by what the log has seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Final, NamedTuple

from unidle.checkpoint.interval import observed_mttf
from unidle.guard.lifecycle import cannot_start, find_culprit
from unidle.view.state import AttemptView, JobView, View

_S: Final = 1e9
_PRIOR_S: Final = 86_400.0  # a gang of which nothing is known fails once a day
_LOOKED_BACK: Final = 200
_USUAL_RESTART_S: Final = 60.0


class Rates(NamedTuple):
    """Of one gang: the mean time to its next failure, and the time from a failure to the first step after it."""

    mttf_s: float
    restart_s: float


def rates_of(view: View, job: JobView) -> Rates:
    """What to expect of a gang of this job: by its own attempts, and by those of the last jobs of the store.

    Failures are taken to be as many per device and second in all gangs.
    """
    failures, device_s, pauses_s = 0, 0.0, [_USUAL_RESTART_S]
    for one in _last_jobs(view, job):
        for attempt in one.attempts:
            seconds = ((attempt.ended_ns or view.time_ns) - attempt.placed_ns) / _S
            device_s += seconds * len(attempt.places) * one.spec.devices_per_rank
            failures += _failed(attempt)
        if one.id == job.id:
            pauses_s = list(_pauses_s(one.attempts)) or pauses_s
    mttf_s = observed_mttf(failures, device_s / job.spec.devices, _PRIOR_S)
    return Rates(mttf_s, sum(pauses_s) / len(pauses_s))


def _last_jobs(view: View, job: JobView) -> Iterable[JobView]:
    yield job
    for name in islice(reversed(list(view.jobs)), _LOOKED_BACK):
        if name != job.id:
            yield view.jobs[name]


def _failed(attempt: AttemptView) -> bool:
    """Whether the attempt failed by what may happen to any gang, not because its command is wrong."""
    if attempt.outcome != "failed":
        return False
    culprit = find_culprit(attempt)
    return culprit is None or not cannot_start(attempt.ranks[culprit])


def _pauses_s(attempts: list[AttemptView]) -> Iterable[float]:
    for before, after in pairwise(attempts):
        first_ns = min((r.step_ns[0] for r in after.ranks if r.step_ns), default=None)
        ends = [r.end_ns for r in before.ranks if r.failed and r.end_ns is not None]
        if before.outcome == "failed" and first_ns is not None and ends:
            yield max((first_ns - min(ends)) / _S, 0.0)
