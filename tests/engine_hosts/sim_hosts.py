"""Boxes and agents as the protocol wants them, on hosts whose clocks drift; their disks outlive them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from engine_hosts.sim_network import MS, TIMING, Link
from unidle import wire
from unidle.engine.hosts.timing import S
from unidle.events.marks import Mark
from unidle.fleet import Device, Node
from unidle.hub import frames

if TYPE_CHECKING:
    from engine_hosts.fencing_model import World


@dataclass
class Journal:
    """A rank's directory."""

    marks: list[Mark] = field(default_factory=list)
    begun: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.marks) and self.marks[-1].k in ("exit", "lost")


@dataclass
class AttemptDisk:
    prepared: bool = False
    port: int = 0
    holder: object = None  # the box that holds the bound port
    ranks: dict[int, Journal] = field(default_factory=dict)


@dataclass
class HostFiles:
    """Of a job on a host: attempts, the lease and the newest fence. Ranks run on when their box is killed, within that lease."""

    attempts: dict[int, AttemptDisk] = field(default_factory=dict)
    running: dict[tuple[int, int], Journal] = field(default_factory=dict)
    lease_ns: int = 0
    fence: int = 0


class Client:
    """What boxes and agents share: they dial until they are welcome."""

    kind = "agent"
    job = ""
    fence = 0

    def __init__(self, world: World, node: str) -> None:
        self.world, self.time, self.node = world, world.time, node
        self.alive = True
        self.link: Link | None = None
        self.welcome = False
        self.pongs = 0
        self.dial()

    def hello(self) -> frames.Hello:
        raise NotImplementedError

    def dial(self) -> None:
        """Dial any hub that there is, also one that is out of office."""
        if not self.alive or self.link is not None:
            return
        hub = self.world.some_hub(self.node)
        if hub is None:
            self.time.after(self.time.some_ns(100 * MS, S), self.dial)
            return
        self.link, self.welcome, self.pongs = self.world.connect(self, hub), False, 0
        link = self.link
        self.link.to_hub(self.hello())
        self.time.after(5 * S, lambda: None if self.welcome or self.link is not link else self.hang_up())

    def hang_up(self) -> None:
        if self.link is not None:
            self.link.close()
            self.forget(self.link)

    def lost(self, link: Link) -> None:
        if self.link is link:
            self.forget(link)

    def forget(self, link: Link) -> None:
        self.link, self.welcome = None, False
        self.time.after(self.time.some_ns(10 * MS, 500 * MS), self.dial)

    def take(self, link: Link, frame: object) -> None:
        if not self.alive or link is not self.link:
            return
        if isinstance(frame, frames.Welcome | frames.Ping):
            if frame.fence < self.fence:
                self.hang_up()
                return
            self.fence = frame.fence
            self.acknowledged(frame.ack)
            if isinstance(frame, frames.Welcome):
                self.welcome = True
            else:
                self.pongs += 1
                self.pong(frames.Pong(self.pongs, frame.n, 0))
            return
        if getattr(frame, "fence", self.fence) < self.fence:
            if hasattr(frame, "id"):
                self.link.to_hub(frames.Done(frame.id, ok=False, why=wire.FENCED))
            return
        self.carry_out(frame)

    def pong(self, frame: frames.Pong) -> None:
        if self.link is not None:
            self.link.to_hub(frame)

    def acknowledged(self, n: int) -> None:
        pass

    def carry_out(self, frame: object) -> None:
        raise NotImplementedError

    def done(self, frame: object, *, why: str = "", **data: object) -> None:
        if self.link is not None:
            self.link.to_hub(frames.Done(frame.id, ok=not why, why=why, data=data))  # type: ignore[attr-defined]

    def die(self) -> None:
        self.alive = False
        if self.link is not None:
            link, self.link = self.link, None
            if self.time.chance.random() < 0.5:
                link.close()
            else:
                link.cut()


class SimAgent(Client):
    def hello(self) -> frames.Hello:
        node = Node(
            self.node,
            "site",
            (Device(f"{self.node}/0", self.node, 0, "cpu"),),
            address=f"10.0.0.{self.node[1:]}",
        )
        held = frames.AgentHeld(msgspec.to_builtins(node))
        return frames.Hello(1, "agent", self.node, agent=held)

    def carry_out(self, frame: object) -> None:
        if isinstance(frame, frames.Box):
            self.world.box(self.node, frame.job)
            self.done(frame)


class SimBox(Client):
    """``rate_ppm`` is how much its clock is faster than real time."""

    kind = "box"

    def __init__(self, world: World, node: str, job: str) -> None:
        self.job = job
        self.files = world.files.setdefault((node, job), HostFiles())
        self.disk, self.running, self.fence = self.files.attempts, self.files.running, self.files.fence
        self.rate_ppm = world.rates[node]
        self.listened: set[tuple[int, int]] = set()  # whose marks are sent on this connection
        self.sent_ns: dict[int, int] = {}
        self.ending = False
        for number, attempt in self.disk.items():
            for rank, journal in attempt.ranks.items():
                if journal.begun and not journal.ended and (number, rank) not in self.running:
                    journal.marks.append(Mark("lost", world.time.now_ns, text="its supervisor is gone"))
        super().__init__(world, node)

    def clock_ns(self) -> int:
        now_ns = self.time.now_ns
        return now_ns + now_ns * self.rate_ppm // 1_000_000

    def hello(self) -> frames.Hello:
        self.sent_ns, self.listened = {0: self.clock_ns()}, set()
        held = [
            frames.AttemptHeld(
                number,
                {
                    str(rank): frames.RankHeld(len(one.marks), one.ended)
                    for rank, one in attempt.ranks.items()
                },
            )
            for number, attempt in self.disk.items()
        ]
        return frames.Hello(1, "box", self.node, job=self.job, now=self.clock_ns(), box=frames.BoxHeld(held))

    def take(self, link: Link, frame: object) -> None:
        if self.alive and link is self.link and not self.is_over():
            super().take(link, frame)

    def pong(self, frame: frames.Pong) -> None:
        self.sent_ns[frame.n] = self.clock_ns()
        super().pong(frame)

    def acknowledged(self, n: int) -> None:
        files = self.files
        files.fence = self.fence
        if self.world.broken == "a box counts from what it receives":
            files.lease_ns = self.clock_ns() + TIMING.deadline_ns
        elif n in self.sent_ns:
            files.lease_ns = max(files.lease_ns, self.sent_ns[n] + TIMING.deadline_ns)
        self.look_at_lease()

    def look_at_lease(self) -> None:
        left_ns = self.files.lease_ns - self.clock_ns()
        lease_ns, late_ns = self.files.lease_ns, self.time.some_ns(0, 40 * MS)
        real_ns = left_ns * 1_000_000 // (1_000_000 + self.rate_ppm)
        self.time.after(
            real_ns + 1 + late_ns, lambda: self.is_over() if self.files.lease_ns == lease_ns else None
        )

    def is_over(self) -> bool:
        """Whether the lease is over: the ranks are ended then, before anything else, by the box or their supervisors."""
        if not self.files.lease_ns or self.clock_ns() < self.files.lease_ns:
            return False
        if self.world.broken == "a box ignores its lease":
            return False
        self.files.lease_ns = 0
        for key in list(self.running):
            self.end(key, Mark("exit", self.time.now_ns, code=-9))
        if self.alive:
            self.hang_up()
        return True

    # -- ranks -----------------------------------------------------------------------------------

    def end(self, key: tuple[int, int], mark: Mark) -> None:
        if (journal := self.running.pop(key, None)) is not None:
            self.world.ended(self.job, *key)
            self.write(key, journal, mark)

    def write(self, key: tuple[int, int], journal: Journal, mark: Mark) -> None:
        journal.marks.append(mark)
        box = self.world.boxes.get((self.node, self.job), self)  # another one, if this one was killed
        if box.alive and key in box.listened:
            box.send(key, journal, len(journal.marks) - 1)

    def send(self, key: tuple[int, int], journal: Journal, first: int) -> None:
        if self.link is not None and self.welcome:
            first = max(0, first - (self.time.chance.random() < 0.1))  # one more than is needed
            lines = tuple(msgspec.Raw(msgspec.json.encode(mark)) for mark in journal.marks[first:])
            self.link.to_hub(frames.Marks(*key, first, lines))

    def work(self, key: tuple[int, int], step: int = 1) -> None:
        """A rank makes steps, and fails or succeeds."""
        journal, chance = self.running.get(key), self.time.chance
        if journal is None:
            return
        if step > (80 if self.world.faulty else 8):
            self.end(key, Mark("exit", self.time.now_ns, code=0))
        elif chance.random() < (0.01 if self.world.faulty else 0.0):
            self.end(key, Mark("exit", self.time.now_ns, code=1))
        else:
            self.write(key, journal, Mark("step", self.time.now_ns, n=step))
            self.time.after(self.time.some_ns(100 * MS, 900 * MS), lambda: self.work(key, step + 1))

    # -- commands --------------------------------------------------------------------------------

    def carry_out(self, frame: object) -> None:
        if not self.welcome:
            return
        if isinstance(frame, frames.Resume):
            self.resume(frame)
        elif isinstance(frame, frames.Prepare):
            self.prepare(frame)
        elif isinstance(frame, frames.Start):
            self.start(frame)
        elif isinstance(frame, frames.Stop):
            self.stop(frame)
        elif isinstance(frame, frames.Release):
            lives = any(key[0] == frame.attempt for key in self.running)
            if not lives:
                self.disk.pop(frame.attempt, None)
            self.done(frame, why="ranks of it have not ended" if lives else "")
        elif isinstance(frame, frames.End):
            self.ending = True
            if not self.running:
                self.die()

    def resume(self, frame: frames.Resume) -> None:
        attempt = self.disk.get(frame.attempt)
        for rank, known in frame.known.items():
            if attempt is not None and int(rank) in attempt.ranks:
                key, journal = (frame.attempt, int(rank)), attempt.ranks[int(rank)]
                self.listened.add(key)
                if len(journal.marks) > known:
                    self.send(key, journal, known)

    def prepare(self, frame: frames.Prepare) -> None:
        attempt = self.disk.setdefault(frame.attempt, AttemptDisk())
        attempt.prepared = True
        if not frame.leader:
            self.done(frame)
            return
        rank_0 = attempt.ranks.get(0)
        if attempt.port and attempt.holder is not self and not (rank_0 is not None and rank_0.begun):
            self.done(frame, why="the port was lost with the last box")
            return
        attempt.port = attempt.port or self.world.new_port()
        attempt.holder = self
        self.done(frame, port=attempt.port)

    def start(self, frame: frames.Start) -> None:
        attempt = self.disk.setdefault(frame.attempt, AttemptDisk())
        for one in frame.ranks:
            key, journal = (frame.attempt, one.rank), attempt.ranks.setdefault(one.rank, Journal())
            self.listened.add(key)
            if journal.begun or journal.ended:
                continue
            journal.begun = True
            self.running[key] = journal
            self.world.started(self.job, *key, self.node, one.orders["port"])
            self.write(key, journal, Mark("spawn", self.time.now_ns, pid=1, ticks=1))
            self.time.after(self.time.some_ns(0, 300 * MS), lambda key=key: self.work(key))  # type: ignore[misc]
        self.done(frame)

    def stop(self, frame: frames.Stop) -> None:
        attempt = self.disk.setdefault(frame.attempt, AttemptDisk())
        for rank in frame.ranks:
            key, journal = (frame.attempt, rank), attempt.ranks.setdefault(rank, Journal())
            self.listened.add(key)
            if key in self.running:
                self.time.after(
                    self.time.some_ns(0, frame.grace_ns),
                    lambda key=key: self.end(key, Mark("exit", self.time.now_ns, code=-15)),  # type: ignore[misc]
                )
            elif not journal.ended and not journal.begun:
                self.write(key, journal, Mark("lost", self.time.now_ns, text="stopped before it was started"))
        self.done(frame)

    def die(self) -> None:
        """As PID 1 of a container it takes its ranks with it, else they run on."""
        if self.time.chance.random() < 0.5:
            for key in list(self.running):
                self.running.pop(key)
                self.world.ended(self.job, *key)
        super().die()
