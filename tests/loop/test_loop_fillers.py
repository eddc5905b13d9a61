"""Fillers change nothing for other jobs: the same worlds, with and without them, and the books of who has which device.

Many more worlds than here: set ``UNIDLE_WIDE_EXAMPLES``.
"""

from __future__ import annotations

import os

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from loop.drive import Loop
from loop.fillercheck import FillerChecker
from loop.wide import File, wide_worlds, world_of
from loop.widecheck import WideChecker
from loop.worlds import live
from share.cutting import check_ledger
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.place.policy import Unidle

some = settings(max_examples=int(os.environ.get("UNIDLE_WIDE_EXAMPLES", "40")), deadline=None)
TOLD = (ev.AttemptPlaced, ev.StopAsked, ev.JobEnded, ev.Promised, ev.JobJudged, ev.AttemptEnded, ev.DeviceCut)


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
    if "queues" in fleet:
        parents = {queue.get("parent") for queue in fleet["queues"]}
        job["queue"] = draw(st.sampled_from([q["name"] for q in fleet["queues"] if q["name"] not in parents]))
    ask: File = {
        "job": job,
        "at_s": draw(st.sampled_from([0, 0, 5, 50])),
        "work_s": draw(st.sampled_from([5, 100, 1000])),
    }
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
