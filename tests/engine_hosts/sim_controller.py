"""Controllers with a hub and the core of the engine of hosts each, and the log of which only the newest one can write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine_hosts.sim_network import EVERY_NS, MS, NODES, TIMING, Link
from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import LiveAttempt, RankMarks, Silent, StartGang, StopGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset, Joined, Left, Peer, Received

if TYPE_CHECKING:
    from engine_hosts.fencing_model import World

TOKEN_NS = 4 * S  # of the store: renewed each second, unused from half of it on
JOBS = ("a", "b")
FLEET = Fleet(
    (Tier("site", "site"),),
    tuple(
        Node(node, "site", (Device(f"{node}/0", node, 0, "cpu"),), address=f"10.0.0.{node[1:]}")
        for node in NODES
    ),
)


class Violation(AssertionError):
    """One of the rules does not hold."""


@dataclass
class LoggedAttempt:
    command: StartGang
    marks: list[list[Mark]]
    stopped: bool = False
    over: bool = False

    @property
    def ended(self) -> tuple[bool, ...]:
        return tuple(bool(m) and m[-1].k in ("exit", "lost") for m in self.marks)


@dataclass
class Log:
    """The store: only the newest controller can write."""

    fence: int = 0
    held_until_ns: int = 0
    jobs: dict[str, list[LoggedAttempt]] = field(default_factory=lambda: {job: [] for job in JOBS})
    finished: set[str] = field(default_factory=set)


class SimHub:
    """The server of one controller, with a thread of its own: it acknowledges whether or not the loop looks."""

    def __init__(self, world: World, controller: SimController) -> None:
        self.world, self.time, self.controller = world, world.time, controller
        self.events: list[Any] = []
        self.links: dict[int, Link] = {}
        self.peers: dict[int, Peer] = {}
        self.received: dict[int, tuple[int, int]] = {}  # newest pong: number, and when it came
        self.pinged: dict[int, dict[int, int]] = {}  # when each ping was sent
        self.acknowledged: dict[int, int] = {}
        self.open = True
        self.tick()

    def tick(self) -> None:
        """Ping everyone each second, and acknowledge what came."""
        if not self.open:
            return
        if self.controller.fresh or self.world.broken == "a hub acknowledges without the store's token":
            for peer, link in self.links.items():
                n, came_ns = self.received[peer]
                self.acknowledged[peer] = came_ns
                number = len(self.pinged[peer]) + 1
                self.pinged[peer][number] = self.time.now_ns
                link.to_client(frames.Ping(number, self.controller.fence, n))
        self.time.after(EVERY_NS, self.tick)

    def take(self, link: Link, frame: object) -> None:
        if not self.open:
            return
        if isinstance(frame, frames.Hello):
            self.greet(link, frame)
        elif link.peer in self.links:
            if isinstance(frame, frames.Pong):
                came_ns = self.time.now_ns
                if self.world.broken == "a hub counts from its ping":
                    came_ns = self.pinged[link.peer][frame.ping]
                self.received[link.peer] = (frame.n, came_ns)
            else:
                self.report(Received(link.peer, frame))  # type: ignore[arg-type]

    def greet(self, link: Link, hello: frames.Hello) -> None:
        if not self.controller.fresh:
            return
        for number, peer in list(self.peers.items()):
            if (peer.kind, peer.node, peer.job) == (hello.kind, hello.node, hello.job):
                self.drop(number, "replaced")
        link.peer = self.world.new_peer()
        peer = Peer(link.peer, hello.kind, hello.node, hello.job, "boot", "10.0.0.9", hello)
        self.links[link.peer], self.peers[link.peer] = link, peer
        self.received[link.peer] = (0, self.time.now_ns)
        self.acknowledged[link.peer] = self.time.now_ns
        self.pinged[link.peer] = {}
        self.report(Joined(peer))
        link.to_client(frames.Welcome(1, self.controller.fence, EVERY_NS, TIMING.deadline_ns))

    def lost(self, link: Link) -> None:
        if link.peer in self.links:
            self.drop(link.peer, "connection lost")

    def drop(self, peer: int, why: str) -> None:
        self.links.pop(peer).close()
        del self.peers[peer]
        self.report(Left(peer, why, on_purpose=False))

    def report(self, event: Joined | Left | Received) -> None:
        self.events.append(event)
        self.controller.wake()

    # what the core asks

    def offset(self, peer: int) -> ClockOffset | None:
        return ClockOffset(0, MS) if peer in self.links else None

    def acknowledged_ns(self, peer: int) -> int:
        return self.acknowledged.get(peer, 0)

    def box_token(self, node: str, job: str) -> str:
        return f"{node}|{job}"


class SimController:
    """A loop with a small policy: run each job again until it succeeds. A new one begins from the log alone."""

    def __init__(self, world: World, fence: int) -> None:
        self.world, self.time, self.fence = world, world.time, fence
        self.log = world.log
        self.running, self.stuck_ns, self.asleep = True, 0, False
        self.renews = True
        self.renewed_ns = self.time.now_ns
        self.log.fence = fence
        self.renew()
        self.hub = SimHub(world, self)
        self.core = HostsCore(self.hub, FLEET, self.time.now_ns - 5 * S, fence, TIMING, _orders)
        self.silent: set[tuple[str, int, int]] = set()
        self.adopt()
        self.wake()

    @property
    def fresh(self) -> bool:
        """Whether less than half of the store's lease is over."""
        return self.time.now_ns < self.renewed_ns + TOKEN_NS // 2

    def renew(self) -> None:
        if self.running and self.renews and self.log.fence == self.fence:
            self.renewed_ns, self.log.held_until_ns = self.time.now_ns, self.time.now_ns + TOKEN_NS
            self.time.after(S, self.renew)

    def adopt(self) -> None:
        live = [attempts[-1] for attempts in self.log.jobs.values() if attempts and not attempts[-1].over]
        now_ns = self.time.now_ns
        since_ns = (
            now_ns - 5 * S if self.world.broken == "a new controller counts from before its start" else now_ns
        )
        self.core.adopt([LiveAttempt(a.command, tuple(map(len, a.marks)), a.ended) for a in live], since_ns)
        self.core.keep([job for job in JOBS if job not in self.log.finished])
        for attempt in live:
            if attempt.stopped:
                self.core.stop(_stop_of(attempt), now_ns)
            else:
                self.core.start(attempt.command, now_ns)

    def wake(self) -> None:
        if self.running and not self.asleep:
            self.asleep = True
            self.time.after(max(self.time.some_ns(0, 30 * MS), self.stuck_ns - self.time.now_ns), self.step)

    def step(self) -> None:
        self.asleep = False
        if not self.running:
            return
        now_ns = self.time.now_ns
        events, self.hub.events = self.hub.events, []
        for event in events:
            if isinstance(event, Joined):
                self.core.joined(event, now_ns)
            elif isinstance(event, Left):
                self.core.left(event, now_ns)
            else:
                self.core.received(event, now_ns)
        self.core.advance(now_ns)
        seen, self.core.out.seen = self.core.out.seen, []
        for one in seen if self.log.fence == self.fence else ():  # else the store refuses to write
            if isinstance(one, RankMarks):
                self.write(one)
            elif isinstance(one, Silent):
                self.hear(one)
        if self.log.fence == self.fence:
            self.decide(now_ns)
        queued, self.core.out.queued = self.core.out.queued, []
        for peer, frame in queued:
            if (link := self.hub.links.get(peer)) is not None:
                link.to_client(frame)
        next_ns = self.core.next_ns
        self.time.after((next_ns or now_ns + S) - now_ns, self.wake)

    def write(self, seen: RankMarks) -> None:
        attempt = self.log.jobs[seen.job][seen.attempt - 1]
        known = attempt.marks[seen.rank]
        if seen.first != len(known) or attempt.over or attempt.ended[seen.rank]:
            raise Violation(f"marks from {seen.first} of {seen} where the log has {known}")
        known.extend(seen.marks)
        if attempt.ended[seen.rank]:
            self.silent.discard((seen.job, seen.attempt, seen.rank))
        self.world.check_marks(seen)

    def hear(self, seen: Silent) -> None:
        for rank in seen.ranks:
            key = (seen.job, seen.attempt, rank)
            if (key in self.silent) == bool(seen.since_ns):
                raise Violation(f"{seen} where that was known")
            (self.silent.add if seen.since_ns else self.silent.discard)(key)

    def decide(self, now_ns: int) -> None:
        for job, attempts in self.log.jobs.items():
            last = attempts[-1] if attempts else None
            if last is not None and not last.over:
                failed = any(
                    e and (m[-1].k == "lost" or m[-1].code)
                    for e, m in zip(last.ended, last.marks, strict=True)
                )
                if failed and not last.stopped:
                    last.stopped = True
                    self.core.stop(_stop_of(last), now_ns)
                if all(last.ended):
                    last.over = True
                    self.core.release(job, last.command.attempt, now_ns)
                    if not failed:
                        self.log.finished.add(job)
                        self.core.finish(job)
            elif job not in self.log.finished:
                command = self.world.command(job, len(attempts) + 1)
                attempts.append(LoggedAttempt(command, [[] for _ in command.places]))
                self.core.start(command, now_ns)

    def die(self) -> None:
        self.running = self.hub.open = False
        for link in list(self.hub.links.values()):
            (link.close if self.time.chance.random() < 0.7 else link.cut)()


def _orders(command: StartGang, port: int, hosts: object) -> list[frames.RankOrders]:
    return [frames.RankOrders(place.rank, {"port": port}, place.rank == 0) for place in command.places]


def _stop_of(attempt: LoggedAttempt) -> StopGang:
    return StopGang(attempt.command.job, attempt.command.attempt, len(attempt.command.places), S)
