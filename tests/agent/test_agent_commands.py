"""What an agent answers to commands and reports by itself, without a connection in between."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unidle import wire
from unidle.agent.agent import Agent, HubAddress
from unidle.agent.boxes import Boxes
from unidle.agent.found_node import FoundNode, find_node
from unidle.agent.state import AgentState
from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun
from unidle.hub import frames

STUB = (sys.executable, str(Path(__file__).with_name("stub_box.py")))


class World:
    """An agent, what it sent, and what its host has."""

    def __init__(self, place: Path) -> None:
        self.state = AgentState(place / "agent")
        self.now: FoundNode | None = find_node("n1", "10.0.0.1", {}, 2)
        self.sent: list[frames.FromClient] = []
        assert self.now is not None
        self.agent = Agent(self.state, HubAddress("hub:7000", "PEM"), self.now, self.find, self.send)
        self.agent.boxes = Boxes(self.state.boxes, STUB)
        self.agent.connected(3)

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


def test_a_check_of_the_node_runs_there_and_its_result_is_the_answer(world: World) -> None:
    world.agent.take(frames.Run(7, 3, "check", {"tier": "quick", "log_age_s": 60, "used": ["/nowhere"]}))
    assert world.agent.is_busy
    world.until(world.done)
    [answer] = world.done()
    assert answer.ok
    assert answer.data["code"] in (0, 1, 3)
    assert not answer.data["late"]
    assert json.loads(answer.data["text"])["node"] == "n1"


@pytest.mark.parametrize(
    "frame",
    [
        frames.Run(7, 3, "hook", {}),
        frames.Run(7, 3, "check", {"tier": "deep"}),
        frames.Run(7, 3, "check", {"used": "x"}),
        frames.Run(7, 3, "check", {"used": [1]}),
        frames.Run(7, 3, "check", {"log_age_s": "x"}),
    ],
)
def test_an_order_that_it_does_not_know_is_refused(world: World, frame: frames.Run) -> None:
    world.agent.take(frame)
    [answer] = world.done()
    assert not answer.ok


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
