"""Predictions as plain values, as ``unidle predict`` prints them. Pure."""

from __future__ import annotations

from typing import Any, Final, get_args

from unidle.control.forecast import reached
from unidle.errors import BadInput
from unidle.events.types import PredictedWhat
from unidle.jobs import JobSpec
from unidle.jobs.speeds import SpeedRun, known_of
from unidle.predict.by_gpu_model import Forecast, forecasts, price_of
from unidle.predict.outcome import score
from unidle.view.jobs import JobView
from unidle.view.speeds import job_runs
from unidle.view.state import View

Plain = dict[str, Any]
BATCH: Final = 1_000  # steps that a cost is shown for


def runs_of(view: View, user: str, name: str) -> list[SpeedRun]:
    """What jobs of this user and name showed, those included that have not ended."""
    runs = list(known_of(view.speeds, user, name).runs)
    for job in view.jobs.open.awake():
        if (job.spec.user, job.spec.name) == (user, name):
            runs += job_runs(view.book, job)
    return runs


def by_model(view: View, spec: JobSpec, job: JobView | None = None) -> Plain:
    """Step time and cost of such a job on each model, and of what is left of ``job``, where its steps are known."""
    runs = runs_of(view, spec.user, spec.name)
    total = spec.steps or known_of(view.speeds, spec.user, spec.name).steps()
    if job is not None and job.terminal:
        total = None
    left = None if total is None else max(total - (reached(job) if job is not None else 0), 0)
    prices = view.fleet.prices_per_device_hour
    models = list(dict.fromkeys([d.model for d in view.fleet.devices()] + [run.model for run in runs]))
    told = forecasts(runs, models, spec, prices)
    rows = [_row(model, told.get(model), price_of(spec, model, prices), left) for model in models]
    return {
        "job": job.id if job is not None else None, "user": spec.user, "name": spec.name, "devices": spec.devices,
        "steps_left": left, "currency": view.fleet.currency, "models": rows,
    }  # fmt: skip


def spec_of(view: View, name: str, user: str | None, devices: int | None) -> JobSpec:
    """A specification like that of the latest job of this name, on so many devices.

    Errors: :class:`BadInput` if the store has no job of this name.
    """
    for job_id in reversed(view.jobs):
        spec = view.jobs[job_id].spec
        if spec.name == name and user in (None, spec.user):
            return JobSpec(
                spec.command, name, user=spec.user, ranks=devices or spec.devices, steps=spec.steps,
                price_per_device_hour=spec.price_per_device_hour, hardware=spec.hardware,
            )  # fmt: skip
    field, value = ("--name", name) if user is None else ("--user", user)
    raise BadInput(
        "the store has no job of this name", field=field, value=value, remedy="`unidle list` shows the jobs"
    )


def _row(model: str, forecast: Forecast | None, price: float | None, left: int | None) -> Plain:
    row: Plain = {"model": model, "price_per_device_hour": price, "step_ns": None}
    if forecast is None:
        return row
    step, batch = forecast.step, forecast.of_steps(BATCH)
    row |= {
        "step_ns": step.value_ns, "low_ns": step.low_ns, "high_ns": step.high_ns, "level": step.level_ppm / 1e6,
        "measured": forecast.measured, "steps": forecast.steps, "attempts": forecast.runs, "by": step.by, "split": forecast.split,
        f"cost_per_{BATCH}_steps": _money(batch.cost_micro),
    }  # fmt: skip
    if left is not None:
        rest = forecast.of_steps(left)
        row["rest"] = {
            "steps": left, "value_ns": rest.run.value_ns, "low_ns": rest.run.low_ns, "high_ns": rest.run.high_ns,
            "cost": _money(rest.cost_micro), "cost_low": _money(rest.cost_low_micro),
            "cost_high": _money(rest.cost_high_micro),
        }  # fmt: skip
    return row


def _money(micro: int | None) -> float | None:
    return None if micro is None else micro / 1e6


def scores(view: View) -> list[Plain]:
    """For each kind of prediction how many have come true so far, and how far off they were."""
    jobs = [job for job in view.jobs.values() if job.predictions]
    rows = []
    for what in get_args(PredictedWhat):
        said = sum(p.what == what for job in jobs for p in job.predictions)
        found = score(jobs, what, view)
        row: Plain = {"what": what, "said": said, "known": 0}
        if found is not None:
            error = found.median_error_ns
            row |= {
                "known": found.known, "median_relative_error": found.median_relative,
                "median_error": error / (1e6 if what == "cost" else 1e9),
                "unit": view.fleet.currency if what == "cost" else "s",
                "within": found.within, "promised": found.level,
            }  # fmt: skip
        rows.append(row)
    return rows
