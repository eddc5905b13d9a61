"""Signs of faults on their way to the controller: none is lost with a connection."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unidle.agent.found_node import find_node
from unidle.agent.signs import Signs
from unidle.fleet.policies import WatchSources
from unidle.probe.detector import Detection, DetectorStatus

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus."


class World:
    """A node whose kernel log is a file."""

    def __init__(self, place: Path) -> None:
        self.log = place / "kern.log"
        self.log.write_text("")
        self.file = place / "watch.json"
        self.signs = self.begin()
        self._stamps = itertools.count(100)

    def begin(self) -> Signs:
        node = find_node("n1", "10.0.0.1", {}, 1).node
        return Signs(replace(node, watch=WatchSources(kernel_log=str(self.log))), self.file)

    def line(self, text: str = XID) -> None:
        with self.log.open("a") as file:
            file.write(f"[{next(self._stamps)}.000000] {text}\n")

    def bodies(self, until: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        """All that it has to say until it holds of that."""
        deadline, found = time.monotonic() + 60, []
        while not until(found):
            assert time.monotonic() < deadline, found
            found += list(self.signs.take())
        return found


def detections(bodies: list[dict[str, Any]]) -> list[Detection]:
    found = [one for body in bodies for one in body["detections"]]
    return [msgspec.convert(one, Detection) for one in found]


def watched(bodies: list[dict[str, Any]]) -> dict[str, DetectorStatus]:
    found = [msgspec.convert(one, DetectorStatus) for body in bodies for one in body["statuses"]]
    return {one.detector: one for one in found}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.bodies(lambda found: "kernel log" in watched(found))
    yield world
    world.signs.close()


def test_a_line_of_the_kernel_log_is_a_sign_with_its_times(world: World) -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    world.line()
    [one] = detections(world.bodies(detections))
    assert (one.node, one.detector, one.finding.kind, one.finding.code) == ("n1", "kernel log", "xid", 79)
    assert before_ns <= one.signal_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_what_was_not_received_is_sent_again_on_the_next_connection(world: World) -> None:
    world.line()
    first = detections(world.bodies(detections))
    assert list(world.signs.take()) == []
    world.signs.lost()
    again = list(world.signs.take())
    assert detections(again) == first
    assert "kernel log" in watched(again)
    world.signs.received(world.signs.sent)
    world.signs.lost()
    assert detections(list(world.signs.take())) == []


def test_the_next_agent_reads_on_where_signs_were_received(world: World) -> None:
    world.line()
    world.bodies(detections)
    world.signs.close()  # killed before it was received
    world.signs = world.begin()
    assert len(detections(world.bodies(detections))) == 1
    world.signs.received(world.signs.sent)
    list(world.signs.take())  # notes it
    world.signs.close()
    world.signs = world.begin()
    world.line(XID.replace("79", "48"))
    [one] = detections(world.bodies(detections))
    assert one.finding.code == 48
