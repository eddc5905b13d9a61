"""A controller and hosts out of network namespaces, as users start them, with small gangs whose ranks keep their own record."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.commands import unidle
from e2e.gangs import view_of
from host_faults import rank as ranks
from host_faults.warm_hosts import SPACE, WarmHosts
from unidle.agent.boxes import LOCK
from unidle.drill.lab import Lab
from unidle.engine.local.ranks.rundir import is_held
from unidle.view.jobs import JobView
from unidle.view.state import View
from waiting import wait_until

HOSTS: Final = ("n1", "n2", "n3")
PORT: Final = 7411
DEADLINE_S: Final = 10
WITHIN_S: Final = 150.0  # for what happens within seconds on a machine that has nothing else to do
MARK: Final = "HOST_FAULTS_RUN"  # in the environment of every process of a rig
RANK: Final = Path(ranks.__file__)


class Rig:
    """The processes. ``place``: of the store, what hosts keep, and what ranks note; ``prefix``: words before each command
    that is started, by node (``hub`` is the controller); ``warm``: where controllers and agents come from, where it is set."""

    def __init__(self, place: Path, stack: ExitStack, deadline_s: int = DEADLINE_S) -> None:
        self.place, self.store, self._stack = place, place / "fleet.db", stack
        self.deadline_s = deadline_s
        self.run = secrets.token_hex(8)
        self.lab = Lab(["hub", *HOSTS], f"hf{os.getpid() % 10**6}")
        stack.callback(self.lab.close)
        stack.callback(lambda: self.warm and self.warm.close())
        stack.callback(self.kill_all)
        (place / "alive").mkdir(parents=True)
        self.controllers: list[subprocess.Popen[bytes]] = []
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.submitted: list[str] = []
        self._joins: dict[str, int] = {}
        self.prefix: dict[str, list[str]] = {}
        self.env: dict[str, dict[str, str]] = {}
        self.warm: WarmHosts | None = None
        self.port, self.listens_at = PORT, self.lab.address("hub")  # of the next controller
        self.proxy: Any = None  # between hosts and controllers, where there is one
        self.join_address, self.join_file = f"{self.lab.address('hub')}:{PORT}", self.state / "hub" / "join"

    @property
    def state(self) -> Path:
        return Path(f"{self.store}.d")

    # -- processes -------------------------------------------------------------------------------

    def start(
        self, node: str, *words: object, command: Sequence[str] = (sys.executable, "-m", "unidle")
    ) -> subprocess.Popen[bytes]:
        """A command in the network of a node; what it prints goes to ``NODE.err``."""
        if self.warm is not None:
            return self._start_warm(self.warm, node, list(map(str, words)))
        given = [*self.prefix.get(node, ()), *(command if node not in self.prefix else ()), *map(str, words)]
        with (self.place / f"{node}.err").open("ab") as errors:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.lab.space(node)}", *given], stdin=subprocess.DEVNULL,
                stdout=errors, stderr=errors, env={**os.environ, MARK: self.run, **self.env.get(node, {})},
                cwd=self.place, start_new_session=True,
            )  # fmt: skip

    def _start_warm(self, warm: WarmHosts, node: str, words: list[str]) -> subprocess.Popen[bytes]:
        env = {SPACE: f"/run/netns/{self.lab.space(node)}", MARK: self.run, **self.env.get(node, {})}
        with (self.place / f"{node}.err").open("ab") as errors:
            return warm.start(
                words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env={**os.environ, **env},
                cwd=self.place, start_new_session=True,
            )  # fmt: skip

    def serve(self, *more: object, wait: bool = True) -> subprocess.Popen[bytes]:
        """Start a controller; it has the store and listens when this returns, unless ``wait`` is false."""
        if wait:
            (self.state / "hub" / "reader").unlink(missing_ok=True)
        process = self.start(
            "hub", "up", "--store", self.store, "--listen", f"{self.listens_at}:{self.port}", "--deadline",
            f"{self.deadline_s}s", "--progress", "off", *more,
        )  # fmt: skip
        self.controllers.append(process)
        if wait:
            wait_until(lambda: self.listens() or process.poll() is not None, WITHIN_S, "the controller")
            assert process.poll() is None, self.errors("hub")
        return process

    def take_over(self) -> None:
        """Start controllers until one of them has the store, as an init system does."""

        def taken() -> bool:
            process = self.serve(wait=False)
            wait_until(lambda: self.listens() or process.poll() is not None, WITHIN_S, "the controller")
            if process.poll() is not None:
                self.controllers.remove(process)
            return process.poll() is None

        (self.state / "hub" / "reader").unlink(missing_ok=True)
        self.until(taken, "a controller that has the store")

    @property
    def controller(self) -> subprocess.Popen[bytes]:
        return self.controllers[-1]

    def join(self, node: str) -> None:
        """Start the agent of a host. It does not look at the kernel log of this machine, in which other tests leave faults."""
        self._joins[node] = self._welcomes(node)
        self.agents[node] = self.start(
            node, "agent", "--join", self.join_address, "--token-file", self.join_file, "--node", node,
            "--state", self.place / node, "--cpu-devices", 1, "--kernel-log", "off",
        )  # fmt: skip

    def joined(self, nodes: Sequence[str] = HOSTS) -> None:
        """Wait until the agents of these hosts are there."""

        self.until(lambda: all(map(self.has_joined, nodes)), f"{', '.join(nodes)} to join")

    def has_joined(self, node: str) -> bool:
        """Whether the agent of a host that was started last was welcomed, and its node takes jobs."""
        if not self.was_welcomed(node):
            return False
        found = {one.id: one for one in self.view().fleet.nodes}
        return node in found and not found[node].taints

    def was_welcomed(self, node: str) -> bool:
        """Whether the agent of a host that was started last has joined."""
        return self._welcomes(node) > self._joins.get(node, 0)

    def _welcomes(self, node: str) -> int:
        path = self.place / f"{node}.err"
        return path.read_text(errors="replace").count(f"{node} has joined") if path.exists() else 0

    def errors(self, node: str) -> str:
        path = self.place / f"{node}.err"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    # -- jobs ------------------------------------------------------------------------------------

    def submit(self, name: str, *options: str, count: int = 2, hold: bool = False, **fields: Any) -> str:
        """A gang that trains until :meth:`go`; its id. ``options``: of its ranks; ``fields``: of its job file."""
        file = self.place / f"{name}.json"
        command = [sys.executable, "-S", "-E", str(RANK), str(self.place), name, *options]
        job = {
            "name": name,
            "command": command,
            "ranks": count,
            "device": "cpu",
            "restart": {"max": 5, "backoff_s": 0.1},
        }
        file.write_text(json.dumps({**job, **fields}))
        done = unidle(
            "submit", file, "--store", self.store, "--json", *(["--hold"] if hold else []), timeout_s=WITHIN_S
        )
        assert done.returncode == 0, done.stderr
        self.submitted.append(str(json.loads(done.stdout)["job"]))
        return self.submitted[-1]

    def submit_held(self, name: str) -> str:
        """As :meth:`submit`, of a gang for which there are not enough hosts yet."""
        return self.submit(name, hold=True)

    def listens(self) -> bool:
        """Whether the controller has written all that hosts and readers need."""
        return (self.state / "hub" / "reader").exists()

    def steps(self, job: str) -> int:
        """How many steps the log has of the newest attempt."""
        found = self.job(job)
        return (
            sum(rank.step_n[-1] for rank in found.attempts[-1].ranks if rank.step_n)
            if found and found.attempts
            else 0
        )

    def steps_on(self, node: str, job: str) -> int:
        """As :meth:`steps`, of the ranks on one node."""
        found = self.job(job)
        if found is None or not found.attempts:
            return 0
        last = found.attempts[-1]
        there = [rank for rank, place in zip(last.ranks, last.places, strict=True) if place.node == node]
        return sum(rank.step_n[-1] for rank in there if rank.step_n)

    def go(self, name: str) -> None:
        """The ranks of the job may end."""
        (self.place / f"go-{name}").touch()

    def view(self) -> View:
        return view_of(self.store)

    def job(self, job: str) -> JobView | None:
        return self.view().jobs.get(job)

    def until(self, holds: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
        """Wait for a condition. Errors: AssertionError with what the processes printed."""
        try:
            return wait_until(holds, within_s, what)
        except AssertionError as error:
            shown = "\n".join(f"{node}: {self.errors(node)}" for node in ("hub", *HOSTS))
            for words in (("explain", *self.submitted[-1:]), ("guard", "nodes")):
                shown += unidle(*words, "--store", self.store, timeout_s=WITHIN_S).stdout
            raise AssertionError(f"{error}\n{shown}") from None

    def trains(self, job: str, attempt: int = 1) -> JobView:
        """The job, once all ranks of an attempt (or of a later one) make steps."""

        def holds() -> JobView | None:
            found = self.job(job)
            if found is None or len(found.attempts) < attempt:
                return None
            last = found.attempts[-1]
            return found if last.ranks and all(len(rank.step_n) > 0 for rank in last.ranks) else None

        return self.until(holds, f"attempt {attempt} of {job} to train")  # type: ignore[no-any-return]

    def ended(self, job: str) -> JobView:
        """The job, once it has ended."""
        return self.until(  # type: ignore[no-any-return]
            lambda: found if (found := self.job(job)) is not None and found.terminal else None,
            f"{job} to end",
        )

    def node_of(self, job: str, rank: int = 0) -> str:
        found = self.job(job)
        assert found is not None and found.attempts
        return found.attempts[-1].places[rank].node

    def box_pid(self, node: str, job: str) -> int | None:
        """The process of the box of a job, where one runs."""
        lock = self.place / node / "boxes" / job / LOCK
        with contextlib.suppress(OSError, ValueError):
            return int(lock.read_text()) if is_held(lock) else None
        return None

    # -- the end ---------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """All processes of this rig that live, and their command lines."""
        found = {}
        mark = f"{MARK}={self.run}".encode()
        ours = {os.getpid(), self.warm.pid if self.warm is not None else None}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in ours:
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found[int(entry.name)] = words
        return found

    def left(self) -> list[str]:
        """Stop agents and controllers, and list the processes that then are still there. All jobs have ended before."""
        with contextlib.suppress(
            AssertionError
        ):  # boxes end by themselves, once they have heard that their job is over
            wait_until(lambda: not self._boxes_of_served(), 60)
        for process in (*self.agents.values(), *self.controllers):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (*self.agents.values(), *self.controllers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        return list(self.processes().values())

    def _boxes_of_served(self) -> list[Path]:
        """As :meth:`boxes`; a controller that was killed after the last job is followed by another, which ends its boxes."""
        if self.controller.poll() is not None:
            self.serve()
        return self.boxes()

    def boxes(self) -> list[Path]:
        """Directories of boxes that run."""
        return [lock.parent for lock in self.place.glob(f"n*/boxes/*/{LOCK}") if is_held(lock)]

    def kill(self, node: str) -> None:
        """What a host loses when it loses power: every process in its network namespace."""
        space = Path(f"/run/netns/{self.lab.space(node)}").stat().st_ino
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/net").stat().st_ino == space:
                    os.kill(pid, signal.SIGKILL)

    def kill_pid(self, pid: int) -> None:
        """SIGKILL, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in self.processes(), 60, f"the end of {pid}")

    def kill_agent(self, node: str) -> None:
        self.agents[node].kill()
        self.agents[node].wait()

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()

    def record(self, file: str, job: str) -> list[dict[str, Any]]:
        """What ranks of a job noted (``starts``, ``stops``), the newest attempt only."""
        found = ranks.lines(str(self.place), file, job)
        newest = max((int(one["attempt"]) for one in found), default=0)
        return [one for one in found if int(one["attempt"]) == newest]

    def kill_all(self) -> None:
        """Whatever happened, nothing of this rig stays."""
        for _ in range(20):
            found = self.processes()
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                break
        for process in (*self.agents.values(), *self.controllers):
            process.wait(60)


@contextmanager
def rig_of(place: Path, deadline_s: int = DEADLINE_S, hosts: Sequence[str] = HOSTS) -> Iterator[Rig]:
    """A controller that listens, with these hosts joined."""
    with ExitStack() as stack:
        rig = Rig(place, stack, deadline_s)
        rig.serve()
        for node in hosts:
            rig.join(node)
        rig.joined(hosts)
        yield rig
