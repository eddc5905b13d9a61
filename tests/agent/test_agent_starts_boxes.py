"""Real boxes: an agent starts them, they outlive it, and the next agent finds them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from agent.hosts import Host, ended
from agent.hubs import TestHub
from box.small_hub import certificates
from unidle.agent.boxes import LOCK
from unidle.drill.lab import Lab
from unidle.engine.local.ranks import netns
from unidle.engine.local.ranks.rundir import is_held
from waiting import wait_until


def pid_of(host: Host, job: str = "job-1") -> int:
    return int((host.state / "boxes" / job / LOCK).read_text())


def test_a_box_is_started_and_says_hello_with_its_own_token(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        agent = hub.joined()
        answer = hub.box(agent, "job-1", MINE="x")
        assert answer.ok, answer.why
        box = hub.joined("box")
        assert (box.node, box.job) == ("n1", "job-1")
        token = hub.server.box_token("n1", "job-1").encode()
        for name in ("cmdline", "environ"):
            assert token not in Path(f"/proc/{pid_of(host)}/{name}").read_bytes()
        assert b"MINE=x" in Path(f"/proc/{pid_of(host)}/environ").read_bytes().split(b"\0")


def test_a_box_outlives_its_agent_and_the_next_one_finds_it(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        agent = hub.joined()
        assert hub.box(agent, "job-1").ok
        hub.joined("box")
        pid = pid_of(host)
        first.kill()
        hub.left(agent)
    with host.agent(hub):
        again = hub.joined(count=2)
        assert again.hello.agent is not None
        assert again.hello.agent.boxes == ["job-1"]
        assert hub.box(again, "job-1").ok
        assert pid_of(host) == pid
        os.kill(pid, signal.SIGTERM)
        assert hub.seen("left").body == {"job": "job-1"}


@pytest.mark.parametrize("name", ["IP:127.0.0.1", "DNS:unidle-hub"])
def test_boxes_of_a_hub_with_a_public_certificate_use_the_authorities_of_the_system(
    host: Host, tmp_path: Path, name: str
) -> None:
    """The join file has no authority then. The name is that of the host, never the one that own authorities sign."""
    place = tmp_path / "site"
    place.mkdir()
    certificate, key, authority = certificates(place, name)
    store = place / "store.pem"
    store.write_text(authority)
    hub = TestHub(tmp_path / "public-hub", site=(certificate, key))
    try:
        host.more["SSL_CERT_FILE"] = str(store)
        if name != "IP:127.0.0.1":
            assert "certificate" in host.fails(hub)[1]
            return
        with host.agent(hub):
            assert hub.box(hub.joined(), "job-1").ok
            box = hub.joined("box")
            assert (box.node, box.job) == ("n1", "job-1")
        assert json.loads((host.state / "boxes" / "job-1" / "box.json").read_text())["authority"] == ""
    finally:
        host.end_boxes()
        hub.close()


def test_a_box_finds_a_hub_that_moved_without_an_order_for_it(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        assert hub.box(hub.joined(), "job-1").ok
        hub.joined("box")
        pid = pid_of(host)
        first.kill()
        first.wait()
    before = hub.address
    moved = TestHub(hub.place, "127.0.0.2:0", fence=4)
    try:
        hub.close()
        with host.agent(moved):
            box = moved.joined("box")
            assert (box.node, box.job) == ("n1", "job-1")
            assert pid_of(host) == pid
            assert moved.address != before
    finally:
        moved.close()


def test_sigterm_leaves_boxes_and_end_boxes_ends_them(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        assert hub.box(hub.joined(), "job-1").ok
        first.terminate()
        ended(first)
        assert first.returncode == 0
    lock = host.state / "boxes" / "job-1" / LOCK
    assert is_held(lock)
    with host.agent(hub, end_boxes=True) as second:
        hub.joined(count=2)
        second.terminate()
        ended(second)
        assert second.returncode == 0
    assert not is_held(lock)


def test_boxes_end_with_an_agent_inside_slurm(hub: TestHub, host: Host) -> None:
    host.more = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "c3"}
    with host.agent(hub, node=False) as agent:
        peer = hub.joined()
        assert peer.node == "c3"
        assert hub.box(peer, "job-1").ok
        agent.terminate()  # as Slurm does at the end of an allocation
        assert hub.left(peer).on_purpose
        ended(agent)
        assert agent.returncode == 0
    assert not is_held(host.state / "boxes" / "job-1" / LOCK)


def test_an_agent_leaves_before_its_allocation_ends(hub: TestHub, host: Host) -> None:
    end_s = int(time.time()) + 20  # less than 30 s
    host.more = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "c3", "SLURM_JOB_END_TIME": str(end_s)}
    with host.agent(hub, node=False) as agent:
        assert "c3 leaves: Slurm's allocation 7 ends" in ended(agent)
        assert agent.returncode == 0


def test_a_box_that_was_killed_is_started_again(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        agent = hub.joined()
        assert hub.box(agent, "job-1").ok
        hub.joined("box")
        os.kill(pid_of(host), signal.SIGKILL)
        hub.seen("left")
        wait_until(lambda: not is_held(host.state / "boxes" / "job-1" / LOCK), 60)
        assert hub.box(agent, "job-1").ok
        hub.joined("box", count=2)


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(["hub", "n1"])
    yield lab
    lab.close()


@needs.shaping
def test_a_host_whose_cable_is_pulled_comes_back_with_its_boxes(lab: Lab, host: Host, tmp_path: Path) -> None:
    listen = f"{lab.address('hub')}:0"
    hub = netns.within(lab.space("hub"), lambda: TestHub(tmp_path / "hub", listen))
    inside = ("nsenter", f"--net={netns.WHERE}/{lab.space('n1')}")
    try:
        with host.agent(hub, *inside) as agent:
            first = hub.joined()
            assert first.hello.agent is not None
            assert first.hello.agent.node["address"] == lab.address("n1")
            assert hub.box(first, "job-1").ok
            lab.cut("n1")
            assert not hub.left(first).on_purpose
            lab.mend("n1")
            again = hub.joined(count=2)
            assert again.hello.agent is not None
            assert again.hello.agent.boxes == ["job-1"]
            assert hub.box(again, "job-1").ok
            assert agent.poll() is None
    finally:
        hub.close()
