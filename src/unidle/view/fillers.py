"""Filler jobs: those that wait, and the devices that they use. An index of the view, never stored.

A filler is in no queue, in no quota and in no count of free devices: for all other jobs its devices are free. When one of
them is given to another job, the filler is stopped and has *yielded*: from then on the time of its devices is not
its own. Until its processes have ended, the other job's do not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unidle.fleet import device_of

if TYPE_CHECKING:
    from unidle.view.job_table import JobTable
    from unidle.view.jobs import AttemptView, JobView


class Fillers:
    """``waiting``: jobs; ``on``: by slice, the filler that uses it; ``leaving``: by device, who has yielded it and has not ended."""

    __slots__ = ("leaving", "on", "waiting")

    def __init__(self, table: JobTable) -> None:
        self.waiting: set[str] = set()
        self.on: dict[str, str] = {}
        self.leaving: dict[str, set[str]] = {}
        for job in table.open.awake():
            if job.spec.is_filler:
                self.changed(job)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.on or self.leaving)

    def changed(self, job: JobView) -> None:
        """A filler began to wait, was placed, yielded, or ended."""
        live = job.live
        self.waiting.discard(job.id)
        if live is None:
            if job.state in ("queued", "restarting"):
                self.waiting.add(job.id)
            return
        ids = slices_of_attempt(live)
        if live.yielded_ns is None:
            self.on.update(dict.fromkeys(ids, job.id))
            return
        for slice_id in ids:
            if self.on.get(slice_id) == job.id:
                del self.on[slice_id]
            self.leaving.setdefault(device_of(slice_id), set()).add(job.id)

    def left(self, job: JobView, attempt: AttemptView) -> None:
        """The attempt has ended."""
        for slice_id in slices_of_attempt(attempt):
            if self.on.get(slice_id) == job.id:
                del self.on[slice_id]
            here = self.leaving.get(device := device_of(slice_id))
            if here is not None:
                here.discard(job.id)
                if not here:
                    del self.leaving[device]

    def is_in_use(self, attempt: AttemptView) -> bool:
        """Whether a filler that yielded has not left the devices of this attempt yet."""
        if not self.leaving:
            return False
        return any(device_of(slice_id) in self.leaving for slice_id in slices_of_attempt(attempt))


def slices_of_attempt(attempt: AttemptView) -> list[str]:
    """All slices of an attempt, rank by rank."""
    return [slice_id for place in attempt.places for slice_id in place.slices]
