"""Predictions and what came true. Nothing here is stored: the log has both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unidle.view.state import JobView, Prediction


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction, the truth (None as long as it is not known) and how far apart they are.

    ``error_ns`` is truth minus prediction; ``within`` says whether the truth is inside the bounds.
    """

    said: Prediction
    actual_ns: int | None
    error_ns: int | None
    within: bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """How good predictions of one kind were. ``within`` is the part inside bounds that promised ``level``.

    ``median_error_ns`` is of absolute errors, and ``median_relative`` of them over what there was to
    foretell: the wait from the prediction on, or the run time.
    """

    known: int
    median_error_ns: int
    median_relative: float
    within: float
    level: float


def checked(job: JobView) -> list[Checked]:
    """Each prediction on a job, in the order in which it was made."""
    found = []
    for said in job.predictions:
        actual = _start_ns(job, said) if said.what == "start" else _run_ns(job)
        if actual is None:
            found.append(Checked(said, None, None, None))
        else:
            error_ns = actual - said.value_ns
            found.append(Checked(said, actual, error_ns, said.low_ns <= actual <= said.high_ns))
    return found


def score(jobs: Iterable[JobView], what: str) -> Score | None:
    """How good all predictions of one kind were; None where no truth is known yet."""
    known = [c for job in jobs for c in checked(job) if c.said.what == what and c.error_ns is not None]
    if not known:
        return None
    errors = sorted(abs(c.error_ns or 0) for c in known)
    relative = sorted(abs(c.error_ns or 0) / max(_size_ns(c), 1) for c in known)
    return Score(
        len(known),
        errors[len(errors) // 2],
        relative[len(relative) // 2],
        sum(bool(c.within) for c in known) / len(known),
        sum(c.said.level_ppm for c in known) / len(known) / 1e6,
    )


def _size_ns(check: Checked) -> int:
    actual = check.actual_ns or 0
    return actual - check.said.at_ns if check.said.what == "start" else actual


def _start_ns(job: JobView, said: Prediction) -> int | None:
    """When the job was first placed after this was said."""
    return next((a.placed_ns for a in job.attempts if a.placed_ns >= said.at_ns), None)


def _run_ns(job: JobView) -> int | None:
    """Time under attempts of a job that succeeded: one that was cut short says nothing."""
    return job.run_ns(job.ended_ns or 0) if job.state == "succeeded" else None
