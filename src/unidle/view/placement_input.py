"""From a view to a snapshot of what placement sees, and back to a view that gives the same decision."""

from __future__ import annotations

from typing import Final

from unidle.events import types as ev
from unidle.files.snapshot import (
    AttemptState,
    DevicesHeld,
    OpenJob,
    Pair,
    PlacementSnapshot,
    RunTime,
    RunTimes,
)
from unidle.fleet import Fleet
from unidle.jobs import Reason
from unidle.view.fold import apply
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.view.state import View
from unidle.view.usage import QueueUse

PAST_KEPT: Final = 64
"""Attempts of a job, the latest, that a snapshot keeps: they say what a stop costs it."""
_AGAIN = Reason("snapshot", "as in the snapshot")


def freeze(view: View, history: tuple[RunTimes, ...] = ()) -> PlacementSnapshot:
    """The fleet, its health, all jobs that have not ended in the order of submission, and what was measured."""
    jobs = sorted(view.jobs.open.values(), key=lambda job: job.order)
    half_life_ns = view.fleet.history.half_life_ns
    past = {name: use.average_ppb(view.time_ns, half_life_ns) for name, use in view.usage.queues.items()}
    lines = tuple(_job(view, job) for job in jobs)
    # a device that others use is as one in maintenance: it takes no job, and nothing else is decided by it
    health = {t: "maintenance" if why == "taken" else why for t, why in view.barred.items()}
    pairs = tuple(Pair(*names, *seen) for names, seen in view.pairs.items())
    return PlacementSnapshot(
        view.time_ns, view.fleet, health, lines, view.policy, history, past, view.speeds, pairs
    )


def thaw(snapshot: PlacementSnapshot) -> View:
    """A view in which every decision is the one that it was when the snapshot was taken."""
    view = view_of(snapshot.fleet, snapshot.time_ns)
    view.policy = snapshot.policy
    for name, past in snapshot.past_ppb.items():
        view.usage.queues[name] = QueueUse(view.time_ns, {}, dict(past))
    view.speeds = snapshot.speeds
    view.pairs = {(pair.mode, pair.load, pair.other): (pair.total_ppm, pair.times) for pair in snapshot.pairs}
    for target, health in snapshot.health.items():
        _tell(view, ev.HealthSet(target, health, _AGAIN), snapshot.time_ns)
    for job in snapshot.jobs:
        _submitted(view, job, snapshot.time_ns)
    for job in snapshot.jobs:
        _take_up(view, job, snapshot.time_ns)
    return view


def _submitted(view: View, told: OpenJob, now_ns: int) -> None:
    _tell(view, ev.JobSubmitted(told.job, told.spec), now_ns)
    job = view.jobs.open[told.job]
    for number, past in enumerate(told.past, 1):
        job.attempts.append(_attempt(told.job, number, past))


def _take_up(view: View, told: OpenJob, now_ns: int) -> None:
    job, run, kept = view.jobs.open[told.job], told.run_time, told.kept
    job.submitted_ns = told.submitted_ns
    if run is not None:
        said = ev.Predicted(
            told.job, "run_time", run.value_ns, run.low_ns, run.high_ns, run.level_ppm, run.by
        )
        _tell(view, said, now_ns)
    if told.holds is not None:
        _hold(view, job, told.holds, now_ns)
    if kept is not None:
        _tell(view, ev.Promised(told.job, kept.kind, kept.devices, kept.expires_ns, _AGAIN), now_ns)
    if waits := job.live is None:
        view.queue.remove(job)
    job.waiting_since_ns, job.not_before_ns = told.waiting_since_ns, told.not_before_ns
    if waits:
        view.queue.add(job)


def _hold(view: View, job: JobView, holds: AttemptState, now_ns: int) -> None:
    number = len(job.attempts) + 1
    _tell(view, ev.AttemptPlaced(job.id, number, holds.places, _AGAIN), now_ns)
    job.attempts[-1] = _attempt(job.id, number, holds)
    if job.spec.is_filler:
        if holds.stop_for is not None:
            job.attempts[-1].yielded_ns = holds.stop_ns
        view.fillers_moved()


def _attempt(job: str, number: int, told: AttemptState) -> AttemptView:
    ranks = [RankView() for _ in told.places] or [RankView()]
    ranks[0].ready_ns = told.begun_ns
    if told.saved_ns is not None:
        ranks[0].saves.append((told.saved_ns, None))
    found = AttemptView(number, told.placed_ns, told.places, _AGAIN, ranks, ended_ns=told.ended_ns)
    if told.stop is not None:
        found.stop = ev.StopAsked(job, number, told.stop, 0, _AGAIN, for_job=told.stop_for)
        found.stop_ns = told.stop_ns
    if told.ended_ns is not None:
        found.outcome = "failed" if told.stop in (None, "rank_failed") else "preempted"
    return found


def view_of(fleet: Fleet, time_ns: int = 1) -> View:
    """A view of this fleet, empty and healthy."""
    view = View()
    _tell(view, ev.FleetSeen(fleet), time_ns)
    return view


def _job(view: View, job: JobView) -> OpenJob:
    last, promise = job.attempts[-1] if job.attempts else None, view.promised.get(job.id)
    said = next((p for p in reversed(job.predictions) if p.what == "run_time"), None)
    run = None if said is None else RunTime(said.value_ns, said.low_ns, said.high_ns, said.level_ppm, said.by)
    past = job.attempts if last is None or not last.live else job.attempts[:-1]
    return OpenJob(
        job.id, job.spec, job.submitted_ns, job.waiting_since_ns, job.not_before_ns,
        _held(last) if last is not None and last.live else None,
        None if promise is None else DevicesHeld(promise.kind, promise.devices, promise.expires_ns),
        run, tuple(_held(a, places=a is last and _knows(view, a)) for a in past[-PAST_KEPT:]),
    )  # fmt: skip


def _held(attempt: AttemptView, *, places: bool = True) -> AttemptState:
    stop = attempt.stop
    return AttemptState(
        attempt.placed_ns, attempt.places if places else (), attempt.begun_ns, attempt.saved_ns,
        stop.why if stop is not None else None, attempt.stop_ns, stop.for_job if stop is not None else None,
        attempt.ended_ns,
    )  # fmt: skip


def _knows(view: View, attempt: AttemptView) -> bool:
    """Whether the job may come back to its places: the fleet may have changed since."""
    known = view.occupancy.knows
    return attempt.left_places and all(known(s) for place in attempt.places for s in place.slices)


def _tell(view: View, event: ev.Event, time_ns: int) -> None:
    apply(view, event, view.seq + 1, time_ns)
