"""What holds of idle holders in every world, with controllers that are killed and clocks that jump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.idle_worlds import IdleWorld, S
from sim.worlds import canonical
from unidle.control.queries.idle_holders import idle_holders
from unidle.events import types as ev
from unidle.view.snapshot import load_view


@dataclass(frozen=True)
class Case:
    idle: dict[str, Any]
    does: list[dict[str, Any]]
    kills: tuple[tuple[int, int], ...]  # after so many seconds, and for how many nobody is there
    until_s: int = 4000


@st.composite
def cases(draw: st.DrawFn) -> Case:
    idle = {
        "after": f"{draw(st.integers(60, 600))}s",
        "start": f"{draw(st.integers(60, 900))}s",
        "notice": f"{draw(st.integers(40, 400))}s",
        "release": draw(st.booleans()),
    }
    does = [
        {
            "work_s": draw(st.integers(0, 3000)),
            "startup_s": draw(st.integers(0, 60)),
            "step_s": draw(st.sampled_from([0, 0, 1, 7, 50])),
            "quiet_at_s": draw(st.integers(0, 1500)),
            "quiet_s": draw(st.sampled_from([0, 100, 700, 2000, 10**6])),
            "measurable": draw(st.sampled_from([True, True, False])),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    times = sorted(draw(st.lists(st.integers(1, 3500), max_size=3, unique=True)))
    return Case(idle, does, tuple((at_s, draw(st.sampled_from([0, 5, 25, 100, 900]))) for at_s in times))


def drive(case: Case) -> IdleWorld:
    fleet = {"nodes": [{"id": "n", "devices": {"count": 4, "kind": "gpu"}}], "idle": case.idle}
    world = IdleWorld(fleet, {f"j{k}": {"does": does} for k, does in enumerate(case.does)})
    for name in world.jobs:
        world.submit(name)
    for at_s, away_s in case.kills:
        world.until(at_s)
        world.kill()
        world.clock.advance_to(world.clock.now_ns() + away_s * S)
        world.take_up()
    world.until(case.until_s)
    return world


def events(world: IdleWorld) -> list[tuple[int, ev.Event]]:
    return [(stored.time_ns, ev.decode(stored.kind, stored.body)) for stored in world.store.read()]


def quiet_span_ns(case: Case, job: str) -> tuple[int, int]:
    """When the gang truly does nothing; a gang alone starts at time 1 and is never slowed down."""
    does = case.does[int(job[1:])]
    if not does["quiet_s"] or does["quiet_at_s"] > does["work_s"]:
        return 0, 0
    begin = 1 + (does["startup_s"] + does["quiet_at_s"]) * S
    return begin, begin + does["quiet_s"] * S


def step_ns(case: Case, job: str) -> int:
    """How long before it falls quiet a gang may have shown its last step."""
    return int(case.does[int(job[1:])]["step_s"]) * S


few = settings(max_examples=25, deadline=None)


@few
@given(cases())
def test_nobody_is_released_without_a_notice_of_full_length_under_watch(case: Case) -> None:
    told: dict[str, tuple[int, ev.IdleTold]] = {}
    started_ns = 0
    for at_ns, event in events(drive(case)):
        if isinstance(event, ev.ControllerStarted):
            started_ns = at_ns
        elif isinstance(event, ev.IdleTold):
            told[event.job] = at_ns, event
        elif isinstance(event, ev.IdleOver):
            del told[event.job]
        elif isinstance(event, ev.StopAsked):
            assert case.idle["release"]
            told_ns, notice = told[event.job]
            assert notice.notice_ns == int(case.idle["notice"][:-1]) * S
            assert at_ns >= max(told_ns, started_ns) + notice.notice_ns
            begin, end = quiet_span_ns(case, event.job)
            if case.does[int(event.job[1:])]["measurable"]:
                assert begin - step_ns(case, event.job) <= notice.since_ns < at_ns <= end
            else:
                assert notice.evidence == "steps"


@few
@given(cases())
def test_nobody_is_told_while_working_nor_twice_without_a_word_between(case: Case) -> None:
    standing: set[str] = set()
    for at_ns, event in events(drive(case)):
        if isinstance(event, ev.IdleTold):
            assert event.job not in standing
            standing.add(event.job)
            if case.does[int(event.job[1:])]["measurable"]:
                begin, end = quiet_span_ns(case, event.job)
                assert begin - step_ns(case, event.job) <= event.since_ns < at_ns <= end
                assert at_ns > begin
        elif isinstance(event, ev.IdleOver):
            standing.remove(event.job)


@few
@given(cases())
def test_who_is_quiet_long_enough_is_told_and_released_while_a_controller_stays(case: Case) -> None:
    calm = Case(case.idle, case.does, ())
    world = drive(calm)
    seen = events(world)
    for job, does in ((f"j{k}", does) for k, does in enumerate(case.does)):
        begin, end = quiet_span_ns(calm, job)
        stepped = does["step_s"] and does["quiet_at_s"] >= does["step_s"]
        waits_s = int(case.idle["after" if stepped else "start"][:-1])
        due = begin + (waits_s + int(case.idle["notice"][:-1])) * S
        if does["measurable"] and due + 60 * S < min(end, calm.until_s * S):
            kinds = [type(event) for _, event in seen if getattr(event, "job", "") == job]
            assert ev.IdleTold in kinds
            assert (ev.StopAsked in kinds) == case.idle["release"]


@few
@given(cases())
def test_the_log_alone_gives_the_same_view_and_the_same_log_comes_again(case: Case) -> None:
    first, second = drive(case), drive(case)
    assert [e[1:] for e in first.store.read()] == [e[1:] for e in second.store.read()]
    assert canonical(load_view(first.store)) == canonical(first.controller.view)


@few
@given(cases())
def test_the_ledger_adds_up_and_idle_time_is_no_more_than_there_was(case: Case) -> None:
    world = drive(case)
    for name in world.jobs:
        spent, attempt = world.ledger_s(name), world.job(name).attempts[-1]
        end_ns = attempt.ended_ns if attempt.ended_ns is not None else world.controller.view.time_ns
        assert round(sum(spent.values()) * S) == end_ns - attempt.placed_ns
        begin, end = quiet_span_ns(case, name)
        if attempt.notice is not None and case.does[int(name[1:])]["measurable"]:
            gone_ns = attempt.ranks[0].end_ns or end_ns  # held on until the log knew of the end
            unseen_ns = case.does[int(name[1:])]["work_s"] * S if case.kills else 0  # while nobody measured
            most_ns = end - begin + step_ns(case, name) + end_ns - gone_ns + unseen_ns
            assert spent.get("idle", 0) * S <= most_ns


@few
@given(cases())
def test_what_is_listed_is_held_and_its_figures_agree(case: Case) -> None:
    view = drive(case).controller.view
    for line in idle_holders(view, view.time_ns):
        job = view.jobs[line["job"]]
        assert job.live is not None
        assert line["since_ns"] >= job.live.placed_ns
        assert line["quiet_ns"] <= view.time_ns - line["since_ns"]
        assert line["device_hours"] == pytest.approx(line["quiet_ns"] / 3.6e12)
        assert msgspec.json.encode(line)
