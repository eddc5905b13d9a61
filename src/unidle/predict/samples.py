"""Measured steps out of the view, for the regression of ``unidle.predict.speed``."""

from __future__ import annotations

from collections.abc import Iterable

from unidle.predict.speed import StepSample
from unidle.view.state import AttemptView, JobView, View


def step_samples(view: View, jobs: Iterable[JobView]) -> list[StepSample]:
    """The mean step of each attempt of these jobs that showed two steps or more, on devices of one model.

    The jobs should be alike (the same user and name). Devices that left the fleet count with the
    model that they had.
    """
    found = []
    for job in jobs:
        for attempt in job.attempts:
            step_ns, models = _step_ns(attempt), _models(view, attempt)
            if step_ns and len(models) == 1:
                found.append(StepSample(models.pop(), job.spec.devices, step_ns))
    return found


def _step_ns(attempt: AttemptView) -> int | None:
    lead = next((rank for rank in attempt.ranks if len(rank.step_n) > 1), None)
    if lead is None or lead.step_n[-1] <= lead.step_n[0]:
        return None
    return (lead.step_ns[-1] - lead.step_ns[0]) // (lead.step_n[-1] - lead.step_n[0])


def _models(view: View, attempt: AttemptView) -> set[str]:
    numbers = view.book.indexes(s for place in attempt.places for s in place.slices)
    return {view.book.slices[k].model for k in numbers}
