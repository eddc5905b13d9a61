"""What notices say is done about a fault, against what the controller does: for each remedy, on its own events."""

from __future__ import annotations

import pytest

from control.remedy_worlds import RemedyWorld
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.notices.derive import DerivationState, derive
from unidle.notices.model import Notice
from unidle.view.watching import hit_by

FLEET = {
    "nodes": [{"id": "n[1-4]", "devices": {"count": 2, "kind": "gpu"}}],
    "guard": {
        "preflight": "off",
        "out": {"nodes": 1},
        "remedy": {step: {"command": [step]} for step in ("reset_gpu", "reboot", "replace")},
        "prove": {"command": ["prove"]},
    },
}
JOBS = {"job": {"device": "gpu", "does": {"work_s": 100_000, "step_s": 1}}}


def world(fault: str, target: str = "") -> tuple[RemedyWorld, list[Notice]]:
    """A fault of this action on what a job uses (or on ``target``), and the notices of all that follows."""
    run = RemedyWorld(FLEET, JOBS, {})
    run.submit("job")
    run.until(2)
    place = run.job("job").attempts[0].places[0]
    broken = target or (place.slices[0].partition("#")[0] if fault in ("reset_gpu", "drain") else place.node)
    strike(run, fault, broken)
    run.until(60)
    return run, notices(run)


def strike(run: RemedyWorld, action: str, target: str) -> None:
    """The events of a detector: the fault, and a verdict for each job that it hits."""
    now_ns, because = run.clock.now_ns(), Reason("x", f"{target} broke")
    node, _, device = target.partition("/")
    seen = ev.FaultSeen(node, "xid", action, now_ns, now_ns, because, target if device else "")
    hit = list(hit_by(run.controller.view, seen))
    run.controller._emit(seen)
    for job, attempt, rank in hit:
        run.controller._emit(
            ev.VerdictReached(job, attempt, "gpu", now_ns, now_ns, False, because, rank, node)
        )


def notices(run: RemedyWorld) -> list[Notice]:
    known = DerivationState(source="log")
    found = [
        derive(known, ev.decode(e.kind, e.body, e.seq), e.seq, e.time_ns)
        for e in run.store.read()
        if e.kind in ev.KIND_OF.values()
    ]
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("action", "says", "does"),
    [
        ("drain", "it is checked next", "prove"),
        ("reset_gpu", "its GPU is reset next", "reset_gpu"),
        ("reboot_node", "it is rebooted next", "reboot"),
        ("replace", "it is replaced next", "replace"),
    ],
)
def test_a_notice_says_what_is_done_and_that_is_done(action: str, says: str, does: str) -> None:
    run, found = world(action)
    verdict = next(one for one in found if one.kind == "verdict")
    target = verdict.text.split(": ")[1].split(" ")[0]
    assert (
        verdict.text
        == f"{verdict.job}: {target} broke; {target} is drained; {says}; the job is stopped, and placed again elsewhere"
    )
    drained = next(one for one in found if one.state == "draining")
    assert drained.text == f"{target} is drained: {target} broke; {says}"
    assert run.commands is not None and next(iter(run.commands.begun)) == does
    attempts = run.job("job").attempts
    assert len(attempts) == 2 and attempts[0].outcome != "succeeded"
    assert not any("nothing is done" in one.text for one in found)


@pytest.mark.parametrize("action", ["check_link", "watch", "check_hardware"])
def test_a_fault_that_takes_nothing_out_still_says_that_nothing_is_done(action: str) -> None:
    run, found = world(action)
    assert [one.text.partition("; ")[2] for one in found if one.kind == "verdict"] == (
        [] if action == "watch" else ["nothing is done by itself"]
    )
    assert len(run.job("job").attempts) == 1 and not any(one.kind == "node" for one in found)


def test_a_node_that_may_not_be_taken_out_is_said_to_stay_in_use() -> None:
    run = RemedyWorld(FLEET, {}, {"replace": [{"never": True}]})
    run.until(1)
    strike(run, "replace", "n1")
    run.until(50)
    strike(run, "reboot_node", "n2")
    run.until(60)
    stays = [one for one in notices(run) if one.state == "suspect"]
    assert [one.subject for one in stays] == ["node:n2"]
    assert stays[0].text == (
        "n2 stays in use: n2 broke; not removed: 1 of 4 nodes are out of use, which is the limit"
    )


def test_a_drain_by_a_person_says_who_and_what_ends_it() -> None:
    run = RemedyWorld(FLEET, {}, {})
    run.until(1)
    run.ask("drain", "n1")
    run.until(10)
    (said,) = [one for one in notices(run) if one.state == "draining"]
    assert said.text == "n1 is drained by ann; it stays out of use until a person returns it"
    assert said.severity == "info"
