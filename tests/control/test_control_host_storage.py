"""Jobs on hosts whose directories are on a file server that does not answer: what agents see of a real mount, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import needs
from control.test_control_agent_signs import AHEAD_NS, Offsets, peer
from fuse import stubborn
from sim.worlds import S
from unidle import wire
from unidle.agent.mounts import LATE_NS, Mounts
from unidle.control.nodes.host_storage import HostStorage
from unidle.events import types as ev
from unidle.hub import frames
from view.telling import Telling
from waiting import wait_until


class World:
    """Two hosts with an agent's part each, and the controller's; times in seconds of the controller."""

    def __init__(self, place: Path) -> None:
        self.telling = Telling(2, 2).at(100)
        self.agents = {node: Mounts(place / node) for node in ("n0", "n1")}
        self.refuses = ""
        self.connection = 1
        self.storage = HostStorage(self._ask, Offsets())

    def _ask(self, node: str, what: str, body: dict[str, Any], answer: Callable[[frames.Done], None]) -> None:
        assert what == wire.MOUNTS
        if not self.refuses:
            self.agents[node].order(msgspec.json.decode(msgspec.json.encode(body)))
        answer(frames.Done(1, not self.refuses, self.refuses))

    def hears(self, node: str, what: str, body: dict[str, Any]) -> None:
        told = frames.Seen(what, msgspec.json.decode(msgspec.json.encode(body)))
        self.storage.hear(msgspec.structs.replace(peer(node=node), id=self.connection), told)

    def look(self, at_s: float, *silent: str) -> list[ev.Event]:
        """What follows at a time, applied as the controller does. The agents of ``silent`` nodes are away."""
        self.telling.at(at_s)
        for node, agent in self.agents.items():
            for body in agent.take(int(at_s * S) - AHEAD_NS, connected=node not in silent):
                self.hears(node, wire.MOUNTS, body)
            if node not in silent:
                self.hears(node, wire.VITALS, {})
        self.storage._next_ns = 0
        found = []
        for event in self.storage.look(self.telling.view, int(at_s * S)):
            self.telling.tell(event)
            found.append(event)
        return found

    def settled(self, at_s: float) -> None:
        """Until the agents have their orders, and nobody asks."""
        steps = iter(range(1, 1_000_000))

        def quiet() -> bool:
            for agent in self.agents.values():
                agent._next_ns = 0
            self.look(at_s + next(steps) / 1e6)
            asked = [one for agent in self.agents.values() for one in agent._watch._asked.values()]
            return bool(asked) and not any(one.pid for one in asked)

        wait_until(quiet, 60, "answers")

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as made:
        yield made


@needs.root
def test_a_mount_that_does_not_answer_on_a_host_is_told_once_and_then_its_end(
    world: World, tmp_path: Path
) -> None:
    with stubborn(tmp_path / "far") as mount:
        world.telling.submit("a", workdir=str(mount.place)).place("a", "n0/0")
        world.telling.submit("b", workdir="/", checkpoint_path=str(tmp_path)).place("b", "n1/0")
        world.settled(100)
        mount.stall()
        assert world.look(111) == []
        assert mount.held.wait(60)
        assert world.look(111 + LATE_NS / S) == []
        [said] = world.look(122)
        assert isinstance(said, ev.VerdictReached)
        assert (said.job, said.kind, said.node, said.onset_ns) == ("a", "storage", "n0", 111 * S)
        assert str(mount.place) in said.because.text and "node n0" in said.because.text
        assert world.look(130, "n0") == []  # its agent is away: what it saw last counts
        mount.answer()
        world.settled(131)
        [over] = [v for v in world.telling.view.jobs.open["a"].attempts[-1].verdicts if v.over_ns is not None]
        assert over.because.figures["mount"] == str(mount.place)


@needs.root
def test_a_gang_on_two_hosts_names_the_one_that_is_cut_off_from_its_server(
    world: World, tmp_path: Path
) -> None:
    with stubborn(tmp_path / "far") as mount:
        world.telling.submit("a", workdir=str(mount.place), ranks=2).place("a", "n0/0", "n1/0")
        world.settled(100)
        well = {"path": str(mount.place), "mount": [str(mount.place), "fuse", "server:/data"]}
        world.hears("n1", wire.MOUNTS, {"mounts": [{**well, "since_ns": 90 * S}], "why_not": ""})
        [said] = world.look(108, "n1")
        assert isinstance(said, ev.VerdictReached)
        assert (said.node, said.onset_ns) == ("n1", 90 * S + AHEAD_NS)
        world.hears("n1", wire.MOUNTS, {"mounts": [well], "why_not": ""})
        [over] = world.look(109, "n1")
        assert isinstance(over, ev.VerdictOver)


def test_a_host_that_cannot_check_is_not_watched_and_one_that_joins_again_is_asked_again(
    world: World,
) -> None:
    world.refuses = "'mounts' is unknown to this release"
    world.telling.submit("a", workdir="/").place("a", "n0/0")
    [said] = world.look(101)
    assert said == ev.WatchSet("n0", "storage", world.refuses)
    world.refuses, world.connection = "", 2
    world.look(102)
    assert world.agents["n0"]._paths == ("/",)
    world.look(103)
    assert world.telling.view.watching["n0"]["storage"].why_not == ""


@pytest.mark.parametrize(
    "body",
    [{}, {"mounts": 1}, {"mounts": [{"path": 1}]}, {"mounts": [{"path": "/", "mount": ["/"]}]}, {"mounts": [{"path": "/", "mount": ["/", "nfs", "x"], "error": -1}]}],
)  # fmt: skip
def test_a_report_that_is_not_as_agreed_is_passed_over(world: World, body: dict[str, Any]) -> None:
    world.telling.submit("a", workdir="/").place("a", "n0/0")
    world.look(100)
    world.hears("n0", wire.MOUNTS, body)
    assert world.look(150) == []


@pytest.mark.parametrize("paths", [["x"], [1], "x", ["/a\0"], ["/" + 1024 * "x"], 513 * ["/"]])
def test_an_order_that_is_not_as_agreed_is_refused(world: World, paths: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        world.agents["n0"].order({"paths": paths})


def test_a_host_on_which_a_rank_lands_asks_for_its_directories_too(world: World, tmp_path: Path) -> None:
    ordered: dict[str, object] = {}

    def ask(node: str, what: str, body: dict[str, Any], answer: Callable[[frames.Done], None]) -> None:
        ordered[node] = body["paths"]

    world.storage._ask = ask
    world.telling.submit("a", workdir=str(tmp_path)).place("a", "n0/0")
    for agent in world.agents.values():
        agent.close()
    world.look(100)
    assert ordered == {"n0": (str(tmp_path),), "n1": ()}
    world.telling.tell(ev.RankLanded("a", 1, 0, "n1", ("n1/0",)))
    world.look(101)
    assert ordered == {"n0": (), "n1": (str(tmp_path),)}
