"""What `unidle explain` prints of a filler job. Pure."""

from __future__ import annotations

from unidle.view.accounts import job_entries
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.words import counted, device_time


def filler_text(view: View, job: JobView) -> str | None:
    """What a filler is, and what it got so far; None of other jobs."""
    if not job.spec.is_filler:
        return None
    spent: dict[str, int] = {}
    for entry in job_entries(view, job, view.time_ns) if not job.terminal or job.id in view.unposted else ():
        ns = entry.sign * (entry.end_ns - entry.start_ns) * len(entry.slices)
        spent[entry.leaf] = spent.get(entry.leaf, 0) + ns
    text = "a filler: it runs on devices that no other job uses, and makes room at once"
    if not spent:
        return text
    yields = sum(attempt.yielded_ns is not None for attempt in job.attempts)
    useful, lost = (device_time(spent.get(leaf, 0) / 1_000) for leaf in ("filled", "discarded"))
    got = f"{useful} of useful work, {lost} discarded"
    if unknown := spent.get("unmeasured", 0):
        got += f", {device_time(unknown / 1_000)} without a step that was seen"
    return f"{text}; {counted(len(job.attempts), 'start')}, made room {counted(yields, 'time')}: {got}"
