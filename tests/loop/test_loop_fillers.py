"""Fillers change nothing for other jobs: the same worlds, with and without them, and the books of who has which device.

Many more worlds than here: set ``UNIDLE_WIDE_EXAMPLES``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from loop.drive import Loop
from loop.wide import File, wide_worlds, world_of
from loop.widecheck import WideChecker
from loop.worlds import live
from share.cutting import check_ledger
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.fleet import device_of
from unidle.place.policy import Unidle

some = settings(max_examples=int(os.environ.get("UNIDLE_WIDE_EXAMPLES", "40")), deadline=None)
TOLD = (ev.AttemptPlaced, ev.StopAsked, ev.JobEnded, ev.Promised, ev.JobJudged, ev.AttemptEnded, ev.DeviceCut)


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


def lived(file: File, checker: type[WideChecker]) -> Loop:
    try:
        world = world_of(file)
    except BadInput:  # amounts that contradict each other
        reject()
    return live(world, policy=Unidle, checker=checker())


def of_others(loop: Loop, fillers: set[str]) -> dict[str, list[tuple[int, ev.Event]]]:
    """What was decided about each other job, and when; of each device, how it was cut."""
    found: dict[str, list[tuple[int, ev.Event]]] = {}
    for at, event in loop.events:
        of = event.device if isinstance(event, ev.DeviceCut) else getattr(event, "job", "")
        if isinstance(event, TOLD) and of not in fillers:
            found.setdefault(of, []).append((at, event))
    return found


@st.composite
def filler_jobs(draw: st.DrawFn, fleet: File) -> File:
    kinds = sorted({group["kind"] for node in fleet["nodes"] for group in node["devices"]})
    job: File = {
        "class": "filler", "name": "f", "device": draw(st.sampled_from([*kinds, "any"])), "ranks": draw(st.sampled_from([1, 1, 1, 2])),
        "grace_s": draw(st.sampled_from([0, 0.2, 10])), "priority": draw(st.sampled_from([0, 5])),
    }  # fmt: skip
    ask: File = {"job": job, "at_s": draw(st.sampled_from([0, 0, 5, 50])), "work_s": draw(st.sampled_from([5, 100, 1000]))}
    if draw(st.booleans()):
        job["checkpoint"] = {"path": "fill"}
        ask |= {"step_s": 1, "checkpoint_every": draw(st.sampled_from([1, 5]))}
    if "checkpoint" in job or job["grace_s"] == 0:  # it is killed; others would take up to 0.3 s to leave
        ask["stop_s"] = draw(st.sampled_from([0, 1, 20]))
    if any("cpus" in node for node in fleet["nodes"]) and draw(st.booleans()):
        job["requests"] = {"cpus": draw(st.sampled_from([1, 2]))}
    return ask


@st.composite
def filled_worlds(draw: st.DrawFn) -> File:
    """A world, and the same jobs with fillers among them."""
    file = draw(wide_worlds())
    return file | {"fillers": [draw(filler_jobs(file["fleet"])) for _ in range(draw(st.integers(1, 4)))]}


@some
@given(filled_worlds())
def test_all_other_jobs_start_and_end_as_without_fillers(file: File) -> None:
    """At the same nanosecond, on the same devices, for the same reasons; a filler's grace is no more than 0.3 s."""
    fillers = {f"j{len(file['asks']) + k}" for k in range(len(file["fillers"]))}
    alone = lived(file, WideChecker)
    filled = lived(file | {"asks": [*file["asks"], *file["fillers"]]}, FillerChecker)
    assert of_others(filled, fillers) == of_others(alone, set())
    check_ledger(filled.store)  # type: ignore[arg-type]
    for _, event in filled.events:
        if isinstance(event, ev.StopAsked) and event.job in fillers and event.for_job is not None:
            assert event.grace_ns <= 300_000_000
