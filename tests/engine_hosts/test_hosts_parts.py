"""Parts of devices on hosts, step by step: what agents are asked to make, and when it is freed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine_hosts.scripted_hub import TIMING, ScriptedHub, fleet, gang_of, node_of
from unidle import wire
from unidle.engine.hosts.host_devices import OF_OLDER_RELEASE, ruled
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import Landed, LiveAttempt, PartOf, RankMarks, StopGang
from unidle.fleet import CutPart, Device, HostDevices, Node, Sharing
from unidle.hub import frames

PART = "n1/0#1.0"
GIVEN = {"rank": 0, "slices": [PART], "env": {"MINE": "1"}, "cpus": 0.5, "memory_bytes": 64}
QUOTA = Sharing(("quota",))


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(replace(fleet(), host_devices=(HostDevices("cpu", sharing=QUOTA),)))
    yield made
    made.engine.close()


def described(name: str = "n1") -> Node:
    """As an agent of this release describes it."""
    node = node_of(name)
    return replace(node, devices=tuple(replace(d, sharing=QUOTA) for d in node.devices))


def gang(**more: Any) -> Any:
    command = gang_of(1, **more)
    places = (replace(command.places[0], slices=(PART,)),)
    parts = {PART: PartOf("n1/0", "quota", CutPart("1.0", 500_000, "job", 500_000))}
    return replace(command, places=places, parts=parts)


def orders(hub: ScriptedHub, agent: int, what: str) -> list[frames.Run]:
    """Take the orders of a kind; others stay."""
    found = list(hub.sent(agent, frames.Run))
    hub.all_sent += [(agent, one) for one in found if one.what != what]
    return [one for one in found if one.what == what]


def answer(hub: ScriptedHub, agent: int, *, why: str = "", **changed: Any) -> None:
    for order in orders(hub, agent, wire.SLICES):
        data = {} if why else {"ranks": [GIVEN | changed]}
        hub.receive(agent, frames.Done(order.id, not why, why, data))
    hub.after(0)


def begun(hub: ScriptedHub, **more: Any) -> tuple[int, int]:
    """The agent and the box of a gang on a part, which the agent has not made yet."""
    agent = hub.join("n1", described=described())
    hub.after(0)
    hub.engine.start(gang(**more))
    box = hub.join("n1", "job")
    hub.after(0)
    hub.answer(box, frames.Prepare, port=4000)
    hub.after(0)
    return agent, box


def test_no_rank_starts_before_its_host_has_made_its_part_and_its_orders_have_it(hub: ScriptedHub) -> None:
    agent, box = begun(hub)
    assert not hub.sent(box, frames.Start)
    answer(hub, agent)
    (start,) = hub.sent(box, frames.Start)
    given = start.ranks[0].orders
    assert (given["cpus"], given["memory_bytes"], given["env"]["MINE"]) == (0.5, 64, "1")


def test_the_order_has_what_the_host_needs_and_no_more(hub: ScriptedHub) -> None:
    agent, _ = begun(hub)
    (order,) = orders(hub, agent, wire.SLICES)
    assert (order.body["job"], order.body["attempt"], list(order.body["parts"])) == ("job", 1, [PART])
    assert [device["id"] for device in order.body["devices"]] == ["n1/0"]


def test_an_agent_that_is_lost_before_its_answer_is_asked_again_on_its_next_connection(
    hub: ScriptedHub,
) -> None:
    agent, box = begun(hub)
    assert orders(hub, agent, wire.SLICES)
    hub.leave(agent)
    hub.after(0)
    again = hub.join("n1", described=described())
    hub.after(1, again, box)
    answer(hub, again)
    assert hub.sent(box, frames.Start)


def test_a_host_that_refuses_sends_the_gang_elsewhere_and_nothing_starts(hub: ScriptedHub) -> None:
    agent, box = begun(hub)
    for order in orders(hub, agent, wire.SLICES):
        hub.receive(agent, frames.Done(order.id, False, "mps: it is broken"))
    (refused,) = [one for one in hub.after(0) if isinstance(one, RankMarks)]
    assert refused.marks[0].info == {"refused": True}
    assert refused.marks[0].text == "node n1: mps: it is broken"
    assert not hub.sent(box, frames.Start)


def test_an_agent_that_does_not_answer_in_time_is_named(hub: ScriptedHub) -> None:
    agent, box = begun(hub)
    seen = hub.after(TIMING.start_within_ns / S + 2, agent, box)
    (lost,) = [one for one in seen if isinstance(one, RankMarks)]
    assert "the parts of devices were not made within" in (lost.marks[0].text or "")


@pytest.mark.parametrize("stopped_first", [True, False])
def test_what_an_attempt_held_is_freed_at_its_release(hub: ScriptedHub, stopped_first: bool) -> None:
    agent, _ = begun(hub)
    assert orders(hub, agent, wire.SLICES_HELD)[0].body == {"attempts": []}  # as it joined
    if not stopped_first:
        answer(hub, agent)
    hub.engine.stop(StopGang("job", 1, 1, 0))
    hub.engine.release("job", 1)
    (freed,) = orders(hub, agent, wire.SLICES_HELD)
    assert freed.body == {"attempts": []}


def test_what_an_attempt_held_is_freed_later_where_no_agent_is_there(hub: ScriptedHub) -> None:
    agent, box = begun(hub)
    answer(hub, agent)
    hub.leave(agent)
    hub.after(0)
    hub.engine.release("job", 1)
    other = hub.join("n1", described=described())
    hub.after(0, box)
    assert orders(hub, other, wire.SLICES_HELD)[0].body == {"attempts": []}


def test_a_controller_that_takes_over_keeps_what_its_attempts_hold(hub: ScriptedHub) -> None:
    hub.engine.adopt([LiveAttempt(gang(), (1,), (False,))])
    agent = hub.join("n1", described=described())
    hub.after(0)
    assert orders(hub, agent, wire.SLICES_HELD)[0].body == {"attempts": [("job", 1)]}
    assert not orders(hub, agent, wire.SLICES)


def test_slices_that_a_host_gave_instead_are_reported(hub: ScriptedHub) -> None:
    agent, _ = begun(hub)
    for order in orders(hub, agent, wire.SLICES):
        hub.receive(agent, frames.Done(order.id, True, data={"ranks": [GIVEN | {"slices": ["n1/1"]}]}))
    assert Landed("job", 1, 0, "n1", ("n1/1",)) in hub.after(0)


@pytest.mark.parametrize("data", [{}, {"ranks": []}, {"ranks": [{"rank": "x"}]}])
def test_an_answer_that_is_not_as_agreed_starts_nothing(hub: ScriptedHub, data: dict[str, Any]) -> None:
    agent, box = begun(hub)
    for order in orders(hub, agent, wire.SLICES):
        hub.receive(agent, frames.Done(order.id, True, data=data))
    assert [one for one in hub.after(0) if isinstance(one, RankMarks)]
    assert not hub.sent(box, frames.Start)


def test_an_agent_of_an_older_release_offers_no_part_and_is_sent_no_order(hub: ScriptedHub) -> None:
    agent = hub.join("n1")
    hub.after(0)
    device = hub.engine.fleet().nodes[0].devices[0]
    assert device.sharing == Sharing((), why_not=(("quota", OF_OLDER_RELEASE),))
    assert not orders(hub, agent, wire.SLICES_HELD)


def test_devices_are_cut_by_the_first_rule_that_fits_in_the_ways_that_the_host_offers() -> None:
    offer = Sharing(("mps", "time"), why_not=(("mig", "MIG mode is off"),))
    devices = (
        Device("n/0", "n", 0, "gpu", sharing=offer),
        Device("n/1", "n", 1, "gpu", vendor="amd", sharing=Sharing(("time",))),
        Device("n/2", "n", 2, "cpu", sharing=QUOTA),
    )
    node = Node("n", "site", devices, labels={"rack": "r1"})
    both = Sharing(("mig", "mps"), compute_ppm=1_500_000)
    rules = (
        HostDevices("cpu", {"rack": "r2"}, sharing=QUOTA),
        HostDevices("gpu", {"rack": "r1"}, sharing=both),
        HostDevices("cpu", slices_ppm=(500_000, 500_000)),
    )
    one, other, cpu = ruled(node, rules).devices
    assert one.sharing == Sharing(("mps",), 1_500_000, why_not=(("mig", "MIG mode is off"),))
    assert other.sharing is None  # neither is AMD's
    assert (cpu.sharing, cpu.slices_ppm) == (None, (500_000, 500_000))
    assert ruled(node, ()).devices[0].sharing is None
