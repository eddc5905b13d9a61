"""``unidle agent`` as a process, with a real hub: it joins, stays a member, leaves, and says what is wrong in one line."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import needs
from agent.hosts import Host, ended
from agent.hubs import TestHub
from box.small_hub import SmallHub
from unidle.fleet import Node
from waiting import wait_until


def node_of(body: dict[str, Any]) -> Node:
    return msgspec.convert(body, Node)


def test_a_host_joins_with_its_devices_labels_and_the_address_that_leads_to_the_hub(
    hub: TestHub, host: Host
) -> None:
    with host.agent(hub, label="rack=a1"):
        peer = hub.joined()
        assert peer.hello.agent is not None
        node = node_of(peer.hello.agent.node)
    assert (peer.node, node.id, node.address) == ("n1", "n1", "127.0.0.1")
    assert [device.id for device in node.devices] == ["n1/0", "n1/1"]
    assert node.labels["rack"] == "a1"
    assert peer.hello.agent.boxes == []


def test_a_member_has_a_token_of_its_own_and_needs_the_join_file_no_more(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        hub.joined()
        wait_until((host.state / "agent.json").exists, 60)
        first.kill()
    own = json.loads((host.state / "agent.json").read_text())["token"]
    assert own != json.loads(hub.join_file.read_text())["token"]
    with host.agent(hub, token_file=host.place / "nowhere"):
        assert hub.joined(count=2).node == "n1"


def test_sigterm_leaves_the_fleet_with_a_bye(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as agent:
        peer = hub.joined()
        hub.seen("signs")  # so it was welcomed
        agent.terminate()
        left = hub.left(peer)
        assert left.on_purpose
        ended(agent)
        assert agent.returncode == 0


@dataclass(frozen=True)
class HubOfAnswers:
    """Where an agent dials a hub that answers only as the test has it."""

    address: str
    join_file: Path


def test_sigterm_between_hello_and_welcome_leaves_with_a_bye_too(host: Host, tmp_path: Path) -> None:
    hub = SmallHub(tmp_path, "IP:127.0.0.1")
    join = tmp_path / "join"
    join.write_text(json.dumps({"token": "t", "authority": hub.authority}))
    join.chmod(0o600)
    with host.agent(HubOfAnswers(f"127.0.0.1:{hub.port}", join)) as agent:
        peer = hub.peer()
        assert peer.hello["kind"] == "agent"
        agent.terminate()
        assert agent.stderr is not None
        assert "leaves" in agent.stderr.readline()
        peer.welcome()
        wait_until(lambda: peer.frames[-1]["f"] == "bye", 60)
        ended(agent)
        assert agent.returncode == 0
    hub.vanish()


def test_an_agent_that_was_killed_comes_back_as_the_same_node(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as agent:
        peer = hub.joined()
        hub.ask(peer, lambda command: check(command, hub))  # so it has ponged with its own token
        agent.kill()
        assert not hub.left(peer).on_purpose
    with host.agent(hub):
        assert hub.joined(count=2).node == "n1"


def test_a_hub_that_goes_away_and_comes_back_is_dialled_again(tmp_path: Path, host: Host) -> None:
    first = TestHub(tmp_path / "hub")
    address = first.address
    with host.agent(first) as agent:
        first.joined()
        first.close()
        second = TestHub(tmp_path / "hub", address, fence=4)
        try:
            assert second.joined().node == "n1"
            agent.terminate()
            ended(agent)
            assert agent.returncode == 0
        finally:
            second.close()


def test_a_member_joins_a_controller_that_was_set_up_again_with_its_new_join_file(
    hub: TestHub, host: Host, tmp_path: Path
) -> None:
    with host.agent(hub) as first:
        hub.joined()
        first.terminate()
        ended(first)
    again = TestHub(tmp_path / "again")
    try:
        with host.agent(again):
            assert again.joined().node == "n1"

            def kept() -> bool:
                return bool(json.loads((host.state / "agent.json").read_text())["hub"] == again.address)

            wait_until(kept, 60)
    finally:
        again.close()


def test_a_check_runs_on_the_host(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        answer = hub.ask(hub.joined(), lambda command: check(command, hub))
    assert answer.ok
    assert json.loads(answer.data["text"])["node"] == "n1"


def check(command: int, hub: TestHub) -> Any:
    from unidle.hub import frames

    body = {"name": f"check-{command}", "limit_ns": 60_000_000_000, "tier": "quick"}
    return frames.Run(command, hub.fence, "check", body)


def test_what_its_detectors_can_see_is_reported(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        report = hub.seen("signs", lambda frame: frame.body["statuses"])
    assert {one["node"] for one in report.body["statuses"]} == {"n1"}


# -- errors ----------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_no_such_host(hub: TestHub, host: Host) -> None:
    code, line = host.fails(hub, join="no-such-host.invalid:7464")
    assert code == 4
    assert "no such host" in line


def test_a_port_where_nothing_listens(hub: TestHub, host: Host) -> None:
    code, line = host.fails(hub, join=f"127.0.0.1:{free_port()}")
    assert code == 4
    assert "refused" in line and "unidle up --listen" in line


def test_a_hub_of_another_authority(hub: TestHub, host: Host, tmp_path: Path) -> None:
    other = TestHub(tmp_path / "other")
    try:
        code, line = host.fails(hub, token_file=other.join_file)
    finally:
        other.close()
    assert code == 4
    assert "certificate" in line and "another authority" in line


def test_a_wrong_token(hub: TestHub, host: Host) -> None:
    wrong = json.loads(hub.join_file.read_text()) | {"token": "nothing"}
    path = host.place / "wrong"
    path.write_text(json.dumps(wrong))
    path.chmod(0o600)
    code, line = host.fails(hub, token_file=path)
    assert code == 2
    assert "the token does not speak for this node" in line


def test_a_name_that_another_host_has(hub: TestHub, host: Host, tmp_path: Path) -> None:
    with host.agent(hub):
        peer = hub.joined()
        hub.ask(peer, lambda command: check(command, hub))  # so it has ponged with its own token
        other = Host(tmp_path / "other")
        other.place.mkdir()
        code, line = other.fails(hub)
    assert code == 2
    assert "has joined already" in line


def test_a_token_file_that_all_can_read(hub: TestHub, host: Host) -> None:
    path = host.place / "join"
    shutil.copy(hub.join_file, path)
    path.chmod(0o644)
    code, line = host.fails(hub, token_file=path)
    assert code == 2
    assert f"chmod 600 {path}" in line


@needs.root
def test_a_token_file_of_another_user(hub: TestHub, host: Host) -> None:
    path = host.place / "join"
    shutil.copy(hub.join_file, path)
    os.chown(path, 1, 1)
    code, line = host.fails(hub, token_file=path)
    assert code == 2
    assert "belongs to" in line


def test_no_devices(hub: TestHub, host: Host) -> None:
    host.more = {"CUDA_VISIBLE_DEVICES": ""}
    code, line = host.fails(hub, cpu_devices=0)
    assert code == 3
    assert "no device" in line


def test_a_second_agent_on_the_same_state(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        hub.joined()
        code, line = host.fails(hub)
    assert code == 3
    assert "another agent" in line


@pytest.mark.parametrize("join", ["", "host", "host:", ":7", "host:0", "host:70000", "::1:7", "host:x"])
def test_what_is_no_address_is_refused(hub: TestHub, host: Host, join: str) -> None:
    code, line = host.fails(hub, join=join)
    assert code == 2
    assert "HOST:PORT" in line


@pytest.mark.parametrize("label", ["rack", "=a1"])
def test_what_is_no_label_is_refused(hub: TestHub, host: Host, label: str) -> None:
    code, line = host.fails(hub, label=label)
    assert code == 2
    assert "--label" in line
