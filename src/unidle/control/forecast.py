"""What the controller predicts, and learns from what came true: run times, starts, speed and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from unidle.events import types as ev
from unidle.files.snapshot import RunTimes
from unidle.jobs import NEVER, JobSpec
from unidle.jobs.speeds import Known, SpeedRun, known_of
from unidle.place.protocol import KINDS
from unidle.predict import Estimate
from unidle.predict.by_gpu_model import Forecast, forecasts, price_of
from unidle.predict.outcome import paid_micro
from unidle.predict.run_time import RunHistory, quantile_estimate, remaining_ns
from unidle.predict.start import Departure, Waiter, planned_starts
from unidle.view.accounts import durable_points
from unidle.view.jobs import AttemptView, JobView
from unidle.view.spares import free_for_most
from unidle.view.speeds import attempt_run, job_runs, slices_under, width_ppm
from unidle.view.state import View
from unidle.words import counted, latency

PLANNED: Final = 1_000
"""Waiting jobs, from the head of the queue, for which a start is predicted."""
FEW_STEPS: Final = 8
"""Steps after the first report from which the speed of an attempt is measured."""
REMEMBERED: Final = 2_000
"""Jobs, the latest to be submitted, that a new controller reads: each has to be unpacked."""
_S: Final = 1_000_000_000
OWN: Final = "its own first"
_HOUR_NS: Final = 3_600_000_000_000


@dataclass(slots=True)
class Forecaster:
    """Holds what can be derived from the view: the run times of jobs that succeeded."""

    history: RunHistory = field(default_factory=RunHistory)
    _stepped: dict[str, int] = field(default_factory=dict)  # of each live job the attempt that told its speed

    @classmethod
    def of(cls, view: View) -> Forecaster:
        """With the history of the latest jobs of the view, in the order in which they ended."""
        latest = islice(reversed(view.jobs), REMEMBERED)
        ended = [job for job_id in latest if (job := view.jobs[job_id]).terminal]
        self = cls()
        for job in sorted(ended, key=lambda job: (job.ended_ns or 0, job.order)):
            self.learn(job)
        return self

    @classmethod
    def recalled(cls, history: Iterable[RunTimes]) -> Forecaster:
        """With the history that a snapshot has."""
        return cls(RunHistory.recalled((times.user, times.name, times.durations_ns) for times in history))

    def recall(self) -> tuple[RunTimes, ...]:
        """The history for a snapshot."""
        return tuple(RunTimes(user, name, tuple(ran)) for user, name, ran in self.history.kept())

    def learn(self, job: JobView) -> None:
        """Add the run time of a job that ended. Only a success counts: other ends do not show how long the job takes."""
        self._stepped.pop(job.id, None)
        if job.state == "succeeded" and not job.spec.is_filler:
            self.history.add(job.spec.user, job.spec.name, job.run_ns(job.ended_ns or 0))

    def run_time(self, job: str, spec: JobSpec) -> ev.Predicted | None:
        """How long a job that was just submitted will run."""
        found = run_estimate(self.history, spec)
        return None if found is None else _said(job, "run_time", found)

    def placed(self, view: View, job: JobView) -> list[ev.Predicted]:
        """The speed and cost of a job that was just placed."""
        priced = view.fleet.prices_per_device_hour or job.spec.price_per_device_hour is not None
        measured = known_of(view.speeds, job.spec.user, job.spec.name).runs or len(job.attempts) > 1
        if not (priced or measured):
            return []  # a first start loads nothing for it

        return at_placement(view, job, run_estimate(self.history, job.spec))

    def stepped(self, view: View, job: JobView) -> list[ev.Predicted]:
        """The same again, once for each attempt, when it has shown a few steps."""
        attempt = job.live
        if attempt is None or self._stepped.get(job.id) == attempt.number:
            return []
        lead = next((rank for rank in attempt.ranks if rank.step_n), None)
        if lead is None or len(lead.step_n) <= FEW_STEPS:
            return []

        self._stepped[job.id] = attempt.number
        if any(p.attempt == attempt.number and p.by.startswith(OWN) for p in job.predictions):
            return []  # said by a controller before this one
        return after_steps(view, job)

    def starts(self, view: View, now_ns: int, jobs: Sequence[str]) -> list[ev.Predicted]:
        """When these waiting jobs will start, as far as the jobs before them can be predicted."""
        wanted = set(jobs)
        queue = sorted(entry for entries in view.waiting.values() for entry in entries[:PLANNED])[:PLANNED]
        waiting = [waits for _, _, name in queue if _may_start(waits := view.jobs[name])]
        if not any(job.id in wanted for job in waiting):
            return []
        runs = _Runs(self.history)
        live = (view.jobs[job] for job in sorted(view.live))
        running = [
            _Running.of(view, job, runs) for job in live if job.spec.needs_devices and not job.spec.is_filler
        ]
        found: dict[str, list[int]] = {}
        for bound in range(3):
            for kinds, members in _by_kind(waiting):
                free = sum(free_for_most(view, kind) for kind in kinds)
                holders = [
                    Departure(ends_ns, job.devices)
                    for job in running
                    if job.kind in kinds and (ends_ns := job.ends_ns(now_ns, bound)) is not None
                ]
                plan = [Waiter(j.id, j.spec.devices, runs.bounds(j.spec)[bound]) for j in members]
                for job, start_ns in planned_starts(free, holders, plan, now_ns).items():
                    found.setdefault(job, []).append(start_ns)
        return [
            _start(job, found[job.id])
            for job in waiting
            if job.id in wanted and len(found.get(job.id, ())) == len(_UNKNOWN)
        ]


def run_estimate(history: RunHistory, spec: JobSpec) -> Estimate | None:
    """History before the user's own word, which is mostly an upper bound."""
    found = history.estimate(spec.user, spec.name)
    if found is None and spec.estimate_s is not None:
        return quantile_estimate([int(spec.estimate_s * _S)], "the job file's estimate_s")
    return found


_Bounds = tuple[int | None, int | None, int | None]  # run time: expected, low, high
_UNKNOWN: Final[_Bounds] = (None, None, None)


class _Runs:
    """Run times of kinds of jobs, each looked up once in a plan."""

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self._known: dict[tuple[str, str, float | None], _Bounds] = {}

    def bounds(self, spec: JobSpec) -> _Bounds:
        key = (spec.user, spec.name, spec.estimate_s)
        if key not in self._known:
            found = run_estimate(self.history, spec)
            self._known[key] = _UNKNOWN if found is None else (found.value_ns, found.low_ns, found.high_ns)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Running:
    """A job that holds devices: since when, and how long it ran before that."""

    kind: str
    devices: int
    placed_ns: int
    before_ns: int
    bounds: _Bounds
    durations: Sequence[int]

    @classmethod
    def of(cls, view: View, job: JobView, runs: _Runs) -> _Running:
        attempt = job.attempts[-1]
        before_ns = sum((a.ended_ns or a.placed_ns) - a.placed_ns for a in job.attempts[:-1])
        durations, _ = runs.history.durations(job.spec.user, job.spec.name)
        kind = view.occupancy.kind_of(attempt.places[0].slices[0])
        return cls(kind, job.spec.devices, attempt.placed_ns, before_ns, runs.bounds(job.spec), durations)

    def ends_ns(self, now_ns: int, bound: int) -> int | None:
        runs_ns = self.bounds[bound]
        if runs_ns is None:
            return None
        ran_ns = self.before_ns + now_ns - self.placed_ns
        if ran_ns < runs_ns:
            return now_ns + runs_ns - ran_ns
        return now_ns + remaining_ns(self.durations, ran_ns)


def _may_start(job: JobView) -> bool:
    """Whether a start can be predicted: the queues planned it, or a plan that does not model queues is enough."""
    verdict = job.verdict
    if not job.spec.needs_devices:
        return False  # the plan knows of devices only
    if verdict is None or "planned_start_ns" in verdict.figures:
        return True
    return verdict.code not in NEVER and verdict.code != "quota"


def _start(job: JobView, found: list[int]) -> ev.Predicted:
    value, low, high = found
    by = "the planned schedule"
    planned_ns = job.verdict.figures.get("planned_start_ns") if job.verdict is not None else None
    if isinstance(planned_ns, int):  # the queues planned it: they know of quotas, reservations and topology
        value, by = planned_ns, "the queues' plan"
    return ev.Predicted(job.id, "start", value, min(low, value), max(high, value), 0, by)


def _by_kind(waiting: Sequence[JobView]) -> Iterator[tuple[tuple[str, ...], list[JobView]]]:
    """Waiting jobs by the kinds of devices that they may have; "any" competes with GPUs."""
    groups: dict[str, list[JobView]] = {}
    for job in waiting:
        groups.setdefault("cpu" if job.spec.device == "cpu" else "gpu", []).append(job)
    for kind, members in groups.items():
        any_kind = any(job.spec.device == "any" for job in members)
        yield KINDS["any"] if kind == "gpu" and any_kind else (kind,), members


def _said(job: str, what: ev.PredictedWhat, found: Estimate) -> ev.Predicted:
    return ev.Predicted(job, what, found.value_ns, found.low_ns, found.high_ns, found.level_ppm, found.by)


def at_placement(view: View, job: JobView, run_time: Estimate | None) -> list[ev.Predicted]:
    """Step time and cost of a job that was just placed, from the steps of similar jobs and of its earlier attempts.

    Without a known number of steps the cost is that of the predicted ``run_time``.
    """
    known = known_of(view.speeds, job.spec.user, job.spec.name)
    runs = [*known.runs, *job_runs(view.book, job)]
    return _of_speed(view, job, known, runs, run_time, "")


def after_steps(view: View, job: JobView) -> list[ev.Predicted]:
    """The same from the first steps of the running attempt itself; nothing before there are some."""
    attempt = job.attempts[-1]
    run = attempt_run(view.book, attempt, job.devices_of(attempt))
    if run is None:
        return []
    known = known_of(view.speeds, job.spec.user, job.spec.name)
    return _of_speed(view, job, known, [run], None, f"{OWN} {counted(run.steps, 'step')}")


def _of_speed(
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
