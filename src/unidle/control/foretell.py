"""Predictions of speed and cost: when a job is placed, and again after its first steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unidle.events import types as ev
from unidle.jobs.speeds import Known, SpeedRun, known_of
from unidle.predict import Estimate
from unidle.predict.by_gpu_model import Forecast, forecasts, price_of
from unidle.predict.outcome import paid_micro
from unidle.view.accounts import durable_points
from unidle.view.jobs import AttemptView, JobView
from unidle.view.speeds import attempt_run, job_runs, slices_under, width_ppm
from unidle.view.state import View
from unidle.words import counted, latency

OWN: Final = "its own first"
_HOUR_NS: Final = 3_600_000_000_000


def at_placement(view: View, job: JobView, run_time: Estimate | None) -> list[ev.Predicted]:
    """Step time and cost of a job that was just placed, from the steps of similar jobs and of its earlier attempts.

    Without a known number of steps the cost is that of the predicted ``run_time``.
    """
    known = known_of(view.speeds, job.spec.user, job.spec.name)
    runs = [*known.runs, *job_runs(view.book, job)]
    return _said(view, job, known, runs, run_time, "")


def after_steps(view: View, job: JobView) -> list[ev.Predicted]:
    """The same from the first steps of the running attempt itself; nothing before there are some."""
    attempt = job.attempts[-1]
    run = attempt_run(view.book, attempt, job.devices_of(attempt))
    if run is None:
        return []
    known = known_of(view.speeds, job.spec.user, job.spec.name)
    return _said(view, job, known, [run], None, f"{OWN} {counted(run.steps, 'step')}")


def _said(
    view: View, job: JobView, known: Known, runs: Sequence[SpeedRun], run_time: Estimate | None, by: str
) -> list[ev.Predicted]:
    model = _model(view, job.attempts[-1])
    if model is None:
        return []
    prices = view.fleet.prices_per_device_hour
    forecast = forecasts(runs, [model], job.spec, prices).get(model) if runs else None
    first = len(job.attempts) == 1
    rest = _remaining(job, known, forecast) or (run_time if first else None)
    price, before_micro = price_of(job.spec, model, prices), paid_micro(job, view)
    found = []
    if forecast is not None:
        found.append(_step_time(job, model, forecast.step, by or _by(forecast)))
    if price is not None and rest is not None and before_micro is not None:
        micro_per_hour = round(price * 1e6) * width_ppm(view.book, job.attempts[-1]) // 1_000_000
        found.append(_cost(job, model, rest, before_micro, micro_per_hour))
    return found


def _step_time(job: JobView, model: str, step: Estimate, by: str) -> ev.Predicted:
    return ev.Predicted(
        job.id, "step_time", step.value_ns, step.low_ns, step.high_ns, step.level_ppm, by,
        model, job.attempts[-1].number,
    )  # fmt: skip


def _cost(job: JobView, model: str, rest: Estimate, before_micro: int, micro_per_hour: int) -> ev.Predicted:
    times_ns = (rest.value_ns, rest.low_ns, rest.high_ns)
    value, low, high = (before_micro + ns * micro_per_hour // _HOUR_NS for ns in times_ns)
    number = job.attempts[-1].number
    return ev.Predicted(job.id, "cost", 0, 0, 0, rest.level_ppm, rest.by, model, number, value, low, high)


def _remaining(job: JobView, known: Known, forecast: Forecast | None) -> Estimate | None:
    """How long the attempt still takes from now on: its steps, and the other time of earlier attempts."""
    total = job.spec.steps or known.steps()
    if forecast is None or total is None:
        return None
    left = max(total - reached(job), 0)
    started = job.attempts[-1].first_step() is not None
    beside = [0] if started else sorted(run.beside_ns for run in known.runs) or [0]
    # the first step is within the time of the others: it ends with the first report
    run = forecast.of_steps(max(left - 1, 0) if beside[-1] else left).run
    return Estimate(
        run.value_ns + beside[len(beside) // 2], run.low_ns + beside[0], run.high_ns + beside[-1],
        run.level_ppm, run.samples, f"{counted(left, 'step')} of {latency(forecast.step.value_ns)}",
    )  # fmt: skip


def reached(job: JobView) -> int:
    """The step that the job continues from: the live attempt's last one.

    Before the attempt's first step: the last durable one of the attempts before it, or 0.
    """
    live = job.attempts[-1].last_step() if job.attempts else None
    if live is not None:
        return live
    return max((point.step or 0 for point in durable_points(job)), default=0)


def _model(view: View, attempt: AttemptView) -> str | None:
    """The one model that the attempt is on."""
    models = {ref.model for ref in slices_under(view.book, attempt)}
    return models.pop() if len(models) == 1 else None


def _by(forecast: Forecast) -> str:
    if not forecast.measured:
        return forecast.step.by
    attempts = counted(forecast.runs, "attempt")
    return f"{counted(forecast.steps, 'step')} of {attempts} on {forecast.model or 'such devices'}"
