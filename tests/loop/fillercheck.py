"""What must hold of a log with filler jobs, apart from what holds of all others."""

from __future__ import annotations

from collections.abc import Iterable

from loop.widecheck import WideChecker
from unidle.events import types as ev
from unidle.fleet import device_of


class FillerChecker(WideChecker):
    """Other jobs are checked as if there were no fillers. A slice has one filler at most, and no process of another
    job begins on it before the filler's have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.fillers: set[str] = set()
        self.on: dict[str, str] = {}  # by slice
        self.leaving: dict[str, set[str]] = {}  # by filler, its slices
        self.placed: dict[str, set[str]] = {}  # slices of other jobs

    def see(self, event: ev.Event, time_ns: int) -> None:
        job = getattr(event, "job", "")
        if isinstance(event, ev.JobSubmitted) and event.spec.is_filler:
            self.fillers.add(job)
        if job in self.fillers:
            self._of_filler(event, job)
            return
        if isinstance(event, ev.AttemptPlaced):
            self.placed[job] = slices_of(event)
            for piece in self.placed[job]:
                self._need(piece not in self.on, "a filler is stopped before its device is given away", job)
        elif isinstance(event, ev.DeviceCut):
            under = {device_of(piece) for piece in self.on}
            self._need(event.device not in under, "no device is cut under a filler", event.device)
        elif isinstance(event, ev.RankSaw) and any(mark.k == "spawn" for mark in event.marks):
            left = set[str]().union(*self.leaving.values())
            busy = {piece for piece in self.placed[job] if piece in left or device_of(piece) in left}
            self._need(not busy, "no process begins beside a filler's", f"{job} on {busy}")
        super().see(event, time_ns)

    def _of_filler(self, event: ev.Event, job: str) -> None:
        mine = {piece for piece, filler in self.on.items() if filler == job}
        if isinstance(event, ev.AttemptPlaced):
            found = slices_of(event)
            self._need(self.on.keys().isdisjoint(found), "one filler at most on a slice", job)
            used = {piece for piece in self._owner if piece in self.device_of}
            self._need(used.isdisjoint(found), "a filler gets what no other job uses", job)
            self.on |= dict.fromkeys(found, job)
        elif isinstance(event, ev.StopAsked) and event.for_job is not None:
            self.leaving.setdefault(job, set()).update(mine)
            self._free(mine)
        elif isinstance(event, ev.AttemptEnded):
            self.leaving.pop(job, None)
            self._free(mine)

    def _free(self, slices: Iterable[str]) -> None:
        for piece in slices:
            del self.on[piece]


def slices_of(event: ev.AttemptPlaced) -> set[str]:
    return {piece for place in event.places for piece in place.slices}
