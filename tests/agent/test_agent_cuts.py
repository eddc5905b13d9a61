"""Orders for parts of devices, to a real agent by a real hub: made once, refused with a reason, and freed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.hosts import Host
from agent.hubs import TestHub
from unidle import wire
from unidle.engine.protocol import PartOf
from unidle.fleet import CutMode, CutPart, Device, Node
from unidle.hub import frames
from unidle.hub.protocol import Peer
from unidle.jobs import RankPlace, Share


def order(peer: Peer, mode: CutMode = "quota", **changed: Any) -> dict[str, Any]:
    """A quarter of the first device for rank 0."""
    assert peer.hello.agent is not None
    node = msgspec.convert(peer.hello.agent.node, Node)
    part = PartOf("n1/0", mode, CutPart("1.0", 250_000, "job-1", 250_000))
    body = {
        "job": "job-1", "attempt": 1, "places": [RankPlace(0, "n1", ("n1/0#1.0",))], "devices": node.devices[:1],
        "share": Share(250_000), "parts": {"n1/0#1.0": part},
    }  # fmt: skip
    found: dict[str, Any] = msgspec.to_builtins(body | changed)
    return found


def ask(hub: TestHub, peer: Peer, what: str, body: dict[str, Any]) -> frames.Done:
    return hub.ask(peer, lambda command: frames.Run(command, hub.fence, what, body))


def records(host: Host) -> list[str]:
    return sorted(path.name for path in (host.state / "slices" / ".slices").glob("*"))


def test_an_agent_describes_how_each_device_can_be_cut(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        peer = hub.joined()
    assert peer.hello.agent is not None
    devices = msgspec.convert(peer.hello.agent.node, Node).devices
    assert [device.sharing is not None and device.sharing.modes for device in devices] == [("quota",)] * 2


def test_a_part_is_made_once_and_known_after_a_kill_until_it_is_freed(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        peer = hub.joined()
        made = ask(hub, peer, wire.SLICES, order(peer))
        assert made.ok, made.why
        [rank] = made.data["ranks"]
        assert 0 < rank["cpus"] <= len(os.sched_getaffinity(0)) / 2 / 4
        assert (rank["rank"], rank["slices"]) == (0, ["n1/0#1.0"])
        assert records(host) == ["job-1.1.json"]
        first.kill()
    with host.agent(hub):
        again = hub.joined(count=2)
        assert ask(hub, again, wire.SLICES, order(again)).data == made.data
        assert ask(hub, again, wire.SLICES_HELD, {"attempts": [["job-1", 1], ["other", 3]]}).ok
        assert records(host) == ["job-1.1.json"]
        assert ask(hub, again, wire.SLICES_HELD, {"attempts": [["job-1", 2]]}).ok
        assert records(host) == []


def test_orders_that_cannot_be_carried_out_have_one_clear_reason(hub: TestHub, host: Host) -> None:
    unknown = Device("n1/7", "n1", 7, "cpu")
    with host.agent(hub):
        peer = hub.joined()
        for body, why in (
            (order(peer, devices=[unknown]), "n1 has no device n1/7 any more"),
            (order(peer, "mps"), "this machine has no MPS: nvidia-cuda-mps-control is not installed"),
            (order(peer, "mig"), "is no GPU that MIG is known to cut"),
            (order(peer, job="../x"), "the order is not as agreed"),
            (order(peer, job=".slices"), "the order is not as agreed"),
            (order(peer, places=[]), "the order is not as agreed"),
            (order(peer, attempt=-1), "the order is not as agreed"),
            ({}, "the order is not as agreed"),
        ):
            refused = ask(hub, peer, wire.SLICES, body)
            assert not refused.ok
            assert why in refused.why, refused.why
        assert not ask(hub, peer, wire.SLICES_HELD, {"attempts": [["job-1"]]}).ok
        assert records(host) == []


@pytest.mark.parametrize("name", ["torn", "of another form"])
def test_a_damaged_record_is_passed_over(hub: TestHub, host: Host, name: str) -> None:
    place = host.state / "slices" / ".slices"
    place.mkdir(parents=True)
    for directory in (host.state, host.state / "slices", place):
        Path(directory).chmod(0o700)
    (place / "job-1.1.json").write_text("{" if name == "torn" else '{"ranks": 3}')
    with host.agent(hub):
        peer = hub.joined()
        assert ask(hub, peer, wire.SLICES, order(peer)).ok
        assert ask(hub, peer, wire.SLICES_HELD, {"attempts": []}).ok
        assert records(host) == []
