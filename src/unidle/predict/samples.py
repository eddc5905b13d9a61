"""Measured steps out of the view, for the regression of ``unidle.predict.speed``."""

from __future__ import annotations

from collections.abc import Iterable

from unidle.predict.speed import StepSample
from unidle.view.speeds import job_runs
from unidle.view.state import JobView, View


def step_samples(view: View, jobs: Iterable[JobView]) -> list[StepSample]:
    """The mean step of each attempt of these jobs that showed two steps or more, on devices of one model.

    The jobs should be alike (the same user and name). Devices that left the fleet count with the
    model that they had.
    """
    return [
        StepSample(run.model, run.devices, run.mean_ns) for job in jobs for run in job_runs(view.book, job)
    ]
