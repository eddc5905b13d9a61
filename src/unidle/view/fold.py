"""The fold: one event at a time into the view. Deterministic, without I/O, clock or chance.

Marks of ranks are a set union by (job, attempt, rank, ordinal), so the same set of marks gives the
same view in any order of arrival and with any repetition.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.store.protocol import StoredEvent
from unidle.view import fold_fleet as of_fleet
from unidle.view import fold_hosts as of_hosts
from unidle.view import fold_jobs as of_jobs
from unidle.view import host_clocks, profiler_events, remedies, watching
from unidle.view.checkpoints import checkpoint_bad
from unidle.view.state import View

FOLD_VERSION: Final = 23
"""Grows when the same log would give another view; older snapshots are then passed over."""


def fold(view: View, events: Iterable[StoredEvent]) -> View:
    """Apply stored events in order and return the same, changed, view."""
    with collector_paused():
        for seq, time_ns, _, _, kind, body in events:
            apply(view, ev.decode(kind, body, seq), seq, time_ns)
    return view


@contextmanager
def collector_paused() -> Iterator[None]:
    """A view's millions of objects hold no cycles: to look for some costs a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def apply(view: View, event: ev.Event, seq: int, time_ns: int) -> None:
    """Apply one event. ``time_ns`` earlier than the view's counts as the view's time."""
    if seq != view.seq + 1:
        raise StoreDamaged(f"event {seq} follows event {view.seq}", remedy="run `unidle store check`")
    view.seq = seq
    now = view.time_ns
    if time_ns > now:
        view.time_ns = now = time_ns
    if not view.first_ns:
        view.first_ns = now
    if view.book.damaged:
        _apply_after_loss(view, event, now)
    elif isinstance(event, ev.RankSaw):  # four of five events
        of_jobs.rank_saw(view, event, now)
    else:
        view.book.sight(now)
        _HANDLERS[type(event)](view, event, now)


def _apply_after_loss(view: View, event: ev.Event, now: int) -> None:
    """As far as the event fits what is left of the log."""
    from unidle.view import after_loss  # only for a log that was repaired

    if not isinstance(event, ev.RankSaw):
        view.book.sight(now)
    if after_loss.fits(view, event, now):
        _HANDLERS[type(event)](view, event, now)
    else:
        view.misfits += 1


def _fault_seen(view: View, event: ev.FaultSeen, now: int) -> None:
    watching.fault_seen(view, event, now)
    remedies.fault_seen(view, event, now)


_HANDLERS: Final[dict[type, Callable[[View, Any, int], None]]] = {
    ev.ControllerStarted: of_fleet.controller_started,
    ev.ControllerStopped: of_fleet.controller_stopped,
    ev.Sighted: of_fleet.sighted,
    ev.FleetSeen: of_fleet.fleet_seen,
    ev.FleetChanged: of_fleet.fleet_changed,
    ev.FleetDeclared: of_fleet.fleet_declared,
    ev.ClockMeasured: host_clocks.clock_measured,
    ev.NodeTaken: of_hosts.node_taken,
    ev.PodsSeen: of_hosts.pods_seen,
    ev.HealthSet: of_fleet.health_set,
    ev.DeviceCut: of_fleet.device_cut,
    ev.JobSubmitted: of_jobs.job_submitted,
    ev.CancelAsked: of_jobs.cancel_asked,
    ev.EventsLost: of_fleet.events_lost,
    ev.RequestRefused: of_fleet.request_refused,
    ev.JobJudged: of_jobs.job_judged,
    ev.AttemptPlaced: of_jobs.attempt_placed,
    ev.RankSaw: of_jobs.rank_saw,
    ev.RanksSilent: of_hosts.ranks_silent,
    ev.RankLanded: of_hosts.rank_landed,
    ev.AttemptDisrupted: of_hosts.attempt_disrupted,
    ev.StopAsked: of_jobs.stop_asked,
    ev.VerdictReached: of_jobs.verdict_reached,
    ev.VerdictOver: of_jobs.verdict_over,
    ev.StacksTaken: of_jobs.stacks_taken,
    ev.FaultSeen: _fault_seen,
    ev.WatchSet: watching.watch_set,
    ev.CheckpointBad: checkpoint_bad,
    ev.RemedySet: remedies.remedy_set,
    ev.CordonSet: remedies.cordon_set,
    ev.SparesSet: of_fleet.spares_set,
    ev.MaintenanceSet: remedies.maintenance_set,
    ev.NodeChecked: remedies.node_checked,
    ev.LinksChecked: remedies.links_checked,
    ev.PreflightEnded: of_jobs.preflight_ended,
    ev.UtilisationSeen: of_jobs.utilisation_seen,
    ev.IdleTold: of_jobs.idle_told,
    ev.IdleOver: of_jobs.idle_over,
    ev.AttemptEnded: of_jobs.attempt_ended,
    ev.RetryPlanned: of_jobs.retry_planned,
    ev.Requeued: of_jobs.requeued,
    ev.Resized: of_jobs.resized,
    ev.Promised: of_jobs.promised,
    ev.JobEnded: of_jobs.job_ended,
    ev.JobsRemoved: of_jobs.jobs_removed,
    ev.KeepSet: of_jobs.keep_set,
    ev.Predicted: of_jobs.predicted,
    ev.BudgetMeasured: profiler_events.budget_measured,
    ev.StepsWatched: profiler_events.steps_watched,
    ev.ProfilerSet: profiler_events.profiler_set,
}
