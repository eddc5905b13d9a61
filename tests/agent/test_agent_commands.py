"""What an agent answers to commands and reports by itself, without a connection in between."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from unidle import wire
from unidle.agent.agent import Agent, HubAddress
from unidle.agent.boxes import Boxes
from unidle.agent.found_node import FoundNode, find_node
from unidle.agent.orders import NO_HOOKS
from unidle.agent.state import AgentState
from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun
from unidle.fleet.policies import WatchSources
from unidle.hub import frames

S = 1_000_000_000
STUB = (sys.executable, str(Path(__file__).with_name("stub_box.py")))


class World:
    """An agent, what it sent, and what its host has."""

    def __init__(self, place: Path) -> None:
        self.state = AgentState(place / "agent")
        self.now: FoundNode | None = find_node("n1", "10.0.0.1", {}, 2)
        self.sent: list[frames.FromClient] = []
        assert self.now is not None
        self.agent = self.begin()

    def begin(self, *, hooks: bool = False, fence: int = 3) -> Agent:
        """An agent of this host that has just connected."""
        assert self.now is not None
        hub = HubAddress("hub:7000", "PEM")
        agent = Agent(self.state, hub, self.now, self.find, self.send, hooks=hooks)
        agent.boxes = Boxes(self.state.boxes, STUB)
        agent.connected(fence)
        return agent

    def again(self, *, hooks: bool = False, fence: int = 3) -> None:
        """The agent is another one from now on."""
        self.agent.close()
        self.agent = self.begin(hooks=hooks, fence=fence)

    def send(self, frame: frames.FromClient) -> int:
        self.sent.append(frame)
        return 1

    def find(self) -> FoundNode:
        if self.now is None:
            raise CannotRun("no device")
        return self.now

    def done(self) -> list[frames.Done]:
        return [frame for frame in self.sent if isinstance(frame, frames.Done)]

    def seen(self, what: str) -> list[dict[str, Any]]:
        return [frame.body for frame in self.sent if isinstance(frame, frames.Seen) and frame.what == what]

    def until(self, condition: Callable[[], object]) -> None:
        """Tick until it holds."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.sent
            self.agent.tick()

    def close(self) -> None:
        while not self.agent.boxes.end():
            pass
        self.agent.close()
        self.state.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def box(command: int, fence: int = 3, job: str = "job-1") -> frames.Box:
    return frames.Box(command, fence, job, "a-token")


def test_a_box_is_started_and_answered_when_it_runs(world: World) -> None:
    world.agent.take(box(7))
    world.until(world.done)
    assert world.done() == [frames.Done(7, True)]
    assert world.agent.held().boxes == ["job-1"]


def test_a_command_that_comes_twice_is_answered_twice_and_done_once(world: World) -> None:
    world.agent.take(box(7))
    world.agent.take(box(8))
    world.until(lambda: len(world.done()) == 2)
    world.agent.take(box(7))
    assert [answer.id for answer in world.done()] == [7, 8, 7]
    assert len(world.agent.boxes.running()) == 1


def test_a_command_of_an_older_controller_is_refused(world: World) -> None:
    world.agent.take(box(7, fence=4))
    world.agent.take(box(8, fence=3, job="job-2"))
    world.until(lambda: len(world.done()) == 2)
    assert frames.Done(8, False, wire.FENCED) in world.done()
    assert world.agent.boxes.running() == ["job-1"]


def test_an_answer_that_could_not_be_sent_is_given_when_the_command_comes_again(world: World) -> None:
    world.agent.take(box(7))
    world.agent.disconnected()
    world.until(lambda: not world.agent.is_busy)
    assert not world.done()
    world.agent.connected(3)
    world.agent.take(box(7))
    assert world.done() == [frames.Done(7, True)]


def test_a_job_that_is_no_directory_is_an_answer(world: World) -> None:
    world.agent.take(box(7, job="../x"))
    [answer] = world.done()
    assert not answer.ok
    assert "directory" in answer.why


def test_the_end_of_a_box_is_reported_once(world: World) -> None:
    world.agent.take(box(7))
    world.until(world.done)
    world.agent.disconnected()
    world.until(world.agent.boxes.end)
    assert not world.seen("left")
    world.agent.connected(3)
    world.until(lambda: world.seen("left"))
    world.agent.tick()
    assert world.seen("left") == [{"job": "job-1"}]


def test_files_of_a_box_that_ended_are_read(world: World) -> None:
    directory = Path(rundir.rank_dir(world.state.boxes / "job-1" / "runs", "job-1", 1, 0))
    directory.mkdir(parents=True)
    (directory / "log").write_bytes(b"0123456789")
    world.agent.take(frames.Read(7, 1, 0, "log", -4, 100, "job-1"))
    world.agent.take(frames.Read(8, 1, 0, "../x", 0, 100, "job-1"))
    read, refused = world.done()
    inode = (directory / "log").stat().st_ino
    text = base64.b64encode(b"6789").decode()
    assert read == frames.Done(7, True, data={"text": text, "size": 10, "inode": inode})
    assert not refused.ok


def check(command: int, name: str = "a", **more: Any) -> frames.Run:
    return frames.Run(command, 3, "check", {"name": name, "limit_ns": 60 * S, **more})


def hook(command: int, script: str, name: str = "a", fence: int = 3, limit_s: int = 60) -> frames.Run:
    words = ["sh", "-c", script]
    return frames.Run(command, fence, "hook", {"name": name, "limit_ns": limit_s * S, "words": words})


def test_a_check_of_the_node_runs_there_and_its_result_is_the_answer(world: World) -> None:
    world.agent.take(check(7, tier="quick", log_since_ns=60_000_000_000, used=["/nowhere"]))
    assert world.agent.is_busy
    world.until(world.done)
    [answer] = world.done()
    assert answer.ok and answer.data["name"] == "a"
    assert answer.data["code"] in (0, 1, 3)
    assert not answer.data["late"]
    assert json.loads(answer.data["text"])["node"] == "n1"


def test_a_check_reads_the_kernel_log_that_the_agent_was_started_with(world: World, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    fault = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    log.write_text(f"{datetime.now(UTC).isoformat()} n1 {fault}\n")
    for name, source in (("a", "off"), ("b", str(log))):
        assert world.now is not None
        world.now = replace(world.now, node=replace(world.now.node, watch=WatchSources(source)))
        world.again()
        world.sent.clear()
        world.agent.take(check(7, name))
        world.until(world.done)
        told = json.loads(world.done()[0].data["text"])
        found = {one["name"]: one["ok"] for one in told["checks"] if one["name"] == "kernel_log"}
        absent = {one["name"]: one["because"] for one in told["absent"] if one["name"] == "kernel_log"}
        assert (found, absent) == (
            ({}, {"kernel_log": "switched off"}) if name == "a" else ({"kernel_log": False}, {})
        )


def test_a_hook_is_refused_unless_the_host_allows_hooks(world: World, tmp_path: Path) -> None:
    world.agent.take(hook(7, f"touch {tmp_path}/ran"))
    [answer] = world.done()
    assert answer == frames.Done(7, False, NO_HOOKS)
    assert not list(world.state.path.glob("orders/*")) and not (tmp_path / "ran").exists()


def test_a_hook_runs_as_a_child_of_the_agent_and_tells_its_code_and_output(world: World) -> None:
    world.again(hooks=True)
    world.agent.take(hook(7, "read -r _ _ _ parent _ < /proc/$PPID/stat; echo $parent; exit 5"))
    world.until(world.done)
    data = {"name": "a", "code": 5, "late": False, "text": f"{os.getpid()}\n", "restarted": False}
    assert world.done() == [frames.Done(7, True, data=data)]


def test_an_order_runs_once_and_is_answered_on_each_connection(world: World, tmp_path: Path) -> None:
    world.again(hooks=True)
    script = f"echo x >> {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    world.agent.take(hook(7, script))
    world.agent.disconnected()
    world.agent.tick()
    world.agent.connected(3)
    world.agent.take(hook(8, script))
    (tmp_path / "go").touch()
    world.until(world.done)
    world.agent.take(hook(9, script))
    world.until(lambda: len(world.done()) == 2)
    assert [(answer.id, answer.data["code"]) for answer in world.done()] == [(8, 0), (9, 0)]
    assert (tmp_path / "runs").read_text() == "x\n"


def test_the_next_agent_waits_for_what_the_last_one_began_also_if_it_would_refuse_it(
    world: World, tmp_path: Path
) -> None:
    world.again(hooks=True)
    script = f"echo x >> {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    world.agent.take(hook(7, script))
    world.again()
    world.agent.take(hook(1, script))
    assert not world.done()
    (tmp_path / "go").touch()
    world.until(world.done)
    assert [(answer.id, answer.data["code"]) for answer in world.done()] == [(1, 0)]
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_number_of_an_earlier_controller_is_not_answered_to_the_next_one(
    world: World, tmp_path: Path
) -> None:
    world.again(hooks=True)
    world.agent.take(hook(7, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", "old"))
    world.agent.disconnected()
    world.agent.connected(4)
    (tmp_path / "go").touch()
    world.agent.take(hook(7, "echo new; exit 2", "new", fence=4))
    world.until(world.done)
    assert [(answer.data["name"], answer.data["code"]) for answer in world.done()] == [("new", 2)]


def test_an_order_of_an_older_controller_is_refused(world: World, tmp_path: Path) -> None:
    world.again(hooks=True, fence=4)
    world.agent.take(hook(7, f"touch {tmp_path}/ran"))
    assert world.done() == [frames.Done(7, False, wire.FENCED)]
    assert not list(world.state.path.glob("orders/*"))


def test_one_that_does_not_end_in_time_is_killed(world: World) -> None:
    world.again(hooks=True)
    world.agent.take(hook(7, "sleep 1000", limit_s=1))
    world.until(world.done)
    assert world.done()[0].data["late"] and world.done()[0].data["code"] is None


def test_no_more_than_sixteen_run_at_once(world: World, tmp_path: Path) -> None:
    world.again(hooks=True)
    for number in range(17):
        world.agent.take(hook(number, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done", f"n{number}"))
    assert world.done() == [frames.Done(16, False, "16 orders run already")]
    (tmp_path / "go").touch()
    world.until(lambda: len(world.done()) == 17)


@pytest.mark.parametrize(
    "frame",
    [
        frames.Run(7, 3, "reboot", {"name": "a", "limit_ns": S}),
        frames.Run(7, 3, "check", {"limit_ns": S}),
        check(7, tier="deep"),
        check(7, used="x"),
        check(7, used=[1]),
        check(7, used=["x"] * 513),
        check(7, log_since_ns="x"),
        check(7, name="../x"),
        check(7, name=""),
        check(7, name="a/b"),
        frames.Run(7, 3, "hook", {"name": "a", "limit_ns": S}),
        frames.Run(7, 3, "hook", {"name": "a", "limit_ns": S, "words": []}),
        frames.Run(7, 3, "hook", {"name": "a", "limit_ns": S, "words": ["a\0b"]}),
        frames.Run(7, 3, "hook", {"name": "a", "limit_ns": -1, "words": ["true"]}),
    ],
)
def test_an_order_that_it_does_not_know_is_refused(world: World, frame: frames.Run) -> None:
    world.again(hooks=True)
    world.agent.take(frame)
    [answer] = world.done()
    assert not answer.ok
    assert not list(world.state.path.glob("orders/*"))


def test_a_changed_node_is_reported_whole_and_once(world: World) -> None:
    before = world.now
    assert before is not None
    world.now = replace(before, node=replace(before.node, devices=before.node.devices[:1]))
    world.agent.look_soon()
    world.until(lambda: world.seen("node"))
    [body] = world.seen("node")
    assert [device["id"] for device in body["node"]["devices"]] == ["n1/0"]
    assert world.agent.held().node == body["node"]
    world.agent.look_soon()
    world.agent.tick()
    assert world.agent._look is not None
    world.until(lambda: world.agent._look is None)
    assert len(world.seen("node")) == 1


def test_a_node_without_any_device_left_is_reported(world: World) -> None:
    world.now = None
    world.agent.look_soon()
    world.until(lambda: world.seen("node"))
    assert not world.seen("node")[0]["node"]["devices"]
