"""How often gangs like this one fail, and how long they take to come back, by what the log has seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from unidle.checkpoint.interval import observed_mttf
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

_S: Final = 1e9
_PRIOR_S: Final = 86_400.0  # a gang of which nothing is known fails once a day
_USUAL_RESTART_S: Final = 60.0


class Rates(NamedTuple):
    """Of one gang: the mean time to its next failure, and the time from a failure to the first step after it."""

    mttf_s: float
    restart_s: float


def rates_of(view: View, job: JobView) -> Rates:
    """What to expect of a gang of this job: by all attempts in the store, and by this job's own restarts.

    Failures are taken to be as many per device and second in all gangs.
    """
    mttf_s = observed_mttf(view.failures, view.device_ns / _S / max(job.spec.devices, 1), _PRIOR_S)
    pauses_s = list(_pauses_s(job.attempts)) or [_USUAL_RESTART_S]
    return Rates(mttf_s, sum(pauses_s) / len(pauses_s))


def _pauses_s(attempts: list[AttemptView]) -> Iterable[float]:
    for before, after in pairwise(attempts):
        first_ns = min((r.step_ns[0] for r in after.ranks if r.step_ns), default=None)
        ends = [r.end_ns for r in before.ranks if r.failed and r.end_ns is not None]
        if before.outcome == "failed" and first_ns is not None and ends:
            yield max((first_ns - min(ends)) / _S, 0.0)
