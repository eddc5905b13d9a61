"""Nodes that join and leave with their agents, and which of them take new jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from engine_hosts.scripted_hub import ScriptedHub, fleet, node_of
from unidle.engine.hosts.host_nodes import AGENT_GONE
from unidle.engine.protocol import HealthChange, HostClock, NodesChanged
from unidle.events.marks import Mark
from unidle.hub import frames
from unidle.hub.protocol import Joined


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(fleet())
    yield made
    made.engine.close()


def test_a_node_joins_with_its_agent_and_leaves_with_it(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    assert hub.after(0) == [NodesChanged(put=(node_of("n1"),))]
    assert hub.engine.fleet().nodes == (node_of("n1"),)
    hub.leave(agent, on_purpose=True)
    assert hub.after(0) == [NodesChanged(gone=("n1",))]
    assert hub.engine.fleet().nodes == ()


def test_a_node_that_is_described_again_is_put_only_where_it_changed(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    same, other = node_of("n1"), replace(node_of("n1"), labels={"rack": "r2"})
    for described in (same, other):
        hub.receive(agent, frames.Seen("node", {"node": msgspec.to_builtins(described)}))
    assert hub.after(0) == [NodesChanged(put=(other,))]


def test_a_host_that_is_not_heard_is_down_until_it_is_heard(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    hub.leave(agent)
    assert hub.after(7) == []
    put, down = hub.after(2)
    assert isinstance(put, NodesChanged)
    assert put.put[0].taints == (AGENT_GONE,)
    assert isinstance(down, HealthChange)
    assert (down.target, down.health) == ("n1", "fault")
    assert "host n1 has not answered for 8.0 s" in down.because.text
    hub.join("n1")
    put, back = hub.after(0)
    assert put == NodesChanged(put=(node_of("n1"),))
    assert isinstance(back, HealthChange)
    assert back.health == "healthy"


def test_a_node_whose_boxes_are_heard_is_not_down_but_takes_no_new_job(hub: ScriptedHub) -> None:
    boxes = hub.running(1)
    agent = hub.join("n1")
    hub.after(0, *boxes)
    hub.leave(agent)
    (put,) = hub.after(20, *boxes)
    assert isinstance(put, NodesChanged)
    assert put.put[0].taints == (AGENT_GONE,)


def test_a_connection_on_which_nothing_comes_is_no_answer_of_a_node(hub: ScriptedHub) -> None:
    (box,) = hub.running(1)
    agent = hub.join("n1")
    hub.after(0, box)
    hub.marks(box, 0, 1, Mark("exit", 2, code=0))
    hub.after(0, box)
    hub.leave(agent)
    found = hub.after(20)
    assert [one.health for one in found if isinstance(one, HealthChange)] == ["fault"]


def test_a_node_with_ranks_stays_until_they_have_ended(hub: ScriptedHub) -> None:
    boxes = hub.running(1)
    agent = hub.join("n1")
    hub.after(0, *boxes)
    hub.leave(agent, on_purpose=True)
    (put,) = hub.after(3, *boxes)
    assert isinstance(put, NodesChanged)
    assert not put.gone
    hub.engine.release("job", 1)
    assert hub.after(0, *boxes) == [NodesChanged(gone=("n1",))]


def test_nodes_of_the_log_that_do_not_come_back_are_down(hub: ScriptedHub) -> None:
    known = ScriptedHub(replace(fleet(), nodes=(node_of("n1"), node_of("n2"))))
    agent = known.join("n1")
    assert known.after(0) == []
    seen = known.after(9, agent)
    assert [one.target for one in seen if isinstance(one, HealthChange)] == ["n2"]
    known.engine.close()


@pytest.mark.parametrize("described", [{}, {"id": "n2"}, {**msgspec.to_builtins(node_of("n2"))}, {"id": 7}])
def test_an_agent_speaks_for_its_own_node_only(hub: ScriptedHub, described: dict[str, object]) -> None:
    agent = hub.join("n1")
    hub.after(0)
    hub.receive(agent, frames.Seen("node", {"node": described}))
    assert hub.after(0) == []
    assert hub.engine.fleet().nodes == (node_of("n1"),)


def test_a_node_that_names_no_address_has_that_of_its_connection(hub: ScriptedHub) -> None:
    agent = hub.join("n1", described=replace(node_of("n1"), address="127.0.0.1", netns="space"))
    (joined,) = hub.events
    hub.events = [replaced(joined, address="10.9.9.9")]
    assert hub.after(0, agent) == [NodesChanged(put=(replace(node_of("n1"), address="10.9.9.9"),))]


def test_a_node_hangs_from_a_tier_that_there_is(hub: ScriptedHub) -> None:
    hub.join("n1", described=replace(node_of("n1"), parent="rack-9", gpu_links="unknown"))
    assert hub.after(0) == [NodesChanged(put=(node_of("n1"),))]


def replaced(joined: object, **more: str) -> Joined:
    assert isinstance(joined, Joined)
    return Joined(msgspec.structs.replace(joined.peer, **more))


def test_the_clock_of_a_node_is_reported_while_its_agent_is_connected(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    clock = HostClock("n1", "boot of n1", 77, 1)
    assert clock not in hub.after(0.5, agent)
    assert hub.after(40, agent).count(clock) == 2
    hub.leave(agent)
    assert clock not in hub.after(60)
    hub.join("n1")
    assert clock in hub.after(2)


def forgotten(hub: ScriptedHub, node: str) -> frames.Done:
    """The answer to a command of the store's owner."""
    reader = hub.join("reader", kind="reader")
    hub.receive(reader, frames.Forget(1, node))
    hub.after(0)
    [done] = hub.sent(reader, frames.Done)
    assert isinstance(done, frames.Done)
    return done


def test_a_host_that_is_forgotten_leaves_the_fleet_and_its_name_is_free(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    assert forgotten(hub, "n1").why == "its agent is connected: stop it first"
    assert not hub.forgotten
    hub.leave(agent)
    hub.after(0)
    assert forgotten(hub, "n1").ok
    assert hub.forgotten == ["n1"]
    assert hub.engine.fleet().nodes == ()


def test_a_host_that_is_forgotten_stays_in_the_fleet_until_no_rank_may_run_there(hub: ScriptedHub) -> None:
    agents = [hub.join("n1"), hub.join("n2")]
    boxes = hub.running()
    for peer in (agents[0], boxes[0]):
        hub.leave(peer)
    hub.after(1, agents[1], boxes[1])
    assert forgotten(hub, "n1").ok
    hub.after(10, agents[1], boxes[1])
    assert {node.id for node in hub.engine.fleet().nodes} == {"n1", "n2"}
    hub.after(10, agents[1], boxes[1])
    assert {node.id for node in hub.engine.fleet().nodes} == {"n2"}


def test_only_a_reader_has_a_host_forgotten(hub: ScriptedHub) -> None:
    hub.leave(hub.join("n1"))
    other = hub.join("n2")
    hub.receive(other, frames.Forget(1, "n1"))
    hub.after(0)
    assert not hub.forgotten and not hub.sent(other, frames.Done)
