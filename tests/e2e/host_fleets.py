"""A store, its controller and hosts, as a user starts them: by default all on the loopback address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.commands import UNIDLE
from e2e.gangs import view_of
from unidle.agent.boxes import LOCK
from unidle.drill.lab import Lab
from unidle.engine.local.ranks.rundir import is_held
from unidle.view.jobs import JobView
from unidle.view.state import View
from waiting import wait_until

HOSTS = ("n1", "n2")


class Fleet:
    """A store, its controller, and hosts with one CPU device each. ``file``: a fleet file for the controller.

    ``lab``: hosts, and the controller (``hub``), are in its network namespaces. ``code``: which of these run another
    release, whose sources are below that path.
    """

    def __init__(
        self, place: Path, stack: ExitStack, hosts: tuple[str, ...] = HOSTS, file: Path | None = None, lab: Lab | None = None,
        code: Mapping[str, Path] | None = None,
    ) -> None:  # fmt: skip
        self.place, self.store, self._stack = place, place / "fleet.db", stack
        self.hosts, self._file, self._lab = hosts, file, lab
        self.code = dict(code or {})
        self.address = "127.0.0.1" if lab is None else lab.address("hub")  # of the next controller
        self.port = 0
        self.env: dict[str, dict[str, str]] = {}  # variables of what is started, by node
        self.up: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self.close)

    def _start(self, node: str, *words: object) -> subprocess.Popen[bytes]:
        inside = [] if self._lab is None else ["nsenter", f"--net=/run/netns/{self._lab.space(node)}"]
        errors = self._stack.enter_context((self.place / f"{node}.err").open("ab"))
        return subprocess.Popen(
            [*inside, *UNIDLE, *map(str, words)], stdout=subprocess.DEVNULL, stderr=errors,
            env=self.release(node) | self.env.get(node, {}),
        )  # fmt: skip

    def release(self, node: str) -> dict[str, str]:
        """The environment in which commands are those of the release of a host, or of the controller."""
        return os.environ | ({"PYTHONPATH": str(self.code[node])} if node in self.code else {})

    def serve(self, *more: object) -> None:
        """Start the controller; a later one listens where the first did."""
        reader = Path(f"{self.store}.d/hub/reader")
        reader.unlink(missing_ok=True)
        file = () if self._file is None else ("--fleet", self._file)
        where = f"{self.address}:{self.port}"
        self.up = self._start(
            "hub", "up", "--store", self.store, "--listen", where, "--progress", "off", *file, *more
        )
        wait_until(reader.exists, 60)
        self.port = json.loads(reader.read_text())["addresses"][0][1]

    def join(self, node: str, *more: object) -> None:
        """Start the agent of a host. It does not look at the kernel log of this machine, in which other tests leave faults."""
        words = ("--join", f"{self.address}:{self.port}", "--token-file", f"{self.store}.d/hub/join")
        own = ("--node", node, "--state", self.place / node, "--cpu-devices", 1)
        quiet = (
            () if node in self.code else ("--kernel-log", "off")
        )  # the first release of hosts has no such option
        self.agents[node] = self._start(node, "agent", *words, *own, *quiet, *more)

    def joined(self) -> None:
        wait_until(lambda: {node.id for node in self.view().fleet.nodes} == set(self.hosts), 60)

    def view(self) -> View:
        return view_of(self.store)

    def job(self, job: str) -> JobView | None:
        """None until the controller has taken it in."""
        return self.view().jobs.get(job)

    def boxes(self) -> list[int]:
        """Processes of boxes that run."""
        locks = self.place.glob(f"n*/boxes/*/{LOCK}")
        return [int(lock.read_text()) for lock in locks if is_held(lock)]

    def close(self) -> None:
        for process in (*self.agents.values(), self.up):
            if process is not None:
                process.terminate()
        for process in (*self.agents.values(), self.up):
            if process is not None:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for pid in self.boxes():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not self.boxes(), 60)


@contextmanager
def opened(
    place: Path,
    hosts: tuple[str, ...] = HOSTS,
    *more: object,
    file: Path | None = None,
    lab: Lab | None = None,
    serve: tuple[str, ...] = (),
    code: Mapping[str, Path] | None = None,
    env: dict[str, dict[str, str]] | None = None,
) -> Iterator[Fleet]:
    """``more``: options of the agents; ``serve``: those of the controller; ``code``: as of :class:`Fleet`; ``env``: variables of each node's agent."""
    with ExitStack() as stack:
        fleet = Fleet(place, stack, hosts, file, lab, code)
        fleet.env = env or {}
        fleet.serve(*serve)
        for node in hosts:
            fleet.join(node, *more)
        fleet.joined()
        yield fleet
