"""Predictions and what came true. Nothing here is stored: the log has both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unidle.predict.by_gpu_model import price_of
from unidle.view.jobs import JobView
from unidle.view.records import Prediction
from unidle.view.speeds import attempt_run, slices_under
from unidle.view.state import View

_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction, the actual value (None while unknown) and the difference.

    ``error_ns`` is the actual value minus the prediction; ``within`` is whether the actual value is inside the
    bounds. For a cost both are in ``actual_micro`` and ``error_micro``, in millionths of money.
    """

    said: Prediction
    actual_ns: int | None = None
    error_ns: int | None = None
    within: bool | None = None
    actual_micro: int | None = None
    error_micro: int | None = None

    @property
    def actual(self) -> int | None:
        """The actual value, in the unit of the prediction."""
        return self.actual_micro if self.said.what == "cost" else self.actual_ns

    @property
    def error(self) -> int | None:
        return self.error_micro if self.said.what == "cost" else self.error_ns


@dataclass(frozen=True, slots=True)
class Score:
    """How good predictions of one kind were. ``within`` is the part inside bounds that promised ``level``.

    ``median_error_ns`` is of absolute errors (of costs in millionths of money), and ``median_relative`` of them
    over what there was to predict: the wait from the prediction on, the time, or the cost.
    """

    known: int
    median_error_ns: int
    median_relative: float
    within: float
    level: float


def checked(job: JobView, view: View | None = None) -> list[Checked]:
    """Each prediction on a job, in the order in which it was made; without the view, times only."""
    found = []
    for said in job.predictions:
        actual = _actual(job, said, view)
        if actual is None:
            found.append(Checked(said))
            continue
        value, low, high = said.bounds
        within = low <= actual <= high
        if said.what == "cost":
            found.append(Checked(said, within=within, actual_micro=actual, error_micro=actual - value))
        else:
            found.append(Checked(said, actual, actual - value, within))
    return found


def score(jobs: Iterable[JobView], what: str, view: View | None = None) -> Score | None:
    """How good all predictions of one kind were; None where no truth is known yet."""
    known = [c for job in jobs for c in checked(job, view) if c.said.what == what and c.error is not None]
    if not known:
        return None
    errors = sorted(abs(c.error or 0) for c in known)
    relative = sorted(abs(c.error or 0) / max(_size(c), 1) for c in known)
    return Score(
        len(known),
        errors[len(errors) // 2],
        relative[len(relative) // 2],
        sum(bool(c.within) for c in known) / len(known),
        sum(c.said.level_ppm for c in known) / len(known) / 1e6,
    )


def paid_micro(job: JobView, view: View) -> int | None:
    """What the job's attempts cost, in millionths; None where a price is missing."""
    total = 0
    for attempt in job.attempts:
        end_ns = attempt.ended_ns if attempt.ended_ns is not None else view.time_ns
        rate = 0  # millionths of money an hour, times millionths of a device
        for ref in slices_under(view.book, attempt):
            price = price_of(job.spec, ref.model, view.fleet.prices_per_device_hour)
            if price is None:
                return None
            rate += round(price * 1e6) * ref.share_ppm
        total += (end_ns - attempt.placed_ns) * rate
    return total // (_HOUR_NS * 1_000_000)


def _actual(job: JobView, said: Prediction, view: View | None) -> int | None:
    if said.what == "start":
        return _start_ns(job, said)
    if said.what == "run_time":
        return _run_ns(job)
    if view is None:
        return None
    if said.what == "step_time":
        return _step_ns(job, said, view)
    return paid_micro(job, view) if job.state == "succeeded" else None


def _size(check: Checked) -> int:
    actual = check.actual or 0
    return actual - check.said.at_ns if check.said.what == "start" else actual


def _start_ns(job: JobView, said: Prediction) -> int | None:
    """When the job was first placed after this prediction."""
    return next((a.placed_ns for a in job.attempts if a.placed_ns >= said.at_ns), None)


def _run_ns(job: JobView) -> int | None:
    """Run time of a job that succeeded, over its attempts; None for others, whose run time may be cut short."""
    return job.run_ns(job.ended_ns or 0) if job.state == "succeeded" else None


def _step_ns(job: JobView, said: Prediction, view: View) -> int | None:
    """The mean step of the attempt that the prediction is about, once that attempt has ended."""
    attempt = next((a for a in job.attempts if a.number == said.attempt), None)
    if attempt is None or attempt.live:
        return None
    run = attempt_run(view.book, attempt, job.devices_of(attempt))
    return None if run is None else run.mean_ns
