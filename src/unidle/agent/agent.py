"""What an agent does with the commands of its hub, and what it reports to it. It neither dials nor waits.

The caller gives it each frame (:meth:`Agent.take`), calls :meth:`Agent.tick` several times a second, and calls :meth:`Agent.connected`
and :meth:`Agent.disconnected`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unidle import wire
from unidle.agent.boxes import RUNS, Boxes, BoxOrder
from unidle.agent.cuts import ORDERS as CUTS
from unidle.agent.cuts import HostCuts
from unidle.agent.found_node import FoundNode
from unidle.agent.orders import Orders
from unidle.agent.pods.boxes import BoxesInPods
from unidle.agent.pods.pod_resources import PodResources
from unidle.agent.rank_files import read_part
from unidle.agent.rank_looks import ORDERS, RankLooks
from unidle.agent.signs import Signs
from unidle.agent.state import AgentState
from unidle.errors import UnidleError
from unidle.hub import frames

LOOK_EVERY_S: Final = 300.0
"""Between two lists of the host's devices. A sign of a GPU makes the next one due at once."""
PRUNE_EVERY_S: Final = 3600.0
_GPU_KINDS: Final = frozenset({"xid", "sxid", "gpu_lost", "gpu"})
_KEPT_ANSWERS: Final = 256

Send = Callable[[frames.FromClient], int]
Find = Callable[[], FoundNode]


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where boxes dial: ``host:port``, and the certificate of the hub's authority."""

    address: str
    authority: str


@dataclass(slots=True)
class _Look:
    """The devices of the host are listed in a thread of its own: a broken driver may take minutes."""

    thread: threading.Thread
    found: list[FoundNode] = field(default_factory=list)


class Agent:
    """The agent of one node. ``find`` lists its devices; ``send`` takes a frame for the hub, while there is a connection.

    It returns the number of a pong: once the hub has acknowledged that one, it has received the frame. ``hooks``:
    whether commands of the site run on this host; ``pods``: boxes are pods of this node.

    ``cuts``, where it is set, makes parts of its devices; ``pod_resources`` shows which devices pods have.
    """

    def __init__(
        self, state: AgentState, hub: HubAddress, found: FoundNode, find: Find, send: Send, *, hooks: bool = False,
        pods: BoxesInPods | None = None,
    ) -> None:  # fmt: skip
        self._state, self._hub, self.found, self._find, self._send = state, hub, found, find, send
        self.boxes: Boxes | BoxesInPods = pods or Boxes(state.boxes)
        self._signs = Signs(found.node, state.path / "watch.json")
        self._looks = RankLooks(found.node, state.boxes, RUNS)
        self.cuts: HostCuts | None = None
        self.pod_resources: PodResources | None = None
        self._fence = 0  # the newest that was seen
        self._starting: dict[int, str] = {}  # command -> job of the box
        log = found.node.watch.kernel_log if found.node.watch is not None else ""
        self._orders = Orders(
            state.orders, found.node.id, hooks=hooks, kernel_log=log, whole_node=pods is not None
        )
        self._answers: dict[tuple[int, int], frames.Done] = {}  # by fence and command
        self._connected = False
        self._unacknowledged: list[tuple[int, int]] = []  # signs sent: the next pong's number, how many
        self._look: _Look | None = None
        self._look_s = time.monotonic() + LOOK_EVERY_S
        self._prune_s = 0.0

    # -- the connection --------------------------------------------------------------------------

    def held(self) -> frames.AgentHeld:
        """Its part of the hello."""
        from unidle import __version__

        return frames.AgentHeld(self.found.to_json(), self.boxes.running(), __version__)

    def at_address(self, address: str) -> None:
        """The host is reached at this address now."""
        if address != self.found.node.address:
            self.found = replace(self.found, node=replace(self.found.node, address=address))

    def connected(self, fence: int) -> list[str]:
        """The hub welcomed it: boxes find it there, too. Why some of them cannot know that."""
        self._connected = True
        if fence > self._fence:  # another controller, whose commands have these numbers, too
            self._fence, self._starting = fence, {}
        return self.boxes.point(self._hub.address, self._hub.authority)

    def disconnected(self) -> None:
        """The connection is over. Boxes, checks and hooks continue."""
        self._connected = False
        self._orders.lost()
        self._unacknowledged = []
        self._signs.lost()
        self._looks.lost()
        for part in (self.cuts, self.pod_resources):
            if part is not None:
                part.lost()

    def acknowledged(self, number: int) -> None:
        """The hub received that pong, and so all that was sent before it."""
        count = 0
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            count += self._unacknowledged.pop(0)[1]
        if count:
            self._signs.received(count)

    # -- commands --------------------------------------------------------------------------------

    def take(self, frame: frames.ToClient) -> None:
        """Carry out a command. Each one that has an id is answered once, now or with a later :meth:`tick`."""
        if isinstance(frame, frames.Read):
            self._read(frame)
        elif isinstance(frame, frames.Box | frames.Run):
            self._fenced(frame)

    def _fenced(self, frame: frames.Box | frames.Run) -> None:
        if frame.fence < self._fence:
            self._send(frames.Done(frame.id, False, wire.FENCED))
            return
        self._fence = frame.fence
        if (before := self._answers.get((frame.fence, frame.id))) is not None:
            self._send(before)  # it came twice
        elif isinstance(frame, frames.Box):
            self._box(frame)
        elif frame.what in ORDERS:
            if (answer := self._looks.take(frame.id, frame.what, frame.body)) is not None:
                self._send(frames.Done(frame.id, not answer[1], answer[1][:4096], answer[2]))
        elif frame.what in CUTS and self.cuts is not None:
            if why := self.cuts.take(frame.id, frame.what, frame.body, self.found.node):
                self._send(frames.Done(frame.id, False, why[:4096]))
        elif frame.what == wire.DEVICES and self.pod_resources is not None:
            if why := self.pod_resources.ask(frame.id, frame.body):
                self._done(frame.id, why=why)
        elif why := self._orders.take(frame.id, frame.what, frame.body):
            self._done(frame.id, why=why)

    def _box(self, frame: frames.Box) -> None:
        node = self.found.node.id
        order = BoxOrder(self._hub.address, self._hub.authority, node, frame.job, frame.token)
        try:
            self.boxes.begin(order, frame.env)
        except (OSError, ValueError) as error:
            self._done(frame.id, why=str(error))
        else:
            self._starting[frame.id] = frame.job

    def _read(self, frame: frames.Read) -> None:
        place = (frame.job, frame.attempt, frame.rank)
        try:
            runs = self.boxes.directory(frame.job) / RUNS
            part = read_part(runs, place, frame.file, frame.offset, frame.bytes)
        except (OSError, ValueError) as error:
            self._send(frames.Done(frame.id, False, str(error)))
        else:
            self._send(frames.Done(frame.id, True, data=part.as_data()))

    def _done(self, command: int, *, why: str = "", data: dict[str, Any] | None = None) -> None:
        answer = frames.Done(command, not why, why[:4096], data or {})
        self._answers[self._fence, command] = answer
        while len(self._answers) > _KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        if self._connected:
            self._send(answer)

    # -- reports ---------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being waited for, so that the next :meth:`tick` should come soon."""
        parts = (self.cuts, self.pod_resources, self._orders, self._looks)
        return bool(self._starting) or any(part is not None and part.is_busy for part in parts)

    def tick(self) -> None:
        """Answer what has ended, and report what changed."""
        for job in sorted(set(self._starting.values())):
            if (why := self.boxes.answer(job)) is not None:
                for other in [k for k, name in self._starting.items() if name == job]:
                    del self._starting[other]
                    self._done(other, why=why)
        for command, data in self._orders.ended():
            self._done(command, data=data)
        now_s = time.monotonic()
        self._look_at_host(now_s)
        if now_s >= self._prune_s:
            self._prune_s = now_s + PRUNE_EVERY_S
            self.boxes.prune(time.time())
        for part in (self._looks, self.cuts, self.pod_resources):
            for command, why, data in part.answers() if part is not None and part.is_busy else ():
                self._done(command, why=why, data=data)
        for seen in self._looks.reports(self.boxes.live(), connected=self._connected):
            self._send(seen)
        if self._connected:
            for job in self.boxes.ended():
                self._send(frames.Seen("left", {"job": job}))
            self._report_signs()
            if self.pod_resources is not None and (body := self.pod_resources.report()) is not None:
                self._send(frames.Seen(wire.DEVICES, body))

    def look_soon(self) -> None:
        """List the devices of the host now."""
        self._look_s = 0.0

    def _report_signs(self) -> None:
        for body in self._signs.take():
            pong = self._send(frames.Seen("signs", body))
            if count := len(body["detections"]):
                self._unacknowledged.append((pong, count))
            if any(one["finding"]["kind"] in _GPU_KINDS for one in body["detections"]):
                self.look_soon()

    def _look_at_host(self, now_s: float) -> None:
        if self._look is None:
            if now_s >= self._look_s:
                self._look_s = now_s + LOOK_EVERY_S
                found: list[FoundNode] = []
                thread = threading.Thread(
                    target=self._look_into, args=(found,), name="unidle-look", daemon=True
                )
                self._look = _Look(thread, found)
                thread.start()
            return
        if self._look.thread.is_alive():
            return
        found, self._look = self._look.found, None
        if found and found[0].to_json() != self.found.to_json():
            self.found = found[0]
            if self._connected:
                self._send(frames.Seen("node", {"node": self.found.to_json()}))

    def _look_into(self, found: list[FoundNode]) -> None:
        try:
            found.append(self._find())
        except UnidleError:  # no device is left: it has none
            found.append(replace(self.found, node=replace(self.found.node, devices=()), links=None))

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the detectors. Boxes, checks and hooks stay."""
        self._signs.close()
        self._looks.close()
        for part in (self.cuts, self.pod_resources):
            if part is not None:
                part.close()
