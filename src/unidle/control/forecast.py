"""What the controller foretells, and learns from what came true: run times and expected starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from unidle.events import types as ev
from unidle.jobs import JobSpec
from unidle.place.first_fit import KINDS
from unidle.predict.estimate import Estimate
from unidle.predict.run_time import RunHistory, quantile_estimate, remaining_ns
from unidle.predict.start import Holder, Waiter, planned_starts
from unidle.view.state import JobView, View

PLANNED: Final = 1_000
"""Waiting jobs, from the head of the queue, for which a start is foretold."""
_S: Final = 1_000_000_000


@dataclass(slots=True)
class Forecaster:
    """Holds what can be derived from the view: the run times of jobs that succeeded."""

    history: RunHistory = field(default_factory=RunHistory)

    @classmethod
    def of(cls, view: View) -> Forecaster:
        """With the history of everything in the view, in the order in which jobs ended."""
        ended = [job for job in view.jobs.values() if job.state == "succeeded"]
        self = cls()
        for job in sorted(ended, key=lambda job: (job.ended_ns or 0, job.order)):
            self.learn(job)
        return self

    def learn(self, job: JobView) -> None:
        """The job has ended; only success tells how long it takes."""
        if job.state == "succeeded":
            self.history.add(job.spec.user, job.spec.name, job.run_ns(job.ended_ns or 0))

    def run_time(self, job: str, spec: JobSpec) -> ev.Predicted | None:
        """How long a job that was just submitted will run."""
        found = self._run_estimate(spec)
        return None if found is None else _said(job, "run_time", found)

    def starts(self, view: View, now_ns: int, jobs: Sequence[str]) -> list[ev.Predicted]:
        """When these waiting jobs will start, as far as the jobs before them can be foretold."""
        wanted = set(jobs)
        queue = sorted(entry for entries in view.waiting.values() for entry in entries[:PLANNED])[:PLANNED]
        waiting = [view.jobs[job] for _, _, job in queue]
        if not any(job.id in wanted for job in waiting):
            return []
        found: dict[str, dict[str, int]] = {}
        for bound in ("value_ns", "low_ns", "high_ns"):
            found[bound] = {}
            for kinds, members in _by_kind(waiting):
                free = sum(view.occupancy.free.get(kind, 0) for kind in kinds)
                holders = list(self._holders(view, kinds, now_ns, bound))
                plan = [Waiter(j.id, j.spec.devices, self._runs_ns(j.spec, bound)) for j in members]
                found[bound] |= planned_starts(free, holders, plan, now_ns)
        return [
            self._start(job.id, found)
            for job in waiting
            if job.id in wanted and all(job.id in starts for starts in found.values())
        ]

    def _start(self, job: str, found: dict[str, dict[str, int]]) -> ev.Predicted:
        value, low, high = (found[bound][job] for bound in ("value_ns", "low_ns", "high_ns"))
        return ev.Predicted(job, "start", value, min(low, value), max(high, value), 0, "the planned schedule")

    def _holders(self, view: View, kinds: tuple[str, ...], now_ns: int, bound: str) -> Iterator[Holder]:
        for job_id in sorted(view.live):
            job = view.jobs[job_id]
            attempt = job.live
            ends_ns = None if attempt is None else self._ends_ns(job, attempt.placed_ns, now_ns, bound)
            if ends_ns is not None and _kind_of(job, view) in kinds:
                yield Holder(ends_ns, job.spec.devices)

    def _ends_ns(self, job: JobView, placed_ns: int, now_ns: int, bound: str) -> int | None:
        runs_ns = self._runs_ns(job.spec, bound)
        if runs_ns is None:
            return None
        ran_ns = job.run_ns(now_ns)
        if ran_ns < runs_ns:
            return placed_ns + runs_ns - (ran_ns - (now_ns - placed_ns))
        durations, _ = self.history.durations(job.spec.user, job.spec.name)
        return now_ns + remaining_ns(durations, ran_ns)

    def _runs_ns(self, spec: JobSpec, bound: str) -> int | None:
        found = self._run_estimate(spec)
        return None if found is None else int(getattr(found, bound))

    def _run_estimate(self, spec: JobSpec) -> Estimate | None:
        """History before the user's own word, which is mostly an upper bound."""
        found = self.history.estimate(spec.user, spec.name)
        if found is None and spec.estimate_s is not None:
            return quantile_estimate([int(spec.estimate_s * _S)], "the job file's estimate_s")
        return found


def _by_kind(waiting: Sequence[JobView]) -> Iterator[tuple[tuple[str, ...], list[JobView]]]:
    """Waiting jobs by the kinds of devices that they may have; "any" competes with GPUs."""
    groups: dict[str, list[JobView]] = {}
    for job in waiting:
        groups.setdefault("cpu" if job.spec.device == "cpu" else "gpu", []).append(job)
    for kind, members in groups.items():
        any_kind = any(job.spec.device == "any" for job in members)
        yield KINDS["any"] if kind == "gpu" and any_kind else (kind,), members


def _kind_of(job: JobView, view: View) -> str:
    if job.spec.device != "any" or job.live is None:
        return job.spec.device
    return view.occupancy.kind_of(job.live.places[0].slices[0])


def _said(job: str, what: ev.PredictedWhat, found: Estimate) -> ev.Predicted:
    return ev.Predicted(job, what, found.value_ns, found.low_ns, found.high_ns, found.level_ppm, found.by)
