"""From a view to a snapshot of what placement sees, and back to a view that gives the same decision."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.files.snapshot import OpenJob, PlacementSnapshot
from unidle.fleet import Fleet
from unidle.jobs import Reason
from unidle.view.fold import apply
from unidle.view.state import JobView, View
from unidle.view.usage import QueueUse

_AGAIN = Reason("snapshot", "as in the snapshot")


def freeze(view: View) -> PlacementSnapshot:
    """The fleet, its health, all jobs that have not ended in the order of submission, and what was measured."""
    jobs = sorted(view.jobs.open.values(), key=lambda job: job.order)
    half_life_ns = view.fleet.history.half_life_ns
    past = {name: use.average_ppb(view.time_ns, half_life_ns) for name, use in view.usage.queues.items()}
    return PlacementSnapshot(
        view.time_ns, view.fleet, dict(view.health), tuple(map(_job, jobs)), past, view.speeds
    )


def thaw(snapshot: PlacementSnapshot) -> View:
    """A view in which every decision is the one that it was when the snapshot was taken."""
    view = view_of(snapshot.fleet, snapshot.time_ns)
    for name, past in snapshot.past_ppb.items():
        view.usage.queues[name] = QueueUse(view.time_ns, {}, dict(past))
    view.speeds = snapshot.speeds
    for target, health in snapshot.health.items():
        _tell(view, ev.HealthSet(target, health, _AGAIN), snapshot.time_ns)
    for job in snapshot.jobs:
        _tell(view, ev.JobSubmitted(job.job, job.spec), snapshot.time_ns)
        if job.places:
            _tell(view, ev.AttemptPlaced(job.job, 1, job.places, _AGAIN), snapshot.time_ns)
        view.jobs.open[job.job].not_before_ns = job.not_before_ns
    return view


def view_of(fleet: Fleet, time_ns: int = 1) -> View:
    """A view of this fleet, empty and healthy."""
    view = View()
    _tell(view, ev.FleetSeen(fleet), time_ns)
    return view


def _job(job: JobView) -> OpenJob:
    places = job.live.places if job.live is not None else ()
    return OpenJob(job.id, job.spec, job.submitted_ns, places, job.not_before_ns)


def _tell(view: View, event: ev.Event, time_ns: int) -> None:
    apply(view, event, view.seq + 1, time_ns)
