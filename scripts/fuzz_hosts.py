"""Targets of fuzz_python.py: what hosts and a controller do with frames of a peer that has a right token, and may be broken.

An input is a list of frames, each a line of JSON. A box and an agent obey the frames of a hub. A controller takes those of
the box of a gang that runs, and, after ``@``, those of its agent. What each of them would start is not started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unidle import wire

if TYPE_CHECKING:
    from unidle.box.box import Box

Run = Callable[[bytes], None]
_RENEWED = 300  # inputs that one controller takes
_MOST_FRAMES = 40  # of one input: each is a turn, with writes to a disk


def box(place: Path) -> Run:
    """The box of a job."""
    import json

    from unidle.box import settings
    from unidle.box.box import Box
    from unidle.engine.local.ranks import spawn

    def refused(*_: object) -> int:
        raise OSError("nothing is started here")

    spawn.spawn_supervisor = refused  # type: ignore[assignment]
    path = place / settings.FILE
    path.touch(mode=0o600)
    content = {"hub": "127.0.0.1:1", "authority": _authority(place), "token": "t", "node": "n1", "job": "job"}
    path.write_text(json.dumps(content))
    numbers = iter(range(sys.maxsize))

    def run(data: bytes) -> None:
        found = settings.read(str(place))
        found.runs = str(place / f"runs-{next(numbers)}")
        Path(found.job_directory).mkdir(parents=True)
        _obeyed(Box(found), data.splitlines()[:_MOST_FRAMES])

    return run


def _obeyed(one: Box, payloads: list[bytes]) -> None:
    """The box takes these frames from a hub, and is closed."""
    from unidle.box.link import LinkEnded

    link: Any = _Link()
    one._talk._lease.begin(0)
    one._talk._link = link
    try:
        for payload in payloads:
            with contextlib.suppress(wire.Malformed, LinkEnded):
                one._talk._take(link, wire.decode(payload))
                for frame in one._talk._frames:
                    one._obey(frame)
            one._talk._frames = []
            one._look(0)
    finally:
        one._talk._link = None
        one._attempts.close()
        one._changes.close()


class _Link:
    """A connection that takes all."""

    fd, unsent, wants, has_more, local_address = -1, 0, 0, False, "127.0.0.1"

    def send(self, frame: bytes) -> None:
        assert len(frame) <= wire.FRAME_BYTES + wire.HEADER.size


def _authority(place: Path) -> str:
    from unidle.hub.authority import OwnIdentity

    made = place / "authority"
    made.mkdir(mode=0o700)
    folder = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    identity = OwnIdentity(folder, str(made), ["127.0.0.1"], time.time())
    os.close(folder)
    identity.close()
    return identity.authority


def agent(place: Path) -> Run:
    """The agent of a host."""
    from unidle.agent import agent as agents
    from unidle.agent import orders
    from unidle.agent.boxes import Boxes
    from unidle.agent.found_node import find_node
    from unidle.agent.state import AgentState
    from unidle.hub import frames

    def find() -> Any:
        return find_node("n1", "127.0.0.1", {}, 1)

    orders.check_words = lambda *_: ("/bin/true",)  # type: ignore[attr-defined]
    state = AgentState(place / "state")
    one = agents.Agent(
        state, agents.HubAddress("h:1", "a"), find(), find, lambda frame: len(frames.encoded(frame))
    )
    one.boxes = Boxes(state.boxes, ("/bin/true",))
    one.connected(0)

    def run(data: bytes) -> None:
        one._fence = 0
        for payload in data.splitlines():
            with contextlib.suppress(wire.Malformed):
                frame = frames.to_client(payload)
                assert frame is not None
                one.take(frame)
        one.tick()

    return run


def hosts(place: Path) -> Run:
    """A controller with one host and its box."""
    rigs = _rigs(place)

    def run(data: bytes) -> None:
        next(rigs).take(data.splitlines()[:_MOST_FRAMES])

    return run


def _rigs(place: Path) -> Iterator[_Controlled]:
    for number in range(sys.maxsize):
        store = place / f"{number}.db"
        with contextlib.closing(_Controlled(store)) as rig:
            for _ in range(_RENEWED):
                yield rig
        store.unlink()


class _Hub:
    """One that answers what the engine asks, and sends nothing."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.sent: list[tuple[int, Any]] = []
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.now_ns = 0

    def poll(self) -> list[Any]:
        events, self.events = self.events, []
        return events

    def send(self, peer: int, frame: Any) -> None:
        self.sent.append((peer, frame))

    def offset(self, _peer: int) -> None:
        return None

    def acknowledged_ns(self, _peer: int) -> int:
        return self.now_ns

    def forget(self, _node: str) -> bool:
        return True

    def box_token(self, node: str, job: str) -> str:
        return f"{node} {job}"

    def close(self) -> None:
        os.close(self.wake_fd)


class _Controlled:
    """A controller, and gangs of one rank that begin and are cancelled, one after the other."""

    def __init__(self, path: Path) -> None:
        import msgspec

        from unidle.clock import VirtualClock
        from unidle.control.hosts import AgentSigns
        from unidle.control.loop import Controller
        from unidle.engine.hosts.engine import HostsEngine
        from unidle.fleet import Device, Fleet, Node, Tier
        from unidle.hub import frames
        from unidle.place.policy import Unidle
        from unidle.store.open import open_store

        self._clock, self._hub, self._frames = VirtualClock(1_800_000_000 * 10**9), _Hub(), frames
        self._store = open_store(str(path), create=True)
        lease = self._store.acquire("fuzz")
        engine = HostsEngine(self._hub, Fleet((Tier("site", "site"),)), self._clock, lease.token)
        engine.on_seen = AgentSigns(self._hub).hear
        self._controller = Controller(self._store, lease, engine, Unidle(), self._clock)
        self._controller.start("fuzz")
        self._peers = self._jobs = 0
        self._node = Node("n1", "site", (Device("n1/0", "n1", 0, "cpu"),), address="10.0.0.1")
        self._described = msgspec.to_builtins(self._node)

    def take(self, payloads: list[bytes]) -> None:
        from unidle.jobs import JobSpec

        agent = self._joined("agent", agent=self._frames.AgentHeld(self._described))
        self._turn()
        self._jobs += 1
        job = f"job-{self._jobs}"
        self._controller.submit(job, JobSpec(("train",), workdir="/tmp"))
        self._turn()
        box = self._joined("box", job, box=self._frames.BoxHeld())
        for _ in range(3):  # prepare, start
            self._turn()
            self._answer(box)
        for payload in payloads:
            self._give(agent if payload[:1] == b"@" else box, payload.removeprefix(b"@"))
            self._turn()
        self._controller.cancel(job, "fuzz")
        for peer in (box, agent):
            self._hub.events.append(self._left(peer))
        for _ in range(8):
            self._turn(10)
        view = self._controller.view.jobs[job]
        assert view.terminal, f"{job} is {view.state}"

    def _joined(self, kind: Any, job: str = "", **held: Any) -> int:
        from unidle.hub.protocol import Joined, Peer

        self._peers += 1
        hello = self._frames.Hello(wire.VERSION, kind, "n1", job=job, **held)
        self._hub.events.append(Joined(Peer(self._peers, kind, "n1", job, "boot", "10.0.0.1", hello)))
        return self._peers

    def _left(self, peer: int) -> Any:
        from unidle.hub.protocol import Left

        return Left(peer, "gone", on_purpose=False)

    def _answer(self, box: int) -> None:
        """All commands that the box has are done."""
        sent, self._hub.sent = self._hub.sent, []
        for peer, frame in sent:
            if peer == box and (number := getattr(frame, "id", None)) is not None:
                self._receive(peer, self._frames.Done(number, ok=True, data={"port": 4000}))

    def _give(self, peer: int, payload: bytes) -> None:
        with contextlib.suppress(wire.Malformed):
            frame = self._frames.from_client(payload)
            if isinstance(frame, self._frames.Marks | self._frames.Done | self._frames.Seen):
                self._receive(peer, frame)

    def _receive(self, peer: int, frame: Any) -> None:
        from unidle.hub.protocol import Received

        self._hub.events.append(Received(peer, frame))

    def _turn(self, seconds: int = 1) -> None:
        self._clock.advance_to(self._clock.now_ns() + seconds * 10**9)
        if seconds == 1:  # else no peer answers
            self._hub.now_ns = self._clock.now_ns()
        self._controller.turn()

    def close(self) -> None:
        self._hub.close()
        self._store.close()


TARGETS: dict[str, Callable[[Path], Run]] = {"box": box, "agent": agent, "hosts": hosts}
