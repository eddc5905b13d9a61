"""Checks and remedies that are ordered of agents: sent once for each connection, answered once, by their own agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine_hosts.scripted_hub import ScriptedHub, fleet
from unidle import wire
from unidle.engine.hosts.node_commands import ANSWER_NS, MOST_BYTES
from unidle.engine.hosts.timing import S
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeOutcome
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset

CHECK = NodeCommand("a", "n1", NodeCheck("quick", 60 * S, ("/data",)), 60 * S)
HOOK = NodeCommand("b", "n1", ("reboot", "n1"), 600 * S)


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(fleet())
    yield made
    made.engine.close()


def ended(hub: ScriptedHub, peer: int, run: frames.Run, **data: object) -> None:
    hub.receive(peer, frames.Done(run.id, ok=True, data={"name": run.body["name"], **data}))
    hub.after(0)


def test_an_order_is_sent_to_the_agent_of_its_node_and_its_answer_is_the_outcome(hub: ScriptedHub) -> None:
    agents = [hub.join(node) for node in ("n1", "n2")]
    hub.after(0)
    commands = hub.engine.commands
    for _ in range(2):
        commands.begin(CHECK)
        commands.begin(HOOK)
        assert commands.look("a") is None
    check, hook = hub.sent(agents[0], frames.Run)
    assert not hub.sent(agents[1], frames.Run)
    assert (check.what, check.fence) == ("check", 5)
    name = check.body.pop("name")
    assert check.body == {
        "limit_ns": 60 * S,
        "tier": "quick",
        "log_since_ns": 60 * S - 78,
        "used": ("/data",),
    }
    assert name.endswith("-a") and name != "a"  # of this fleet
    assert (hook.what, hook.body["words"]) == ("hook", ("reboot", "n1"))
    check.body["name"] = name
    ended(hub, agents[0], check, code=1, text="unfit")
    assert commands.look("a") == NodeOutcome(1, False, "unfit")
    commands.forget("a")
    assert commands.look("a") is None and commands.look("b") is None


def test_a_check_of_later_lines_waits_until_the_clock_of_its_host_is_measured(hub: ScriptedHub) -> None:
    agent, hub.clock_offset = hub.join("n1"), None
    hub.after(0)
    commands = hub.engine.commands
    commands.begin(CHECK)
    assert commands.look("a") is None and not hub.sent(agent, frames.Run)
    hub.clock_offset = ClockOffset(-3 * S, 2)
    assert commands.look("a") is None
    [check] = hub.sent(agent, frames.Run)
    assert check.body["log_since_ns"] == 63 * S - 2


def test_an_order_for_a_host_that_is_away_is_sent_when_its_agent_joins(hub: ScriptedHub) -> None:
    commands = hub.engine.commands
    commands.begin(CHECK)
    hub.after(20)
    agent = hub.join("n1")
    hub.after(0)
    assert commands.look("a") is None
    [run] = hub.sent(agent, frames.Run)
    assert run.body["limit_ns"] == 40 * S  # its time counts from when it was begun
    ended(hub, agent, run, code=0)
    assert commands.look("a") == NodeOutcome(0, False, "")


def test_an_order_is_sent_again_on_the_next_connection_and_only_its_answer_counts(hub: ScriptedHub) -> None:
    first = hub.join("n1")
    hub.after(0)
    commands = hub.engine.commands
    commands.begin(CHECK)
    [before] = hub.sent(first, frames.Run)
    hub.leave(first)
    hub.after(1)
    assert commands.look("a") is None
    second = hub.join("n1")
    hub.after(0)
    assert commands.look("a") is None
    [again] = hub.sent(second, frames.Run)
    assert again.body["name"] == before.body["name"] and again.id != before.id
    ended(hub, second, before, code=1)
    assert commands.look("a") is None
    ended(hub, second, again, code=0)
    assert commands.look("a") == NodeOutcome(0, False, "")


def test_only_the_agent_of_the_node_answers_for_it(hub: ScriptedHub) -> None:
    agent, other, box = hub.join("n1"), hub.join("n2"), hub.join("n1", "job")
    hub.after(0)
    commands = hub.engine.commands
    commands.begin(CHECK)
    [run] = hub.sent(agent, frames.Run)
    for stranger in (other, box):
        ended(hub, stranger, run, code=0)
        assert commands.look("a") is None
    ended(hub, agent, run, code=3)
    assert commands.look("a") == NodeOutcome(3, False, "")


def test_a_host_that_does_not_come_back_is_no_proof(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    commands = hub.engine.commands
    commands.begin(CHECK)
    hub.leave(agent)
    hub.after(69)
    assert commands.look("a") is None
    hub.after(ANSWER_NS / S - 9)
    text = "host n1 did not answer within 60 seconds"
    assert commands.look("a") == NodeOutcome(None, False, text, away=True)
    late = hub.join("n1")
    hub.after(0)
    assert commands.look("a") == NodeOutcome(None, False, text, away=True)
    assert not hub.sent(late, frames.Run)


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (frames.Done(0, False, "no \x1b[31mhooks"), "host n1: no ?[31mhooks"),
        (
            frames.Done(0, True, data={"name": "another", "code": 0}),
            "host n1: the answer is of another order",
        ),
        (frames.Done(0, True, data={"code": 0}), "host n1: the answer is not as agreed"),
        (frames.Done(0, True, data={"name": "", "code": "0"}), "host n1: the answer is not as agreed"),
    ],
)
def test_an_answer_that_is_none_proves_nothing(hub: ScriptedHub, done: frames.Done, text: str) -> None:
    agent = hub.join("n1")
    hub.after(0)
    commands = hub.engine.commands
    commands.begin(CHECK)
    [run] = hub.sent(agent, frames.Run)
    hub.receive(agent, frames.Done(run.id, done.ok, done.why, done.data))
    hub.after(0)
    found = commands.look("a")
    assert found is not None and found.code is None and not found.away
    assert found.text.startswith(text)


def test_an_order_that_is_fenced_has_no_outcome_and_this_controller_starts_nothing_more(
    hub: ScriptedHub,
) -> None:
    agent = hub.join("n1")
    hub.after(0)
    hub.engine.commands.begin(HOOK)
    hub.answer(agent, frames.Run, why=wire.FENCED)
    hub.after(0)
    assert hub.engine.commands.look("b") is None
    assert hub.engine.superseded


def test_what_does_not_fit_into_a_frame_is_not_sent(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    hub.engine.commands.begin(NodeCommand("c", "n1", ("x" * MOST_BYTES,), 60 * S))
    found = hub.engine.commands.look("c")
    assert found is not None and "longer than" in found.text
    assert not hub.sent(agent, frames.Run)


def test_which_hosts_are_not_expected_to_answer(hub: ScriptedHub) -> None:
    commands = hub.engine.commands
    assert commands.elsewhere
    assert commands.away("n1") == "host n1 has left the fleet"
    agent = hub.join("n1")
    hub.after(0)
    assert not commands.away("n1")
    hub.leave(agent)
    hub.after(7)
    assert not commands.away("n1")  # it dials again
    hub.after(2)
    assert commands.away("n1") == "host n1 does not answer"
    agent = hub.join("n1")
    hub.after(0)
    assert not commands.away("n1")
    hub.leave(agent, on_purpose=True)
    hub.after(0)
    assert commands.away("n1") == "host n1 has left the fleet"
