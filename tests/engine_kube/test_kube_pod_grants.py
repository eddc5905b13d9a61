"""Devices that a kubelet chose, step by step: what agents are asked, what ranks are shown, and what is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine_hosts.scripted_hub import ScriptedHub, fleet
from unidle import wire
from unidle.engine.hosts.box_maker import AgentBoxes, Hosting
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.kube.pod_grants import PodGrants, given_devices
from unidle.engine.protocol import Landed, StartGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Node, Vendor
from unidle.hub import frames
from unidle.jobs import JobSpec, RankPlace

GPU = "nvidia.com/gpu"


def node_of(vendor: Vendor = "nvidia", prefix: str = "GPU-") -> Node:
    devices = tuple(
        Device(f"n1/{k}", "n1", k, "gpu", uuid=f"{prefix}{k}" if prefix else "", vendor=vendor)
        for k in range(4)
    )
    return Node("n1", "site", devices, address="10.0.0.1")


class World:
    """One node with four GPUs, its agent, and a gang of two ranks with two GPUs each unless a test says otherwise."""

    def __init__(self) -> None:
        self.node = node_of()
        self.hub = ScriptedHub(fleet(), Hosting(HostNodes, AgentBoxes, self.grants_of))

    def grants_of(self, out: Outbox, nodes: HostNodes, gangs: dict[Key, GangState]) -> PodGrants:
        self.grants = PodGrants(out, nodes, gangs, lambda job, node: f"jobs/{job}-{node}", self.devices)
        return self.grants

    def devices(self, node: str, ids: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
        known = {device.uuid: device.id for device in self.node.devices if device.uuid}
        found = [known.get(one) for some in ids.values() for one in some]
        return None if None in found else {one: 1 for one in found if one}

    def join(self, *, known: bool = True) -> int:
        agent = self.hub.join("n1", described=self.node)
        self.hub.after(0)
        self.grants.reported("n1", known=known)
        return agent

    def start(self, *ranks: tuple[str, ...]) -> int:
        places = tuple(RankPlace(k, "n1", slices) for k, slices in enumerate(ranks))
        spec = JobSpec(("train",), ranks=len(ranks), workdir="/tmp", devices_per_rank=len(ranks[0]))
        self.hub.engine.start(StartGang("job", 1, spec, places))
        box = self.hub.join("n1", "job")
        self.hub.after(0)
        self.hub.answer(box, frames.Prepare, port=4000)
        self.hub.after(0)
        return box

    def asked(self, agent: int) -> list[frames.Run]:
        return [one for one in self.hub.sent(agent, frames.Run) if one.what == wire.DEVICES]

    def answer(self, agent: int, *ids: str, why: str = "") -> list[Any]:
        [order] = self.asked(agent)
        assert order.body == {"pod": "jobs/job-n1"}
        data = {} if why else {"devices": {GPU: list(ids)}}
        self.hub.receive(agent, frames.Done(order.id, not why, why, data))
        return self.hub.after(0)

    def shown(self, box: int, variable: str = "CUDA_VISIBLE_DEVICES") -> list[str]:
        """Of each rank that was started."""
        starts = self.hub.sent(box, frames.Start)
        return [rank.orders["env"][variable] for start in starts for rank in start.ranks]


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.hub.engine.close()


def test_ranks_start_with_the_devices_that_their_pod_has_and_that_is_reported(world: World) -> None:
    agent = world.join()
    box = world.start(("n1/0",), ("n1/1",))
    assert world.shown(box) == []
    seen = world.answer(agent, "GPU-3", "GPU-1")
    assert world.shown(box) == ["GPU-3", "GPU-1"]
    assert [one for one in seen if isinstance(one, Landed)] == [Landed("job", 1, 0, "n1", ("n1/3",))]


def test_what_was_placed_is_no_news(world: World) -> None:
    agent = world.join()
    box = world.start(("n1/0", "n1/1"), ("n1/2", "n1/3"))
    seen = world.answer(agent, "GPU-2", "GPU-0", "GPU-3", "GPU-1")
    assert world.shown(box) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert not [one for one in seen if isinstance(one, Landed)]


@pytest.mark.parametrize("known", [False, True])
def test_without_an_answer_ranks_are_shown_the_devices_of_their_pod_in_order(
    world: World, known: bool
) -> None:
    agent = world.join(known=known)
    box = world.start(("n1/2",), ("n1/3",))
    if known:
        world.answer(agent, why="the kubelet did not answer in time")
    assert world.asked(agent) == []
    assert world.shown(box) == ["0", "1"]


def test_a_node_without_an_agent_and_one_whose_agent_leaves_are_not_waited_for(world: World) -> None:
    agent = world.join()
    box = world.start(("n1/2",))
    assert world.asked(agent)
    world.hub.leave(agent)
    world.hub.after(0)
    assert world.shown(box) == ["0"]


def test_an_id_that_is_not_known_and_another_count_are_no_landing(world: World) -> None:
    agent = world.join()
    box = world.start(("n1/2",))
    assert world.answer(agent, "GPU-unknown") == []
    assert world.shown(box) == ["0"]
    places = [RankPlace(0, "n1", ("n1/0", "n1/1"))]
    assert given_devices(places, {"n1/0": 1}) is None
    assert given_devices(places, {"n1/0": 1, "n1/2": 2}) is None
    assert given_devices(places, {"n1/1": 1, "n1/2": 1}) == {0: ("n1/2", "n1/1")}


def test_ids_that_no_runtime_takes_become_numbers_in_the_pod(world: World) -> None:
    world.node = node_of("amd", "0000:81:00.")
    agent = world.join()
    box = world.start(("n1/0",), ("n1/1",))
    world.answer(agent, "0000:81:00.3", "0000:81:00.1")
    [start] = world.hub.sent(box, frames.Start)
    # rank 0 has the one with the higher number, which is the second one in the pod
    assert [rank.orders["env"]["ROCR_VISIBLE_DEVICES"] for rank in start.ranks] == ["1", "0"]


def test_a_list_that_comes_later_is_compared_with_what_runs(world: World) -> None:
    world.join(known=False)
    box = world.start(("n1/2",))
    assert world.shown(box) == ["0"]
    world.grants.look_again("n1", lambda node, pod: {"n1/1": 1})
    assert world.hub.after(0) == []  # no rank has begun
    world.hub.marks(box, 0, 0, Mark("spawn", 1, pid=1, ticks=1))
    world.hub.after(0)
    world.grants.look_again("n1", lambda node, pod: {"n1/1": 1} if pod == "jobs/job-n1" else None)
    assert world.hub.after(0) == [Landed("job", 1, 0, "n1", ("n1/1",))]
    [gang] = world.hub.engine._core.gangs.values()
    assert world.grants.held(gang) == {0: ("n1/1",)}


def test_gangs_without_gpus_ask_nothing(world: World) -> None:
    world.node = replace(world.node, devices=(Device("n1/0", "n1", 0, "cpu"),))
    agent = world.join()
    box = world.start(("n1/0",))
    assert world.asked(agent) == []
    assert world.shown(box) == [""]
