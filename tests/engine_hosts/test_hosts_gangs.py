"""Gangs on hosts, step by step: what is sent to boxes, and what is reported of silence and of leases that are over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine_hosts.scripted_hub import TIMING, ScriptedHub, fleet, gang_of, marks_of, node_of
from unidle import wire
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import Disrupted, LiveAttempt, RankMarks, Silent, StopGang
from unidle.events.marks import Mark
from unidle.hub import frames

SPAWN = Mark("spawn", 1, pid=1, ticks=1)


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(fleet())
    yield made
    made.engine.close()


def test_agents_are_asked_for_the_boxes_and_no_rank_starts_before_all_are_prepared(hub: ScriptedHub) -> None:
    agents = [hub.join(name) for name in ("n1", "n2")]
    hub.after(0)
    hub.engine.start(gang_of())
    assert [hub.sent(agent, frames.Box)[0].token for agent in agents] == [
        "token of n1 job",
        "token of n2 job",
    ]
    one = hub.join("n1", "job")
    hub.after(0)
    assert not hub.sent(one, frames.Prepare)
    two = hub.join("n2", "job")
    hub.after(0)
    assert [frame.leader for frame in hub.all_sent[-2:] for frame in [frame[1]]] == [True, False]
    hub.answer(one, frames.Prepare, port=4000, interface="eth7")
    hub.after(0)
    assert not hub.sent(one, frames.Start)
    hub.answer(two, frames.Prepare, interface="eth8")
    hub.after(0)
    (start,) = hub.sent(one, frames.Start)
    assert [(rank.rank, rank.leader) for rank in start.ranks] == [(0, True)]
    (other,) = hub.sent(two, frames.Start)
    orders = other.ranks[0].orders
    assert (orders["boot"], orders["clock_offset_ns"]) == ("boot of n2", 77)
    env = orders["env"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["GLOO_SOCKET_IFNAME"]) == ("10.0.0.1", "4000", "eth8")
    assert "PATH" not in env


def test_a_box_that_does_not_come_is_named(hub: ScriptedHub) -> None:
    agent = hub.join("n2")
    hub.join("n1", "job")
    hub.engine.start(gang_of())
    hub.after(3, agent)
    hub.answer(agent, frames.Box, why="no Python there")
    seen = hub.after(60, agent, 2)
    ends = [one for one in seen if isinstance(one, RankMarks)]
    assert [(one.rank, one.marks[0].k) for one in ends] == [(0, "lost"), (1, "lost")]
    assert "the box of node n2 was not there within 60 s: no Python there" in (ends[0].marks[0].text or "")


def test_a_rank_is_lost_only_when_the_lease_of_its_box_is_over(hub: ScriptedHub) -> None:
    one, _ = hub.running()
    since_ns = hub.clock.now_ns()
    seen = hub.after(9, one)
    assert [s for s in seen if isinstance(s, Silent)] == [Silent("job", 1, (1,), since_ns)]
    assert not marks_of(hub.after(6, one))
    hub.clock.advance_to(since_ns + TIMING.fenced_after_ns - 1)
    assert not marks_of(hub.after(0))
    hub.clock.advance_to(since_ns + TIMING.fenced_after_ns)
    (lost,) = hub.after(0)
    assert isinstance(lost, RankMarks)
    assert (lost.rank, lost.first, lost.marks[0].k) == (1, 1, "lost")
    assert lost.marks[0].text is not None
    assert lost.marks[0].text.startswith("node n2 has been silent for 15.5 s, since 2023-11-14 22:13:20 UTC")


def test_a_box_that_comes_back_in_time_ends_the_silence_and_nothing_else(hub: ScriptedHub) -> None:
    one, two = hub.running()
    hub.leave(two)
    hub.after(9, one)
    held = frames.BoxHeld([frames.AttemptHeld(1, {"1": frames.RankHeld(3)})])
    again = hub.join("n2", "job", held=held)
    assert hub.after(0, one) == [Silent("job", 1, (1,), 0)]
    assert hub.sent(again, frames.Resume) == [frames.Resume(1, {"1": 1})]
    hub.marks(again, 1, 0, SPAWN, Mark("note", 2), Mark("note", 3))  # the first one again
    assert marks_of(hub.after(0, one)) == [(1, 1, ["note", "note"])]
    assert not hub.sent(again, frames.Start)


def test_a_box_that_comes_back_late_is_stopped_and_its_marks_are_dropped(hub: ScriptedHub) -> None:
    one, two = hub.running()
    hub.leave(two)
    assert marks_of(hub.after(16, one)) == [(1, 1, ["lost"])]
    held = frames.BoxHeld([frames.AttemptHeld(1, {"1": frames.RankHeld(3)})])
    again = hub.join("n2", "job", held=held)
    hub.after(0, one)
    (stop,) = hub.sent(again, frames.Stop)
    assert (stop.attempt, stop.ranks, stop.grace_ns) == (1, [1], 0)
    hub.marks(again, 1, 1, Mark("exit", 9, code=-9))
    assert not marks_of(hub.after(0, one))
    hub.engine.release("job", 1)
    later = hub.join("n2", "job", held=held)
    hub.after(0, one)
    assert hub.sent(later, frames.Stop)
    hub.answer(later, frames.Release, why="ranks of it have not ended")
    hub.after(2, one)
    assert hub.sent(later, frames.Release), "it is asked again"


def test_a_missing_mark_is_asked_for_again(hub: ScriptedHub) -> None:
    one, _ = hub.running()
    hub.marks(one, 0, 3, Mark("exit", 9, code=0))
    assert not marks_of(hub.after(0))
    assert hub.sent(one, frames.Resume) == [frames.Resume(1, {"0": 1})]


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b'{"k":"note"}',
        b'{"k":"note","t":1,"text":"\xa9"}',
        b'{"k":"note","t":9223372036854775808}',
        b'{"k":"note","t":1,"info":{"x":-9223372036854775809}}',
    ],
)
def test_a_line_that_is_no_mark_becomes_a_note(hub: ScriptedHub, line: bytes) -> None:
    one, _ = hub.running()
    hub.receive(one, frames.Marks(1, 0, 1, (frames.msgspec.Raw(line),)))
    assert marks_of(hub.after(0)) == [(0, 1, ["note"])]


@pytest.mark.parametrize("wrong_s", [-600, 600])
def test_an_end_with_the_wall_clock_of_a_host_that_is_wrong_is_moved_between_its_neighbours(
    hub: ScriptedHub, wrong_s: int
) -> None:
    hub.engine.start(gang_of(1))
    box = hub.join("n1", "job")
    now_ns = hub.clock.now_ns()
    hub.marks(box, 0, 0, Mark("lost", now_ns + wrong_s * S, text="stopped before it was started"))
    [never_begun] = hub.after(0)
    hub.engine.start(gang_of(1, attempt=2))
    hub.marks(box, 0, 0, Mark("spawn", now_ns - 3 * S, pid=1, ticks=1), attempt=2)
    hub.marks(box, 0, 1, Mark("lost", now_ns + wrong_s * S), attempt=2)
    _, begun = hub.after(0)
    assert [mark.t for one in (never_begun, begun) for mark in one.marks] == [
        now_ns, now_ns - 3 * S if wrong_s < 0 else now_ns
    ]  # fmt: skip


def test_an_adopted_rank_that_its_box_does_not_know_is_started_or_lost(hub: ScriptedHub) -> None:
    """Rank 0 has marks in the log, so that it did run; rank 1 has none."""
    hub.engine.adopt([LiveAttempt(gang_of(), (4, 0), (False, False))])
    one, two = hub.join("n1", "job"), hub.join("n2", "job")
    assert marks_of(hub.after(0)) == [(0, 4, ["lost"]), (1, 0, ["lost"])]
    hub.engine.adopt([LiveAttempt(gang_of(attempt=2), (0, 0), (False, False))])
    three, four = hub.join("n1", "job"), hub.join("n2", "job")
    hub.after(0)
    assert hub.sent(three, frames.Prepare)
    assert hub.sent(four, frames.Prepare)
    assert (one, two) != (three, four)


def test_an_adopted_rank_whose_box_is_not_heard_counts_from_the_start_of_the_controller(
    hub: ScriptedHub,
) -> None:
    start_ns = hub.clock.now_ns()
    hub.engine.adopt([LiveAttempt(gang_of(1), (4,), (False,))])
    assert hub.after(8.5) == [Silent("job", 1, (0,), start_ns)]
    assert not hub.after(6)
    assert marks_of(hub.after(2)) == [(0, 4, ["lost"])]


def test_orders_that_no_frame_can_hold_are_refused_with_the_remedy(hub: ScriptedHub) -> None:
    command = gang_of(1)
    spec = replace(command.spec, env={"BIG": "x" * 2_000_000})
    hub.engine.start(replace(command, spec=spec))
    one = hub.join("n1", "job")
    hub.after(0)
    hub.answer(one, frames.Prepare, port=4000)
    (lost,) = hub.after(0, one)
    assert isinstance(lost, RankMarks)
    assert "make its environment and command smaller" in (lost.marks[0].text or "")


def test_a_box_that_has_a_newer_controller_is_not_started_on_again(hub: ScriptedHub) -> None:
    hub.engine.start(gang_of(1))
    one = hub.join("n1", "job")
    hub.after(0)
    hub.answer(one, frames.Prepare, why=wire.FENCED)
    assert not hub.after(3, one)
    assert hub.engine.superseded
    assert not hub.sent(one, frames.Prepare)


def test_a_box_that_is_not_ready_is_asked_again_and_then_given_up(hub: ScriptedHub) -> None:
    hub.engine.start(gang_of(1))
    one = hub.join("n1", "job")
    hub.after(0)
    for _ in range(2):
        hub.answer(one, frames.Prepare, why="the port is gone")
        assert not hub.after(2, one)
    hub.answer(one, frames.Prepare, why="the port is gone")
    (lost,) = hub.after(0, one)
    assert isinstance(lost, RankMarks)
    assert "node n1: the port is gone" in (lost.marks[0].text or "")


def test_a_stop_goes_to_what_runs_and_is_sent_again_on_a_new_connection(hub: ScriptedHub) -> None:
    one, two = hub.running()
    hub.leave(two)
    hub.after(0)
    hub.engine.stop(StopGang("job", 1, 2, 5 * S))
    hub.engine.stop(StopGang("job", 1, 2, 5 * S))
    assert len(hub.sent(one, frames.Stop)) == 1
    held = frames.BoxHeld([frames.AttemptHeld(1, {"1": frames.RankHeld(1)})])
    again = hub.join("n2", "job", held=held)
    hub.after(0)
    assert [(f.ranks, f.grace_ns) for f in hub.sent(again, frames.Stop)] == [([1], 5 * S)]


def test_a_box_of_a_job_that_is_over_ends(hub: ScriptedHub) -> None:
    hub.engine.keep(["other"])
    stale, kept = hub.join("n1", "job"), hub.join("n1", "other")
    hub.after(0)
    assert hub.sent(stale, frames.End)
    assert not hub.sent(kept, frames.End)
    hub.engine.finish("other")
    assert hub.sent(kept, frames.End)


def test_an_agent_that_is_gone_changes_nothing_for_running_ranks(hub: ScriptedHub) -> None:
    boxes = hub.running()
    agent = hub.join("n2", described=node_of("n2"))
    hub.after(0)
    hub.leave(agent)
    assert not marks_of(hub.after(30, *boxes))


def test_a_host_that_ends_its_ranks_disrupts_the_gang_before_their_ends(hub: ScriptedHub) -> None:
    one, two = hub.running()
    hub.receive(one, frames.Seen(wire.ENDS))
    hub.marks(one, 0, 1, Mark("exit", 2, code=-15))
    disrupted, end = hub.after(0)
    assert isinstance(disrupted, Disrupted)
    assert (disrupted.job, disrupted.attempt) == ("job", 1)
    assert disrupted.because.text == "host n1 ends its ranks"
    assert isinstance(end, RankMarks)
    hub.marks(two, 1, 1, Mark("exit", 2, code=0))
    hub.after(0)
    hub.receive(two, frames.Seen(wire.ENDS))
    assert not hub.after(0)  # none of its ranks lives


def test_a_box_that_ends_before_its_ranks_were_started_disrupts_nothing_and_is_given_none(
    hub: ScriptedHub,
) -> None:
    hub.join("n2")
    one = hub.join("n1", "job")
    hub.engine.start(gang_of())
    hub.after(0)
    hub.receive(one, frames.Seen(wire.ENDS))
    assert not hub.after(0)
    two = hub.join("n2", "job")
    hub.after(0)
    assert not hub.sent(one, frames.Prepare)
    hub.leave(one)
    again = hub.join("n1", "job")
    hub.after(0)
    hub.answer(again, frames.Prepare, port=4000, interface="eth7")
    hub.answer(two, frames.Prepare, interface="eth8")
    hub.after(0)
    assert hub.sent(again, frames.Start)
    assert hub.sent(two, frames.Start)


def test_no_rank_starts_in_a_box_that_its_maker_ends(
    hub: ScriptedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So of a pod that is too small for the next attempt: its box is connected until the pod has ended."""
    leaving = {"n1"}
    monkeypatch.setattr(hub.engine._core.maker, "leaves", lambda link: link.node in leaving, raising=True)
    for name in ("n1", "n2"):
        hub.join(name)
    older, other = hub.join("n1", "job"), hub.join("n2", "job")
    hub.engine.start(gang_of())
    hub.after(0)
    assert not hub.sent(older, frames.Prepare) and not hub.sent(other, frames.Prepare)
    hub.leave(older)
    leaving.clear()
    newer = hub.join("n1", "job")
    hub.after(0)
    assert hub.sent(newer, frames.Prepare) and hub.sent(other, frames.Prepare)
