"""Measured steps of jobs: applied by the fold once a job has ended.

By then it does not matter any more in which order the marks of its ranks arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from unidle.jobs.speeds import Known, SpeedRun, Speeds

if TYPE_CHECKING:
    from unidle.ledger.book import Book, SliceRef
    from unidle.view.jobs import AttemptView, JobView

PARTS: Final = 4
"""Parts that the steps of one attempt are cut into, to see how much they vary."""


def learn(speeds: Speeds, book: Book, job: JobView) -> None:
    """Apply what a job showed that has just ended."""
    runs = job_runs(book, job)
    last = job.steps() or None if job.state == "succeeded" else None
    if runs or last is not None:
        by_name = speeds.setdefault(job.spec.user, {})
        known = by_name.get(job.spec.name)
        if known is None:
            known = by_name[job.spec.name] = Known()
        known.add(runs, last)


def job_runs(book: Book, job: JobView) -> list[SpeedRun]:
    """What the job's attempts show so far."""
    found = [attempt_run(book, attempt, job.devices_of(attempt)) for attempt in job.attempts]
    return [run for run in found if run is not None]


def attempt_run(book: Book, attempt: AttemptView, devices: int) -> SpeedRun | None:
    """What an attempt shows: two steps or more, on devices of one model."""
    for lead in attempt.ranks:
        numbers = lead.step_n
        if len(numbers) > 1:
            break
    else:
        return None
    times_ns = lead.step_ns
    steps, span_ns = numbers[-1] - numbers[0], times_ns[-1] - times_ns[0]
    if steps <= 0 or span_ns < steps:
        return None  # reported all at once
    models = {ref.model for ref in slices_under(book, attempt)}
    if len(models) != 1:
        return None  # also without devices: there is no such speed
    beside_ns = (attempt.ended_ns or times_ns[-1]) - attempt.placed_ns - span_ns
    parts = _parts(times_ns, numbers)
    return SpeedRun(models.pop(), devices, steps, span_ns // steps, parts, max(beside_ns, 0))


def slices_under(book: Book, attempt: AttemptView) -> list[SliceRef]:
    """The slices that the attempt holds or held, as they were then."""
    slices = book.slices
    return [slices[k] for k in book.indexes([s for place in attempt.places for s in place.slices])]


def width_ppm(book: Book, attempt: AttemptView) -> int:
    """Devices under the attempt, in millionths."""
    return sum(ref.share_ppm for ref in slices_under(book, attempt))


def _parts(times_ns: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """The mean step of each part, cut between reports of steps. Empty where they are too few for two parts."""
    last = len(steps) - 1
    parts = min(PARTS, last)
    if parts < 2:
        return ()
    cuts = [k * last // parts for k in range(parts + 1)]
    means = [(times_ns[b] - times_ns[a]) // (steps[b] - steps[a]) for a, b in pairwise(cuts)]
    return tuple(means) if all(means) else ()
