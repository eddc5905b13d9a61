"""Nodes that are reserved: for gangs that come back after a fault, or on probation."""

from __future__ import annotations

from typing import Final

from unidle.view.jobs import JobView
from unidle.view.state import View

KEEPS_PLACES_NS: Final = 30_000_000_000
"""Where spares are kept, a gang with a longer back-off leaves its places to others."""


def comes_back(job: JobView) -> bool:
    """Whether it waits because its last attempt failed, or was stopped as it hung or its node is sick."""
    if job.live is not None:
        return False
    for attempt in reversed(job.attempts):
        why = attempt.stop.why if attempt.stop is not None else None
        if why in ("service_stopped", "moved"):  # says nothing of what came before
            continue
        failed = attempt.outcome == "failed" and why in (None, "rank_failed")
        return failed or why in ("hung", "node_sick")
    return False


def coming_back(view: View) -> list[JobView]:
    """Gangs whose last places are kept for them: they restart soon after a fault, and were not requeued yet."""
    waiting = (view.jobs.open[name] for name in sorted(view.unjudged))
    return [job for job in waiting if job.attempts and _soon(job) and comes_back(job)]


def _soon(job: JobView) -> bool:
    soon = job.not_before_ns - job.waiting_since_ns <= KEEPS_PLACES_NS
    return soon and job.spec.preemption != "low" and job.spec.share is None


def busy_nodes(view: View) -> set[str]:
    """Nodes on which is, or is to come, work that may not be stopped at any moment."""
    found = set(view.firm)
    for name, promise in view.promised.items():
        if not view.jobs[name].spec.gives_way:
            found.update(promise.devices)
    for job in coming_back(view):
        found.update(place.node for place in job.attempts[-1].places)
    return found


def free_for_most(view: View, kind: str) -> int:
    """Free slices of a kind, without those of spares."""
    kept = 0
    if view.spares:
        slots = view.occupancy.nodes.get(kind, ())
        kept = sum(node.free.bit_count() for node in slots if node.node in view.spares)
    return view.occupancy.free.get(kind, 0) - kept


def on_trial(view: View) -> frozenset[str]:
    """Nodes and devices on probation that jobs of level low may use, of those that are barred for others."""
    care, closed = view.care, view.closed
    if view.fleet.guard.probation_work == "none" or not closed:
        return frozenset()
    return frozenset(
        target
        for target, here in care.targets.items()
        if here.state == "probation"
        and closed.get(target) == "quarantine"
        and here.node not in care.cordons
        and target not in view.health
        and here.node not in view.health
    )
