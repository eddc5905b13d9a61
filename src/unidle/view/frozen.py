"""From a view to a snapshot of what placement sees, and back to a view that gives the same decision."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.files.snapshot import Attempt, Kept, OpenJob, PlacementSnapshot, RunTime, RunTimes
from unidle.fleet import Fleet
from unidle.jobs import Reason
from unidle.view.fold import apply
from unidle.view.state import AttemptView, JobView, View

_AGAIN = Reason("snapshot", "as in the snapshot")


def freeze(view: View, history: tuple[RunTimes, ...] = ()) -> PlacementSnapshot:
    """The fleet, its health, and all jobs that have not ended, in the order of submission."""
    jobs = sorted(view.jobs.open.values(), key=lambda job: job.order)
    lines = tuple(_job(view, job) for job in jobs)
    return PlacementSnapshot(view.time_ns, view.fleet, dict(view.health), lines, view.policy, history)


def thaw(snapshot: PlacementSnapshot) -> View:
    """A view in which every decision is the one that it was when the snapshot was taken."""
    view = view_of(snapshot.fleet, snapshot.time_ns)
    view.policy = snapshot.policy
    for target, health in snapshot.health.items():
        _tell(view, ev.HealthSet(target, health, _AGAIN), snapshot.time_ns)
    for job in snapshot.jobs:
        _take_up(view, job, snapshot.time_ns)
    return view


def _take_up(view: View, told: OpenJob, now_ns: int) -> None:
    _tell(view, ev.JobSubmitted(told.job, told.spec), now_ns)
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
    job.waiting_since_ns, job.not_before_ns = told.waiting_since_ns, told.not_before_ns


def _hold(view: View, job: JobView, holds: Attempt, now_ns: int) -> None:
    _tell(view, ev.AttemptPlaced(job.id, 1, holds.places, _AGAIN), now_ns)
    attempt = job.attempts[-1]
    attempt.placed_ns = holds.placed_ns
    if holds.saved_ns is not None:
        attempt.ranks[0].saves.append((holds.saved_ns, None))
    if holds.stop is not None:
        _tell(view, ev.StopAsked(job.id, 1, holds.stop, 0, _AGAIN, for_job=holds.stop_for), now_ns)


def view_of(fleet: Fleet, time_ns: int = 1) -> View:
    """A view of this fleet, empty and healthy."""
    view = View()
    _tell(view, ev.FleetSeen(fleet), time_ns)
    return view


def _job(view: View, job: JobView) -> OpenJob:
    attempt, promise = job.live, view.promised.get(job.id)
    said = next((p for p in reversed(job.predictions) if p.what == "run_time"), None)
    run = None if said is None else RunTime(said.value_ns, said.low_ns, said.high_ns, said.level_ppm, said.by)
    return OpenJob(
        job.id, job.spec, job.submitted_ns, job.waiting_since_ns, job.not_before_ns,
        None if attempt is None else _held(attempt),
        None if promise is None else Kept(promise.kind, promise.devices, promise.expires_ns),
        run,
    )  # fmt: skip


def _held(attempt: AttemptView) -> Attempt:
    saves = [rank.saves[-1][0] for rank in attempt.ranks if rank.saves]
    stop = attempt.stop
    return Attempt(
        attempt.placed_ns, attempt.places, max(saves, default=None),
        stop.why if stop is not None else None, stop.for_job if stop is not None else None,
    )  # fmt: skip


def _tell(view: View, event: ev.Event, time_ns: int) -> None:
    apply(view, event, view.seq + 1, time_ns)
