"""Engines whose ranks are processes: the local one, and boxes in network namespaces that dial a hub in another."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from engine_contract.rigs import FAILED, NODES, Behaviour, EngineRig, Followed, S, fleet_of
from unidle.clock import RealClock
from unidle.drill.lab import Lab
from unidle.engine.hosts.engine import HostsEngine
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.kube.engine import KubeEngine
from unidle.engine.local.engine import LocalEngine
from unidle.engine.local.ranks import netns, process_tree, rundir
from unidle.engine.protocol import Engine, StartGang
from unidle.hub.limits import HubLimits
from unidle.hub.server import HubServer, open_hub
from unidle.jobs import JobSpec
from waiting import wait_until

HubEngine = HostsEngine | KubeEngine
_SCRIPTS: dict[Behaviour, str] = {
    "finish": "sleep 0.1",
    "fail": f'[ "$RANK" = 1 ] && exit {FAILED}; exec sleep 300',
    "run": "exec sleep 300",
    "wakes": 'while [ "$RANK" = 0 ] || [ ! -e wake ]; do sleep 1; done; while :; do :; done',
    "stubborn": "trap '' TERM; while :; do sleep 0.02; done",
}


class ProcessRig(EngineRig):
    """Ranks are processes; each notes in a file that it began."""

    def spec(self, behaviour: Behaviour, ranks: int) -> JobSpec:
        script = f'echo "$UNIDLE_JOB $UNIDLE_ATTEMPT $RANK" >> {self.place}/begun; {_SCRIPTS[behaviour]}'
        return JobSpec(("sh", "-c", script), ranks=ranks, workdir=str(self.place), grace_s=0.2)

    def begun(self, command: StartGang, rank: int) -> int:
        note = self.place / "begun"
        lines = note.read_text().splitlines() if note.exists() else []
        return lines.count(f"{command.job} {command.attempt} {rank}")

    def pump(self) -> None:
        for seen in self.engine.poll():
            self.hand_over(seen)
        self.engine.wait(self.clock.now_ns() + S // 50)

    def root(self, node: str) -> Path:
        """The run root of the ranks of a node."""
        raise NotImplementedError

    def directory(self, command: StartGang, rank: int) -> str:
        return rundir.rank_dir(self.root(command.places[rank].node), command.job, command.attempt, rank)

    def pid(self, command: StartGang, rank: int) -> int:
        """The rank's own process, as its journal has it."""
        with open(f"{self.directory(command, rank)}/{rundir.JOURNAL}", encoding="utf-8") as file:
            mark = json.loads(file.readline())
        assert mark["k"] == "spawn"
        return int(mark["pid"])

    def runs(self, command: StartGang, rank: int) -> bool:
        return process_tree.is_live(self.pid(command, rank))

    warm_pythons = 1  # of a gang on both nodes

    def is_warm(self) -> bool:
        """Imports are over: it reads from the descriptor that its command line names."""
        waits = 0
        for pid in process_tree.with_environment(f"MINE={self.place}"):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            call = Path(f"/proc/{pid}/syscall").read_text().split()
            waits += b"_unidle_local" in words[2] and len(call) > 1 and int(call[1], 16) == int(words[4])
        return waits == self.warm_pythons

    def bounds(self, command: StartGang, rank: int) -> float | None:
        with open(f"{self.directory(command, rank)}/{rundir.ORDERS}", encoding="utf-8") as file:
            cpus: float | None = json.load(file)["cpus"]
        return cpus

    def held(self) -> list[str]:
        return sorted(path.name for path in self.place.glob(f"**/{rundir.SLICES}/*"))

    def kill(self, command: StartGang, rank: int) -> None:
        os.kill(self.pid(command, rank), signal.SIGKILL)

    def wake(self) -> None:
        (self.place / "wake").touch()

    def freeze(self, command: StartGang, rank: int, *, on: bool) -> None:
        os.kill(self.pid(command, rank), signal.SIGSTOP if on else signal.SIGCONT)


def supervisor_of(directory: str) -> int:
    """The pid of a rank's supervisor."""
    known = rundir.read_json(f"{directory}/{rundir.SUPERVISOR}") or {}
    pid = known["pid"]
    assert isinstance(pid, int)
    return pid


class LocalRig(ProcessRig):
    """The engine of this machine."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.before: list[LocalEngine] = []
        self.engine: LocalEngine = self.new_engine()

    def new_engine(self, *, ahead_ns: int = 0) -> LocalEngine:
        self.clock = RealClock(RealClock().now_ns() + ahead_ns)
        self.before.append(found := LocalEngine(self.place / "runs", fleet_of(), self.clock))
        return found

    def root(self, node: str) -> Path:
        return self.place / "runs"

    def stall(self, command: StartGang, rank: int, *, on: bool) -> None:
        os.kill(supervisor_of(self.directory(command, rank)), signal.SIGSTOP if on else signal.SIGCONT)

    def older_controller(self, gang: Followed, act: Callable[[Engine], None]) -> None:
        older = LocalEngine(self.place / "runs", fleet_of(), RealClock())
        older.adopt([gang.live()])
        act(older)
        older.poll()
        older.close()

    def close(self) -> None:
        for gang in self.followed:
            if not gang.is_over:
                self.stop(gang, 0)
                self.ends(gang)
        self.engine.close()


class HubRig(ProcessRig):
    """Each box knows two hubs and dials them in turn. The controller's is the first."""

    warm_pythons = 2
    timing: HostsTiming
    limits: HubLimits
    hub_host: str

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.fence = 0
        self.ports = [0, 0]

    def open(self) -> None:
        """The hub of the controller, once both have a port."""
        for which in (1, 0):
            self.hub = self.new_hub(which)
            if which:
                self.hub.close()

    def new_hub(self, which: int = 0, fence: int | None = None) -> HubServer:
        """A hub at the first or the second address."""
        self.fence += fence is None
        self.clock = RealClock()
        listen = f"{self.hub_host}:{self.ports[which]}"
        hub = self.within(
            lambda: open_hub(listen, str(self.place), self.clock, fence or self.fence, limits=self.limits)
        )
        self.ports[which] = hub.addresses[0][1]
        return hub

    def within(self, opened: Callable[[], HubServer]) -> HubServer:
        """Call where the controller is."""
        return opened()

    def engine_of(self, hub: HubServer, fence: int | None = None) -> HubEngine:
        raise NotImplementedError

    def new_engine(self, *, ahead_ns: int = 0) -> HubEngine:
        self.hub = self.new_hub()
        self.clock = RealClock(self.clock.now_ns() + ahead_ns)
        return self.engine_of(self.hub)

    def refusals(self) -> list[Callable[[], str]]:
        """Where the box of each node reports what it refuses."""
        raise NotImplementedError

    def older_controller(self, gang: Followed, act: Callable[[Engine], None]) -> None:
        """It has a hub of its own. Boxes are driven to it, while that of this controller is away for a moment."""
        self.until(lambda: len(self.engine._core.boxes.of_peer) == len(self.nodes), "both boxes to dial")
        refusals = self.refusals()
        self.engine.close()
        older = self.engine_of(self.new_hub(1, fence=self.fence - 1), self.fence - 1)
        older.adopt([gang.live()])
        act(older)

        def tried() -> bool:
            older.poll()  # what it takes for true is of no account: the store refuses what it writes
            return all("older fence" in read() for read in refusals)

        wait_until(tried, 60, "both boxes to refuse the older controller")
        older.close()
        self.engine = self.engine_of(self.new_hub())
        self.take_over(gang)


class HostsRig(HubRig):
    """Boxes on two hosts: network namespaces, as the hub has one."""

    timing = HostsTiming(deadline_ns=5 * S, silent_ns=3 * S // 2, start_within_ns=20 * S)
    limits = HubLimits(every_ns=S // 5, deadline_ns=timing.deadline_ns)

    def __init__(self, place: Path, lab: Lab) -> None:
        super().__init__(place)
        self.lab = lab
        self.boxes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.fleet = fleet_of({node: lab.address(node) for node in NODES})
        self.hub_host = lab.address("hub")
        self.open()
        self.engine: HostsEngine = self.engine_of(self.hub)

    def within(self, opened: Callable[[], HubServer]) -> HubServer:
        return netns.within(self.lab.space("hub"), opened)

    def engine_of(self, hub: HubServer, fence: int | None = None) -> HostsEngine:
        return HostsEngine(hub, self.fleet, self.clock, fence or self.fence, self.timing)

    def start_box(self, node: str, job: str) -> None:
        """As an agent does it."""
        box = self.boxes.get((node, job))
        if box is not None and box.poll() is None:
            return
        place = self.box(node, job)
        for directory in (place.parent.parent, place.parent, place):
            directory.mkdir(0o700, exist_ok=True)
        hubs = [[self.lab.address("hub"), port] for port in self.ports]
        token = self.hub.box_token(node, job)
        settings = {"hub": hubs, "authority": self.hub.authority, "token": token, "node": node, "job": job}
        (place / "box.json").write_text(json.dumps(settings))
        (place / "box.json").chmod(0o600)
        self.boxes[node, job] = self._begun(node, place / "box.err", "unidle.box", place)

    def _begun(self, node: str, errors: Path, *words: object) -> subprocess.Popen[bytes]:
        """A module of Python on a host."""
        command = [
            "nsenter",
            f"--net=/run/netns/{self.lab.space(node)}",
            sys.executable,
            "-P",
            "-m",
            *map(str, words),
        ]
        with open(errors, "ab") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)  # fmt: skip

    def look(self) -> None:
        """Agents, which find the boxes that run."""
        hub = f"{self.lab.address('hub')}:{self.ports[0]}"
        for node in NODES:
            place = self.place / node
            place.mkdir(0o700, exist_ok=True)
            words = (
                "--join",
                hub,
                "--token-file",
                self.place / "hub" / "join",
                "--node",
                node,
                "--state",
                place,
            )
            self.agents[node] = self._begun(
                node,
                place / "agent.err",
                "unidle",
                "agent",
                *words,
                "--cpu-devices",
                4,
                "--kernel-log",
                "off",
            )

    def box(self, node: str, job: str = "job") -> Path:
        """Where an agent has the box of a job."""
        return self.place / node / "boxes" / job

    def follow(self, command: StartGang) -> Followed:
        for place in command.places:
            self.start_box(place.node, command.job)
        return super().follow(command)

    def root(self, node: str) -> Path:
        return self.box(node) / "runs"

    def stall(self, command: StartGang, rank: int, *, on: bool) -> None:
        box = self.boxes[command.places[rank].node, command.job]
        box.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def cut(self, node: str, *, on: bool) -> None:
        (self.lab.cut if on else self.lab.mend)(node)

    def refusals(self) -> list[Callable[[], str]]:
        return [(self.box(node) / "box.err").read_text for node in NODES]

    def close(self) -> None:
        for node in NODES:
            self.lab.mend(node)
        for agent in self.agents.values():  # before the boxes, which they would start again
            agent.terminate()
            agent.wait(60)
        for box in self.boxes.values():
            box.send_signal(signal.SIGCONT)
            box.terminate()
        for gang in self.followed:
            if not gang.is_over:
                self.stop(gang, 0)
                self.ends(gang)
        for job in {gang.command.job for gang in self.followed}:
            self.engine.finish(job)
        for box in self.boxes.values():
            wait_until(lambda box=box: box.poll() is not None, 60, "the end of a box")  # type: ignore[misc]
        self.engine.close()


def make_lab() -> Lab:
    """Three hosts on one switch: two with boxes, and the controller's."""
    assert shutil.which("nsenter")
    return Lab(("hub", *NODES))
