"""From a view to a snapshot of what placement sees, and back to a view that gives the same decision."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.files.snapshot import OpenJob, PlacementSnapshot
from unidle.fleet import Fleet
from unidle.jobs import Reason
from unidle.view.fold import apply
from unidle.view.state import JobView, View

_AGAIN = Reason("snapshot", "as in the snapshot")


def freeze(view: View) -> PlacementSnapshot:
    """The fleet, its health, and all jobs that have not ended, in the order of submission."""
    jobs = sorted(view.jobs.open.values(), key=lambda job: job.order)
    return PlacementSnapshot(
        view.time_ns, view.fleet, dict(view.health), tuple(_job(view, job) for job in jobs)
    )


def thaw(snapshot: PlacementSnapshot) -> View:
    """A view in which every decision is the one that it was when the snapshot was taken."""
    view = view_of(snapshot.fleet, snapshot.time_ns)
    for target, health in snapshot.health.items():
        _tell(view, ev.HealthSet(target, health, _AGAIN), snapshot.time_ns)
    for job in snapshot.jobs:
        _tell(view, ev.JobSubmitted(job.job, job.spec), snapshot.time_ns)
        if job.left:  # before any of these is held by another
            _tell(view, ev.AttemptPlaced(job.job, 1, job.left, _AGAIN), snapshot.time_ns)
            _tell(view, ev.AttemptEnded(job.job, 1, "failed", _AGAIN), snapshot.time_ns)
            _tell(view, ev.Requeued(job.job, _AGAIN), snapshot.time_ns)
    for job in snapshot.jobs:
        if job.places:
            _tell(view, ev.AttemptPlaced(job.job, 1, job.places, _AGAIN), snapshot.time_ns)
        view.jobs.open[job.job].not_before_ns = job.not_before_ns
    return view


def view_of(fleet: Fleet, time_ns: int = 1) -> View:
    """A view of this fleet, empty and healthy."""
    view = View()
    _tell(view, ev.FleetSeen(fleet), time_ns)
    return view


def _job(view: View, job: JobView) -> OpenJob:
    last = job.attempts[-1] if job.attempts else None
    places = last.places if last is not None and last.live else ()
    left = last.places if last is not None and not last.live and last.left_places else ()
    if not all(view.occupancy.knows(slice_id) for place in left for slice_id in place.slices):
        left = ()  # the fleet has changed since
    return OpenJob(job.id, job.spec, job.submitted_ns, places, job.not_before_ns, left)


def _tell(view: View, event: ev.Event, time_ns: int) -> None:
    apply(view, event, view.seq + 1, time_ns)
