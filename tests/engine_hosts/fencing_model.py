"""The engine of hosts among controllers, boxes, agents and a network that fail: what must hold, whatever happens when."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine_hosts.sim_controller import JOBS, Log, SimController, SimHub, Violation
from engine_hosts.sim_hosts import HostFiles, SimAgent, SimBox
from engine_hosts.sim_network import MS, NODES, Link, Time
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import RankMarks, StartGang
from unidle.jobs import JobSpec, RankPlace

FAULTS_NS = 40 * S
CALM_NS = 90 * S  # in which every gang has to come to its end, once there are no more faults


class World:
    """Hosts, controllers and their log. ``broken`` names a rule that is broken on purpose."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.time, self.broken = Time(seed), broken
        self.faulty = True
        self.log = Log()
        self.files: dict[tuple[str, str], HostFiles] = {}
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
            disk = self.files.get((place.node, job), HostFiles()).attempts.get(attempt)
            if disk is None or not disk.prepared:
                raise Violation(f"{key} was started before {place.node} was prepared")
        self.alive.add(key)

    def ended(self, job: str, attempt: int, rank: int) -> None:
        self.alive.discard((job, attempt, rank))

    def check_marks(self, seen: RankMarks) -> None:
        """What is in the log is what the box has, but for the end of a rank that was taken for dead."""
        command = self.log.jobs[seen.job][seen.attempt - 1].command
        files = self.files.get((command.places[seen.rank].node, seen.job), HostFiles())
        disk = files.attempts.get(seen.attempt)
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
