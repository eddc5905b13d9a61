"""The engine of many hosts (``unidle.engine.protocol.Engine``): boxes that dial the hub hold the ranks."""

from __future__ import annotations

import hashlib
import select
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from unidle import wire
from unidle.clock import Clock
from unidle.engine.hosts.box_maker import BY_AGENTS, Hosting
from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.node_commands import HostCommands
from unidle.engine.hosts.orders import BoxHost, rank_orders
from unidle.engine.hosts.outbox import Answer
from unidle.engine.hosts.reads import ReadRequest, Reads, answer_to
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.node_commands import NodeCommands
from unidle.engine.protocol import LiveAttempt, Observation, StartGang, StopGang, WatchGang
from unidle.fleet import Fleet
from unidle.hub import frames
from unidle.hub.file_parts import RankFilePart
from unidle.hub.protocol import Hub, Joined, Left, Peer, Received

LONGEST_WAIT_NS: Final = 500_000_000
AGENT_AWAY_NS: Final = 15_000_000_000
"""So long after its last word an agent counts as connected: one that is started again is back by then."""
READERS_ASK: Final = frozenset({wire.PROFILE})
"""Orders to agents that a reader may give."""


class HostsEngine:
    """Runs gangs over boxes.

    ``fleet`` has what no host describes (tiers, queues, policies), and the nodes that the log has from before: a
    running attempt must not be without its node. Nodes that join or leave are observations. ``fence`` is the store's
    token of this controller; it grows with each controller. ``timing.deadline_ns`` must be the lease that the hub
    grants. ``on_seen`` gets what agents and boxes observe and the engine has no use for (``signs``, ...).

    ``commands`` runs checks and remedies on the hosts. The engine is used by one thread, apart from :meth:`read`. What ranks do, and whether devices are used, is measured by
    the agents of their hosts. They make the parts of devices, too.
    """

    modelled: Final = False

    def __init__(
        self,
        hub: Hub,
        fleet: Fleet,
        clock: Clock,
        fence: int,
        timing: HostsTiming | None = None,
        hosting: Hosting = BY_AGENTS,
    ) -> None:
        self._hub, self._clock = hub, clock
        # names run ids, so that two controllers with jobs of the same name never mistake processes on one host
        self._name = "h" + hashlib.sha256(hub.box_token("", "").encode()).hexdigest()[:8]
        self._core = HostsCore(
            hub, fleet, clock.now_ns(), fence, timing or HostsTiming(), self._orders, hosting
        )  # fmt: skip
        self._kept = hosting.kept
        self.commands: NodeCommands = HostCommands(self._core, clock, self._name, self._flush)
        self._reads = Reads(hosting.kept)
        self._poller = select.poll()
        self._poller.register(hub.wake_fd, select.POLLIN)
        self._poller.register(self._reads.wake_fd, select.POLLIN)
        self._peers: dict[int, Peer] = {}
        self.on_seen: Callable[[Peer, frames.Seen], None] | None = None

    def fleet(self) -> Fleet:
        """The fleet with the nodes that there are now; a node whose agent does not answer has a taint."""
        return self._core.nodes.fleet()

    @property
    def superseded(self) -> bool:
        """Whether a box has a newer controller. Nothing is started any more then."""
        return self._core.out.superseded

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        """Take over attempts of an earlier controller: what runs is found by its boxes' hello.

        Ranks whose box does not dial within its lease from now are lost. Ranks that no one began are started once all
        boxes of the attempt are there.
        """
        self._core.adopt(live, self._clock.now_ns())
        self._flush()

    def start(self, command: StartGang) -> None:
        self._core.start(command, self._clock.now_ns())
        self._flush()

    def stop(self, command: StopGang) -> None:
        self._core.stop(command, self._clock.now_ns())
        self._flush()

    def watch(self, command: WatchGang) -> None:
        self._core.watch(command, self._clock.now_ns())
        self._flush()

    def release(self, job: str, attempt: int) -> None:
        self._core.release(job, attempt, self._clock.now_ns())
        self._flush()

    def finish(self, job: str) -> None:
        """The boxes of the job end."""
        self._core.finish(job)
        self._flush()
        if self._kept is not None:
            self._kept.forget(job)

    def keep(self, jobs: Collection[str]) -> None:
        """Boxes of other jobs end when they say hello."""
        self._core.keep(jobs)

    def read(
        self, node: str, job: str, attempt: int, rank: int, file: str, offset: int, count: int
    ) -> Future[RankFilePart]:
        """Bytes of a file of a rank's directory on its host, such as ``log``. Callable from any thread.

        A negative ``offset`` counts from the end. At most 256 KiB are read at once. The answer comes while the loop
        polls: any thread but the loop's may wait for it with a timeout. Errors of the future: CannotRun where the host
        is not connected, or does not have the file.
        """
        return self._reads.ask(ReadRequest(node, job, attempt, rank, file, offset, count))

    def ask_agent(self, node: str, what: str, body: dict[str, Any], answer: Answer) -> None:
        """Give the agent of a node an order. ``answer`` is called in the loop, also if the connection ends."""
        agent = self._core.nodes.agent(node)
        if agent is None:
            answer(frames.Done(0, False, "its host is not connected"))
            return
        out = self._core.out
        out.tell(agent.id, frames.Run(out.ask(agent.id, answer), out.fence, what, body))
        self._flush()

    def has_agent(self, node: str) -> bool:
        """Whether an agent of the node is connected, or was until a moment ago."""
        link = self._core.nodes.at.get(node)
        return link is not None and (
            link.peer is not None or self._clock.now_ns() < link.heard_ns + AGENT_AWAY_NS
        )

    def poll(self) -> list[Observation]:
        """What is new since the last poll. The time is taken before the hub is asked, so that what came by then counts."""
        now_ns = self._clock.now_ns()
        for event in self._hub.poll():
            if isinstance(event, Joined):
                self._peers[event.peer.id] = event.peer
                self._core.joined(event, now_ns)
            elif isinstance(event, Left):
                self._peers.pop(event.peer, None)
                self._core.left(event, now_ns)
            else:
                self._received(event, now_ns)
        self._core.advance(now_ns)
        self._reads.send(self._core)
        self._flush()
        seen, self._core.out.seen = self._core.out.seen, []
        return seen

    def _received(self, event: Received, now_ns: int) -> None:
        frame, peer = event.frame, event.peer
        if isinstance(frame, frames.Fetch | frames.Ask):
            if event.peer in self._peers and self._peers[event.peer].kind == "reader":
                self._read_for(peer, frame)
            return
        if isinstance(frame, frames.Forget):
            if event.peer in self._peers and self._peers[event.peer].kind == "reader":
                self._hub.send(peer, self._forget(frame, now_ns))
            return
        if self._kept is not None and isinstance(frame, frames.Seen) and frame.what == wire.OUTPUT:
            if (link := self._core.boxes.of_peer.get(peer)) is not None:
                self._kept.take(self._core.gangs, link.node, link.job, frame.body)
            return
        self._core.received(event, now_ns)
        if self.on_seen is not None and isinstance(event.frame, frames.Seen) and event.peer in self._peers:
            self.on_seen(self._peers[event.peer], event.frame)

    def _forget(self, frame: frames.Forget, now_ns: int) -> frames.Done:
        """Take a host out of the fleet, and free its name."""
        why = self._core.forget(frame.node, now_ns)
        if why:
            return frames.Done(frame.id, ok=False, why=why)
        had_joined = self._hub.forget(frame.node)
        if why is None and not had_joined:
            return frames.Done(frame.id, ok=False, why="no host of this name has joined")
        return frames.Done(frame.id, ok=True)

    def _read_for(self, reader: int, frame: frames.Fetch | frames.Ask) -> None:
        """Pass on what a reader requests, and the answer to it."""
        if isinstance(frame, frames.Fetch):
            found = self.read(
                frame.node, frame.job, frame.attempt, frame.rank, frame.file, frame.offset, frame.bytes
            )
            found.add_done_callback(lambda done: self._hub.send(reader, answer_to(frame, done)))
            return

        def answered(done: frames.Done) -> None:
            why = done.why or ("" if done.ok else "the connection of its host ended before the answer")
            self._hub.send(reader, frames.Done(frame.id, done.ok, why, done.data))

        if frame.what in READERS_ASK:
            self.ask_agent(frame.node, frame.what, frame.body, answered)
        else:
            answered(frames.Done(frame.id, False, f"{frame.what!r} is no order of a reader"))

    def wait(self, until_ns: int | None) -> None:
        """Return when the hub has something, when a lease or a start is due, or at ``until_ns``."""
        if self._core.out.seen:
            return
        now_ns = self._clock.now_ns()
        times = [at for at in (until_ns, self._core.next_ns) if at is not None]
        left_ns = min([LONGEST_WAIT_NS, *(max(0, at - now_ns) for at in times)])
        self._poller.poll(-(-left_ns // 1_000_000))

    def also_wake(self, fd: int) -> None:
        """Return from :meth:`wait` once this descriptor is readable, too."""
        self._poller.register(fd, select.POLLIN)

    def close(self) -> None:
        """Let go of the hub; what runs continues within the leases of its boxes."""
        self._reads.close()
        self._hub.close()
        if self._kept is not None:
            self._kept.close()

    def _flush(self) -> None:
        queued, self._core.out.queued = self._core.out.queued, []
        for peer, frame in queued:
            self._hub.send(peer, frame)

    def _orders(self, command: StartGang, port: int, hosts: Mapping[str, BoxHost]) -> list[frames.RankOrders]:
        return rank_orders(command, self.fleet(), port, self._name, hosts)
