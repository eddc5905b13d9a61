"""Parts of devices under queues and quotas: what a round over the queues asks of ``place.sharing``.

A round counts whole devices by node. A job that asks for parts takes one of them where it opens a device, and
none where it joins others; what its queue is charged is the share of its parts.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from unidle.fleet import WHOLE_PPM, Device
from unidle.jobs import JobSpec
from unidle.place.ground import Ground, Taken
from unidle.place.queue.model import Fits, Ints
from unidle.place.queue.spec import MILLI
from unidle.place.queued import KINDS
from unidle.place.sharing import Given, SharingRound
from unidle.view.state import JobView


def milli_of(share_ppm: int) -> int:
    """Thousandths of a device that a part counts: rounded down, so that three thirds are no more than one."""
    return max(1, share_ppm * MILLI // WHOLE_PPM)


class Parts:
    """The jobs of one round that may get parts of devices that are cut on demand."""

    def __init__(self, sharing: SharingRound, ground: Ground) -> None:
        self.sharing, self._ground = sharing, ground
        self._asks: dict[str, JobSpec] = {}
        self._most_ppm: dict[str, int] = {}
        self._proposed: dict[str, Given] = {}
        self._settled: set[str] = set()
        self._trial = SharingRound(ground, sharing.view, Taken(), sharing.table)

    def kind_for(self, job: JobView, kinds: Sequence[str]) -> str | None:
        """The kind of device of which the job asks for such parts, if it does; its parts are of no other then."""
        if job.spec.share is None:
            return None
        for kind in KINDS[job.spec.device]:
            spec = replace(job.spec, device="gpu" if kind == "gpu" else "cpu")
            if kind in kinds and self.sharing.never(spec) is None:
                self._asks[job.id] = spec
                return kind
        return None

    def milli(self, job: str) -> tuple[int, int]:
        """Thousandths of a device that one part of the job counts, where it counts least and where most."""
        counts = [milli_of(ppm) for ppm in self.sharing.share_ppm(self._asks[job])]
        return min(counts, default=MILLI), max(counts, default=MILLI)

    def at_most(self, job: str, milli: int) -> None:
        """Parts that count more are not for this job."""
        self._most_ppm[job] = (milli + 1) * WHOLE_PPM // MILLI - 1

    def asks(self, job: str) -> bool:
        return job in self._asks

    def fits(
        self, job: JobView, declared: Fits, kinds: Sequence[str], width: int, running: Container[str]
    ) -> Fits:
        """Slices by node that are declared, where those will do, else the devices that the job opens."""
        self._settle(running)

        def fits(room: Ints) -> Ints | None:
            self._proposed.pop(job.id, None)
            if (found := declared(room)) is not None:
                return found

            def may_open(device: Device, count: int) -> bool:
                return bool(room[at(device)] >= count)

            def at(device: Device) -> int:
                return kinds.index(device.kind) * width + self._ground.place[device.node]

            given = self._trial.find(
                job.id, self._asks[job.id], may_open, most_ppm=self._most_ppm.get(job.id, WHOLE_PPM)
            )
            if not isinstance(given, Given):
                return None
            self._proposed[job.id] = given
            counts = np.zeros(len(room), np.int64)
            for device in given.devices.values():
                counts[at(device)] = given.opened.get(device.node, 0)
            return counts

        return fits

    def of(self, started: Sequence[str]) -> list[Given]:
        """What the jobs that started get."""
        return [self._proposed[job] for job in started if job in self._proposed]

    def _settle(self, running: Container[str]) -> None:
        """Take what was proposed to jobs that have started since; what others were offered is void."""
        for job, given in list(self._proposed.items()):
            if job in running and job not in self._settled:
                self._trial.take(given)
                self._settled.add(job)
