"""Keeps jobs off nodes that they would have to leave soon: planned maintenance."""

from __future__ import annotations

from unidle.place.protocol import Place
from unidle.view.jobs import JobView
from unidle.view.state import View


def in_the_way(view: View, place: Place, now_ns: int) -> list[str]:
    """Nodes of the place that have to be empty before the job is expected to end."""
    windows = view.care.windows
    if not windows:
        return []
    from unidle.guard.maintenance import expected_ns, runs_into

    job = view.jobs[place.job]
    return runs_into(
        (p.node for p in place.places), windows, expected_ns(job.spec, _predicted_ns(job)), now_ns
    )


def _predicted_ns(job: JobView) -> int | None:
    return next((p.value_ns for p in reversed(job.predictions) if p.what == "run_time"), None)
