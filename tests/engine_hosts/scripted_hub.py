"""A hub of which a test says who joins, what is received and when: the engine of hosts step by step, on a virtual clock."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from unidle.clock import VirtualClock
from unidle.engine.hosts.box_maker import BY_AGENTS, Hosting
from unidle.engine.hosts.engine import HostsEngine
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.protocol import Observation, RankMarks, StartGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset, Joined, Left, Peer, Received
from unidle.jobs import JobSpec, RankPlace

TIMING = HostsTiming()


def node_of(name: str, **more: Any) -> Node:
    return Node(name, "site", (Device(f"{name}/0", name, 0, "cpu"),), address=f"10.0.0.{name[1:]}", **more)


def gang_of(ranks: int = 2, *, attempt: int = 1, **more: Any) -> StartGang:
    """One rank on each of the nodes n1, n2, ..."""
    places = tuple(RankPlace(rank, f"n{rank + 1}", (f"n{rank + 1}/0",)) for rank in range(ranks))
    return StartGang("job", attempt, JobSpec(("train",), ranks=ranks, workdir="/tmp"), places, **more)


class ScriptedHub:
    """``sent`` is what the engine sent since it was last asked for, by peer."""

    def __init__(self, fleet: Fleet, hosting: Hosting = BY_AGENTS) -> None:
        self.clock = VirtualClock(1_700_000_000 * S)
        self.events: list[Joined | Left | Received] = []
        self.all_sent: list[tuple[int, frames.Command]] = []
        self.heard: dict[int, int] = {}
        self.clock_offset: ClockOffset | None = ClockOffset(77, 1)
        self.forgotten: list[str] = []
        self.wake_fd = os.eventfd(0)
        self._last = 0
        self.engine = HostsEngine(self, fleet, self.clock, 5, TIMING, hosting)

    # the hub

    def poll(self) -> list[Joined | Left | Received]:
        events, self.events = self.events, []
        return events

    def send(self, peer: int, frame: frames.Command) -> None:
        self.all_sent.append((peer, frame))

    def offset(self, peer: int) -> ClockOffset | None:
        return self.clock_offset

    def acknowledged_ns(self, peer: int) -> int:
        return self.heard[peer]

    def box_token(self, node: str, job: str) -> str:
        return f"token of {node} {job}"

    def forget(self, node: str) -> bool:
        self.forgotten.append(node)
        return True

    def close(self) -> None:
        os.close(self.wake_fd)

    # the test

    def join(
        self, node: str, job: str = "", *, held: frames.BoxHeld | None = None, described: Node | None = None,
        kind: str = "",
    ) -> int:  # fmt: skip
        """An agent, or the box of a job, says hello, or a peer of another ``kind``."""
        self._last += 1
        agent = None if job else frames.AgentHeld(msgspec.to_builtins(described or node_of(node)))
        kind = kind or ("box" if job else "agent")
        hello = frames.Hello(1, kind, node, job=job, box=held, agent=agent)  # type: ignore[arg-type]
        self.heard[self._last] = self.clock.now_ns()
        self.events.append(Joined(Peer(self._last, kind, node, job, f"boot of {node}", "", hello)))  # type: ignore[arg-type]
        return self._last

    def leave(self, peer: int, *, on_purpose: bool = False) -> None:
        self.events.append(Left(peer, "gone", on_purpose))

    def receive(self, peer: int, frame: frames.Marks | frames.Done | frames.Seen) -> None:
        self.events.append(Received(peer, frame))

    def marks(self, peer: int, rank: int, first: int, *marks: Mark, attempt: int = 1) -> None:
        lines = tuple(msgspec.Raw(msgspec.json.encode(mark)) for mark in marks)
        self.receive(peer, frames.Marks(attempt, rank, first, lines))

    def answer(self, peer: int, kind: type, *, why: str = "", **data: object) -> None:
        """Answer all commands of a kind that the peer has."""
        for frame in self.sent(peer, kind):
            self.receive(peer, frames.Done(frame.id, ok=not why, why=why, data=data))

    def sent(self, peer: int, kind: type) -> list[Any]:
        """Take the commands of a kind that were sent to a peer."""
        found = [frame for to, frame in self.all_sent if to == peer and isinstance(frame, kind)]
        self.all_sent = [
            (to, frame) for to, frame in self.all_sent if to != peer or not isinstance(frame, kind)
        ]
        return found

    def after(self, seconds: float, *heard: int) -> list[Observation]:
        """So much later, second by second; these peers answer all the time."""
        seen = list(self.engine.poll())
        end_ns = self.clock.now_ns() + int(seconds * S)
        while self.clock.now_ns() < end_ns:
            self.clock.advance_to(min(end_ns, self.clock.now_ns() + S))
            self.heard.update(dict.fromkeys(heard, self.clock.now_ns()))
            seen += self.engine.poll()
        return seen

    def running(self, ranks: int = 2) -> tuple[int, ...]:
        """Start a gang whose boxes are there; their connections."""
        self.engine.start(gang_of(ranks))
        boxes = tuple(self.join(f"n{rank + 1}", "job") for rank in range(ranks))
        self.after(0)
        for box in boxes:
            self.answer(box, frames.Prepare, port=4000)
        self.after(0)
        for rank, box in enumerate(boxes):
            self.answer(box, frames.Start)
            self.marks(box, rank, 0, Mark("spawn", 1, pid=1, ticks=1))
        self.after(0)
        return boxes


def fleet() -> Fleet:
    return Fleet((Tier("site", "site"),))


def marks_of(seen: list[Observation]) -> list[tuple[int, int, list[str]]]:
    """Rank, ordinal and kinds of the marks among observations."""
    return [
        (one.rank, one.first, [mark.k for mark in one.marks]) for one in seen if isinstance(one, RankMarks)
    ]
