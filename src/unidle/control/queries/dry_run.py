"""The loop's next decision about one job. It is computed with the policy itself; nothing is carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from unidle.control.forecast import Forecaster
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.place.fillers import FillerPolicy
from unidle.place.policy import Unidle, on_this_fleet
from unidle.place.protocol import Keep, Place, Plan, Policy, Stop
from unidle.view.fold import apply
from unidle.view.jobs import JobView
from unidle.view.state import View

ASKED: Final = "asked"
"""The job that is only asked about."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """``place`` where the job starts, else why it waits; and who is stopped, and what is kept, for it."""

    place: Place | None
    because: Reason
    stops: tuple[Stop, ...] = ()
    keeps: tuple[Keep, ...] = ()


def next_decision(view: View, job: JobView, now_ns: int | None = None) -> DryRun:
    """The next decision about a job that waits. The view is unchanged when this returns."""
    now_ns = view.time_ns if now_ns is None else now_ns
    if job.spec.is_filler:
        return _of_filler(view, job, now_ns)
    verdict = job.verdict
    view.queue.doubt(job)  # what is known already is not said again
    try:
        policy = policy_of(view)
        return _answer(view, job, policy.decide(view, now_ns), policy, now_ns)
    finally:
        if verdict is not None:
            view.queue.judge(job, verdict)


def submitted(view: View, spec: JobSpec, forecaster: Forecaster | None = None) -> JobView:
    """The job as the loop takes it up; ``view`` is the caller's own, and has it from now on."""
    name = ASKED
    while name in view.jobs:
        name += "'"
    apply(view, ev.JobSubmitted(name, on_this_fleet(spec, view)), view.seq + 1, view.time_ns)
    said = (forecaster or Forecaster.of(view)).run_time(name, spec)
    if said is not None:
        apply(view, said, view.seq + 1, view.time_ns)
    return view.jobs.open[name]


def policy_of(view: View) -> Policy:
    """The policy that places the jobs of this log."""
    if not view.policy:
        return Unidle()
    from unidle.control.policies import policy_named

    return policy_named(view.policy, "the log's policy")


def _answer(view: View, job: JobView, plan: Plan, policy: Policy, now_ns: int) -> DryRun:
    place = next((place for place in plan.places if place.job == job.id), None)
    stops = tuple(stop for stop in plan.stops if stop.for_job == job.id)
    keeps = tuple(keep for keep in plan.keeps if keep.job == job.id)
    if place is not None:
        return DryRun(place, place.because, stops, keeps)
    said = next((wait.because for wait in plan.waits if wait.job == job.id), None)
    return DryRun(None, said or _otherwise(view, job, policy, now_ns), stops, keeps)


def _of_filler(view: View, job: JobView, now_ns: int) -> DryRun:
    """After the next decision on all other jobs, which does not know of fillers."""
    if job.not_before_ns > now_ns:
        return DryRun(None, _backoff(job, now_ns))
    before = policy_of(view).decide(view, now_ns).places if view.waiting else ()
    ids = [slice_id for place in before for rank in place.places for slice_id in rank.slices]
    free = [s for s in ids if view.occupancy.knows(s) and view.occupancy.is_free(s)]
    view.occupancy.take(free)
    try:
        found = FillerPolicy().why_not(view, job.spec)
    finally:
        view.occupancy.give_back(free)
    if isinstance(found, Place):
        return DryRun(replace(found, job=job.id), found.because)
    return DryRun(None, found)


def _backoff(job: JobView, now_ns: int) -> Reason:
    wait_s = -((now_ns - job.not_before_ns) // 1_000_000_000)
    return Reason("backoff", f"it is tried again in {wait_s} s", {"not_before_ns": job.not_before_ns})


def _otherwise(view: View, job: JobView, policy: Policy, now_ns: int) -> Reason:
    """A policy may pass over a job without a word."""
    if job.not_before_ns > now_ns:
        return _backoff(job, now_ns)
    return policy.why_not(view, job.spec) or Reason("behind", "jobs before it take what is free")
