"""The engine of hosts among controllers, boxes, agents and a network that fail: what must hold, whatever happens when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from engine_hosts.sim_hosts import AttemptDisk, SimAgent, SimBox
from engine_hosts.sim_network import EVERY_NS, MS, NODES, TIMING, Link, Time
from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import LiveAttempt, RankMarks, Silent, StartGang, StopGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset, Joined, Left, Peer, Received
from unidle.jobs import JobSpec, RankPlace

TOKEN_NS = 4 * S  # of the store: renewed each second, unused from half of it on
FAULTS_NS = 40 * S
CALM_NS = 90 * S  # in which every gang has to come to its end, once there are no more faults
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
        start_ns = self.time.now_ns
        if world.broken == "a new controller counts from before its start":
            start_ns -= 5 * S
        self.hub = SimHub(world, self)
        self.core = HostsCore(self.hub, FLEET, start_ns, fence, TIMING, _orders)
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
        self.core.adopt([LiveAttempt(a.command, tuple(map(len, a.marks)), a.ended) for a in live], now_ns)
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


class World:
    """Hosts, controllers and their log. ``broken`` names a rule that is broken on purpose."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.time, self.broken = Time(seed), broken
        self.faulty = True
        self.log = Log()
        self.disks: dict[tuple[str, str], dict[int, AttemptDisk]] = {}
        self.rates = {node: self.time.chance.choice((-900, -500, 0, 500, 900)) for node in NODES}
        self.links: list[Link] = []
        self.boxes: dict[tuple[str, str], SimBox] = {}
        self.agents: dict[str, SimAgent] = {}
        self.cut_off: dict[str, int] = {}
        self.controllers: list[SimController] = []
        self.alive: set[tuple[str, int, int]] = set()
        self.starts: Counter[tuple[str, int, int]] = Counter()
        self.ports: dict[tuple[str, int], int] = {}
        self._peers = self._ports = 0
        for node in NODES:
            self.agents[node] = SimAgent(self, node)
        self.controllers.append(SimController(self, 1))

    def run(self) -> None:
        """Faults for a while, then calm. Errors: Violation."""
        end_ns = self.time.now_ns + FAULTS_NS
        self.time.after(self.time.some_ns(0, 3 * S), self.fail)
        self.time.run_until(end_ns)
        self.faulty = False
        self.repair()
        self.time.run_until(end_ns + CALM_NS, self.is_over)
        if not self.is_over():
            raise Violation(f"not every gang came to its end: {self.describe()}")

    def is_over(self) -> bool:
        return set(JOBS) <= self.log.finished and not self.alive

    def describe(self) -> str:
        return "; ".join(
            f"{job} attempt {len(attempts)}: {[m[-1:] for m in attempts[-1].marks] if attempts else []}"
            for job, attempts in self.log.jobs.items()
        )

    # -- rules -----------------------------------------------------------------------------------

    def started(self, job: str, attempt: int, rank: int, node: str, port: int) -> None:
        key = (job, attempt, rank)
        self.starts[key] += 1
        if self.starts[key] > 1:
            raise Violation(f"{key} was started twice")
        if others := [other for other in self.alive if other[0] == job and other[1] != attempt]:
            raise Violation(f"{key} was started while {others} live")
        command = self.log.jobs[job][attempt - 1].command
        if self.ports.setdefault((job, attempt), port) != port:
            raise Violation(f"{key} was started with another port")
        for place in command.places:
            disk = self.disks.get((place.node, job), {}).get(attempt)
            if disk is None or not disk.prepared:
                raise Violation(f"{key} was started before {place.node} was prepared")
        self.alive.add(key)

    def ended(self, job: str, attempt: int, rank: int) -> None:
        self.alive.discard((job, attempt, rank))

    def check_marks(self, seen: RankMarks) -> None:
        """What is in the log is what the box has, but for the end of a rank that was taken for dead."""
        command = self.log.jobs[seen.job][seen.attempt - 1].command
        disk = self.disks.get((command.places[seen.rank].node, seen.job), {}).get(seen.attempt)
        journal = disk.ranks.get(seen.rank) if disk is not None else None
        for ordinal, mark in enumerate(seen.marks, seen.first):
            written = journal.marks[ordinal] if journal is not None and ordinal < len(journal.marks) else None
            if mark != written and mark.k != "lost":
                raise Violation(f"mark {ordinal} of {seen} is {written} in the journal")
            if mark.k == "lost" and (seen.job, seen.attempt, seen.rank) in self.alive:
                raise Violation(f"{seen} is lost while it lives")

    # -- what there is ---------------------------------------------------------------------------

    def command(self, job: str, attempt: int) -> StartGang:
        chosen = self.time.chance.sample(NODES, 2)
        ranks = [chosen[0], chosen[1], chosen[self.time.chance.randrange(2)]]
        places = tuple(RankPlace(rank, node, (f"{node}/0",)) for rank, node in enumerate(ranks))
        return StartGang(job, attempt, JobSpec(("train",), ranks=3), places)

    def box(self, node: str, job: str) -> None:
        """An agent starts the box of a job, or finds that it runs."""
        box = self.boxes.get((node, job))
        if box is None or not box.alive:
            self.boxes[node, job] = SimBox(self, node, job)

    def some_hub(self, node: str) -> SimHub | None:
        hubs = [one.hub for one in self.controllers if one.running]
        return (
            self.time.chance.choice(hubs) if hubs and self.time.now_ns >= self.cut_off.get(node, 0) else None
        )

    def connect(self, client: Any, hub: SimHub) -> Link:
        link = Link(self.time, client, hub)
        self.links = [one for one in self.links if not one.dead] + [link]
        return link

    def new_peer(self) -> int:
        self._peers += 1
        return self._peers

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    # -- faults ----------------------------------------------------------------------------------

    def fail(self) -> None:
        if not self.faulty:
            return
        faults = (
            self.cut_link, self.stall_link, self.stall_link, self.cut_node, self.cut_node, self.kill_box, self.kill_agent,
            self.kill_controller, self.part_controller, self.stick_controller,
        )  # fmt: skip
        self.time.chance.choice(faults)()
        self.time.after(self.time.some_ns(100 * MS, 6 * S), self.fail)

    def cut_link(self) -> None:
        if self.links:
            self.time.chance.choice(self.links).cut()

    def stall_link(self) -> None:
        if self.links:
            self.time.chance.choice(self.links).stalled_ns = self.time.now_ns + self.time.some_ns(0, 10 * S)

    def cut_node(self) -> None:
        """The cable of a host: connections stall or die, and no new one is made until it is back."""
        node, until_ns = self.time.chance.choice(NODES), self.time.now_ns + self.time.some_ns(S, 15 * S)
        self.cut_off[node] = until_ns
        for link in self.links:
            if link.client.node == node:
                if self.time.chance.random() < 0.5:
                    link.stalled_ns = until_ns
                else:
                    link.cut()

    def kill_box(self) -> None:
        if living := [box for box in self.boxes.values() if box.alive]:
            self.time.chance.choice(living).die()

    def kill_agent(self) -> None:
        node = self.time.chance.choice(NODES)
        if self.agents[node].alive:
            self.agents[node].die()
            self.time.after(self.time.some_ns(100 * MS, 5 * S), lambda: self.new_agent(node))

    def new_agent(self, node: str) -> None:
        if not self.agents[node].alive:
            self.agents[node] = SimAgent(self, node)

    def kill_controller(self) -> None:
        self.controllers[-1].die()
        self.succeed()

    def part_controller(self) -> None:
        """The controller loses the store, and does not notice: two of them run from when another has taken over."""
        self.controllers[-1].renews = False
        self.succeed()
        parted = self.controllers[-1]
        self.time.after(self.time.some_ns(5 * S, 20 * S), parted.die)

    def succeed(self) -> None:
        """The next controller begins once the store's lease is over."""
        last = self.controllers[-1]

        def begin() -> None:
            if self.controllers[-1] is last:
                self.controllers.append(SimController(self, last.fence + 1))

        wait_ns = max(0, self.log.held_until_ns - self.time.now_ns)
        self.time.after(wait_ns + self.time.some_ns(1, 2 * S), begin)

    def stick_controller(self) -> None:
        """Its disk is slow: the loop waits, while its hub goes on."""
        self.controllers[-1].stuck_ns = self.time.now_ns + self.time.some_ns(0, 8 * S)

    def repair(self) -> None:
        self.cut_off.clear()
        for link in self.links:
            link.stalled_ns = min(link.stalled_ns, self.time.now_ns)
        for node in NODES:
            self.new_agent(node)
