"""An agent on a host with GPUs: what it reports of them when it joins, and when one is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hosts import Host
from agent.hubs import TestHub
from nvml.playing import Played, build, machine
from unidle.fleet import GpuLinks, Node


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[TestHub]:
    hub = TestHub(tmp_path / "hub")
    yield hub
    hub.close()


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return machine("h100x8", build(tmp_path / "library"), tmp_path)


def host_of(played: Played, tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.more = {name: value for name, value in played.environ.items() if os.environ.get(name) != value}
    return host


def test_a_host_joins_with_its_gpus_and_their_links(hub: TestHub, played: Played, tmp_path: Path) -> None:
    with host_of(played, tmp_path).agent(hub):
        peer = hub.joined()
        assert peer.hello.agent is not None
        body = peer.hello.agent.node
    node, links = msgspec.convert(body, Node), msgspec.convert(body["links"], GpuLinks)
    assert [device.id for device in node.devices] == [f"n1/{k}" for k in range(8)]
    assert {device.model for device in node.devices} == {"NVIDIA H100 80GB HBM3"}
    assert node.gpu_links == "n1"
    assert links.way(0, 7) == "NV18"


def test_a_gpu_that_falls_off_the_bus_is_a_sign_and_leaves_the_node(
    hub: TestHub, played: Played, tmp_path: Path
) -> None:
    with host_of(played, tmp_path).agent(hub):
        hub.joined()
        hub.seen("signs", lambda frame: any(one["detector"] == "GPUs" for one in frame.body["statuses"]))
        played.write("* 7 ! 15")
        sign = hub.seen("signs", lambda frame: frame.body["detections"])
        assert sign.body["detections"][0]["device"] == "n1/7"
        changed = hub.seen("node")
        assert [one["id"] for one in changed.body["node"]["devices"]] == [f"n1/{k}" for k in range(7)]
        played.write("* 0-7 ! 15")
        none = hub.seen("node", lambda frame: not frame.body["node"]["devices"])
        assert none.body["node"]["id"] == "n1"  # and no CPU devices in the place of GPUs
