"""What holds whatever fleet, queues and jobs users declare, and what the wider checker itself finds.

Many more worlds than here: set ``UNIDLE_WIDE_EXAMPLES``.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, reject, settings

from loop.drive import Loop
from loop.test_loop_invariants import Twice
from loop.test_loopcheck import feed
from loop.wide import H100, File, wide_worlds, world_of
from loop.widecheck import WideChecker
from loop.worlds import live
from loopcheck import Violation
from share.cutting import check_ledger
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import Cut, CutPart
from unidle.jobs import RankPlace, Reason
from unidle.place.policy import Unidle

some = settings(max_examples=int(os.environ.get("UNIDLE_WIDE_EXAMPLES", "40")), deadline=None)
WHY = Reason("x", "x")


def lived(file: File, policy: type[Unidle]) -> Loop:
    """The world's whole life; every event was checked."""
    try:
        world = world_of(file)
    except BadInput:  # amounts that contradict each other
        reject()
    return live(world, policy=policy, checker=WideChecker())


@some
@given(wide_worlds())
def test_whatever_is_declared_every_start_is_one_that_the_files_allow(file: File) -> None:
    """Checked for every event (``WideChecker``); memory changes no decision, and no device time is lost or counted twice."""
    check_ledger(lived(file, Twice).store)  # type: ignore[arg-type]


@some
@given(wide_worlds(calm=True))
def test_a_job_that_waits_when_nothing_runs_was_told_never(file: File) -> None:
    loop = lived(file, Unidle)
    if any(queue.windows for queue in loop.fleet.queues):
        return  # at other hours it may
    uneven = any(len(set(device.slices_ppm)) > 1 for device in loop.fleet.devices())
    for job in loop.view.jobs.values():
        assert job.live is None
        # of parts, and of slices of several sizes, only a bound is known of what they count at least
        if not job.terminal and job.spec.share is None and not uneven:
            assert not Unidle().ever(loop.view, job.spec), f"{job.id}: {job.verdict}"


def test_what_was_wished_before_changes_no_decision() -> None:
    """One plain node: a wish of a job that came and went leaves nothing behind."""
    wished = {"job": {"preemption": "high", "ranks": 3}, "at_s": 0, "work_s": 1}
    file: File = {
        "fleet": {"nodes": [{"id": "n0", "devices": {"count": 3, "kind": "cpu"}}]},
        "asks": [wished, {"job": {}, "at_s": 10, "work_s": 1}],
    }
    loop = lived(file, Twice)
    assert [e.because.code for _, e in loop.events if isinstance(e, ev.AttemptPlaced)] == [
        "gang",
        "first_fit",
    ]


# -- the checker itself --------------------------------------------------------------------------------

FLEET: File = {
    "nodes": [
        {"id": "n0", "devices": {"count": 1, "kind": "gpu", "model": H100, "memory": "80GiB", "share": {}}},
        {"id": "n1", "devices": {"count": 1, "kind": "gpu", "model": H100, "memory": "80GiB", "slices_ppm": [400_000, 600_000]}},
        {"id": "n2", "devices": [{"count": 1, "kind": "gpu", "model": "A100"}, {"kind": "gpu", "vendor": "amd", "slices_ppm": [500_000, 500_000]}]},
    ],
    "queues": [{"name": "a", "limit": {"gpu": 0.5}}, {"name": "g", "guarantee": {"gpu": 3.5}}, {"name": "b"}],
}  # fmt: skip
HALF: File = {"share": {"fraction": 0.5, "mode": "time"}}


def job(name: str, **more: object) -> ev.JobSubmitted:
    data = {"command": ["x"], "user": "u", "device": "gpu", "queue": "b", **more}
    return ev.JobSubmitted(name, job_from_mapping(data, name, "."))


def placed(name: str, *slices: str) -> ev.AttemptPlaced:
    places = (RankPlace(k, piece.partition("/")[0], (piece,)) for k, piece in enumerate(slices))
    return ev.AttemptPlaced(name, 1, tuple(places), WHY)


def cut(mode: str, *parts: CutPart) -> ev.DeviceCut:
    return ev.DeviceCut("n0/0", Cut(mode, parts), WHY)  # type: ignore[arg-type]


def part(name: str, share: int, of: str = "", compute: int = 0) -> CutPart:
    return CutPart(f"1.{name}", share, of, compute)


REST = part("1", 500_000)
BROKEN: dict[str, list[ev.Event]] = {
    "a declared slice is large enough": [job("a", **HALF), placed("a", "n1/0#0")],
    "a slice is kept apart": [job("a", share={"fraction": 0.5, "mode": "mps"}), placed("a", "n2/1#0")],
    "who asks for a part gets a part": [job("a", **HALF), placed("a", "n0/0")],
    "whole devices where there are some": [job("a"), placed("a", "n1/0#0")],
    "is for those who asked for one": [job("a"), cut("time", part("0", 500_000, "a", 500_000), REST), placed("a", "n0/0#1.0")],
    "a part is for whom it was made": [
        job("a", **HALF), cut("time", part("0", 500_000, "b", 500_000), REST), placed("a", "n0/0#1.0"),
    ],
    "a part has the compute": [job("a", **HALF), cut("time", part("0", 500_000, "a", 400_000), REST), placed("a", "n0/0#1.0")],
    "a part is kept apart": [job("a", **HALF), cut("mps", part("0", 500_000, "a", 500_000), REST), placed("a", "n0/0#1.0")],
    "no more compute is promised": [cut("time", part("0", 500_000, "a", 600_000), part("1", 500_000, "b", 600_000))],
    "only models that were named": [job("a", models={"include": [H100]}), placed("a", "n2/0")],
    "no model that was excluded": [job("a", models={"exclude": ["A100"]}), placed("a", "n2/0")],
    "GPUs of the vendor": [job("a", hardware={"vendor": "amd"}), placed("a", "n2/0")],
    "quota held": [job("a", queue="a", share={"fraction": 0.6}), placed("a", "n1/0#1")],
    "guarantee held": [job("a"), placed("a", "n2/0")],
    "who was told never": [job("a"), ev.JobJudged("a", Reason("x", "it can never start here")), placed("a", "n2/0")],
    "the first starts first": [job("a"), job("b"), placed("b", "n2/0")],
    "only where the fleet says so": [job("a"), placed("a", "n2/0"), ev.StopAsked("a", 1, "moved", 0, WHY, for_job="b")],
}  # fmt: skip


@pytest.mark.parametrize("invariant", BROKEN)
def test_a_log_that_breaks_an_invariant_of_parts_is_found_out(invariant: str) -> None:
    with pytest.raises(Violation, match=invariant):
        feed(
            WideChecker(),
            [ev.FleetSeen(fleet_from_mapping(FLEET, "fleet")), *BROKEN[invariant]],
            settled=True,
        )
