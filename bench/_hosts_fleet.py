"""For ``bench/hosts.py``: a controller and hosts as network namespaces, and a controller of the local engine next to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from _process import UNIDLE, environment
from unidle.agent.boxes import LOCK
from unidle.api.jobs import submit
from unidle.clock import boottime_ns
from unidle.control.inbox import CancelRequest
from unidle.drill.lab import Lab
from unidle.engine.local.ranks.rundir import is_held
from unidle.errors import UnidleError
from unidle.events import types as ev
from unidle.store.open import open_store
from unidle.store.protocol import Store as StoreProtocol
from unidle.store.protocol import StoredEvent
from unidle.view.snapshot import load_view
from unidle.view.state import View

RANK = Path(__file__).with_name("jobs") / "boot_times.py"
PATTERN = r"step (?P<step>\d+)/"
PORT = 7411
DEADLINE_S = 10
POLL_S = 0.002  # for what is a time of its own
LOOK_S = 0.05
LIMIT_S = 90.0
T = TypeVar("T")


class Store:
    """A store with its controller, and what the ranks of its jobs noted."""

    def __init__(self, path: Path, notes: Path) -> None:
        self.path, self._notes = path, notes

    def submit(self, ranks: int, pool: str = "", steps_per_s: float = 0.0, restarts: int = 0) -> str:
        """Submit a job, for hosts of a pool where one is named; its id."""
        command = [sys.executable, str(RANK), str(self._notes), str(steps_per_s)]
        return submit(
            command, store=self.path, ranks=ranks, device="cpu", workdir=self._notes, progress={"pattern": PATTERN},
            restart={"max": restarts, "backoff_s": 0}, node_labels={"pool": pool} if pool else None,
        ).id  # fmt: skip

    def cancel(self, job: str) -> None:
        """End a job, and wait until it has ended."""
        store = open_store(str(self.path), create=False)
        try:
            store.request("cancel", msgspec.json.encode(CancelRequest(job, "bench")))
        finally:
            store.close()
        until(lambda: self.view().jobs[job].terminal, f"{job} to end")

    def begun(self, job: str, attempt: int, ranks: int) -> int:
        """When the last rank of an attempt came to its first instruction, on the clock since boot."""
        return max(noted[0] for noted in self._noted(job, attempt, ranks))

    def stepped(self, job: str, attempt: int, ranks: int) -> int:
        """When the last rank of an attempt had done its first step, on the clock since boot."""
        return max(noted[1] for noted in self._noted(job, attempt, ranks))

    def _noted(self, job: str, attempt: int, ranks: int) -> list[list[int]]:
        places = [self._notes / f"{job}.{attempt}.{rank}" for rank in range(ranks)]
        until(lambda: all(place.exists() for place in places), f"attempt {attempt} of {job} to step", POLL_S)
        return [[int(word) for word in place.read_text().split()] for place in places]

    def pid(self, job: str, attempt: int, rank: int) -> int:
        """The process of a rank."""

        def found() -> int | None:
            attempts = self.view().jobs[job].attempts
            return attempts[attempt - 1].ranks[rank].pid if len(attempts) >= attempt else None

        return until(found, f"rank {rank} of {job} to be in the log")

    def reader(self) -> StoreProtocol:
        """The store for reading; the caller closes it."""
        return open_store(str(self.path), create=False, read_only=True)

    def view(self) -> View:
        """What the log has now."""
        store = self.reader()
        try:
            return load_view(store)
        finally:
            store.close()

    def follow(self, end_ns: int) -> Iterator[tuple[StoredEvent, int]]:
        """New events with when they were found in the log, until that time since boot."""
        store = self.reader()
        try:
            seq = store.last()[0]
            while (now_ns := boottime_ns()) < end_ns:
                for event in store.read(after=seq):
                    seq = event.seq
                    yield event, now_ns
                time.sleep(POLL_S)
        finally:
            store.close()

    def offset_ns(self) -> int:
        """What turns the clock since boot into the log's."""
        return self.view().clock_offset_ns


class HostsFleet:
    """``hosts``: name to CPU devices, each in a network namespace of its own. The local engine has as many as the first."""

    def __init__(self, place: Path, stack: ExitStack, hosts: dict[str, int], labels: dict[str, str]) -> None:
        self.place, self._stack, self.hosts = place, stack, hosts
        notes = place / "notes"
        notes.mkdir()
        self.store, self.local = Store(place / "hosts.db", notes), Store(place / "local.db", notes)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self.lab = Lab(["hub", *hosts])
        except UnidleError as error:
            sys.exit(f"bench/hosts.py: {error}")
        stack.callback(self.lab.close)
        stack.callback(self._end_boxes)
        self._serve(max(hosts.values()))
        for name, devices in hosts.items():
            self._join(name, devices, labels[name])
        until(lambda: {node.id for node in self.store.view().fleet.nodes} == set(hosts), "all hosts to join")
        until(lambda: self.local.path.exists() and self.local.view().running, "the local controller")

    def _serve(self, devices: int) -> None:
        up = ("up", "--progress", "off", "--store")
        address = f"{self.lab.address('hub')}:{PORT}"
        listen = ("--listen", address, "--deadline", f"{DEADLINE_S}s")
        self.controller = self._start("hub", *up, str(self.store.path), *listen)
        self.local_controller = self._start("hub", *up, str(self.local.path), "--cpu-devices", str(devices))
        self._token = Path(f"{self.store.path}.d/hub/join")
        until(self._token.exists, "the controller to listen")
        until(lambda: self.store.path.exists() and self.store.view().running, "the controller")

    def _join(self, name: str, devices: int, pool: str) -> None:
        words = ("--join", f"{self.lab.address('hub')}:{PORT}", "--token-file", str(self._token))
        own = ("--node", name, "--cpu-devices", str(devices), "--state", str(self.place / name))
        self.agents[name] = self._start(name, "agent", *words, *own, "--label", f"pool={pool}")

    def _start(self, node: str, *words: str) -> subprocess.Popen[bytes]:
        output: IO[bytes] = self._stack.enter_context((self.place / "err").open("ab"))
        inside = ["nsenter", f"--net=/run/netns/{self.lab.space(node)}"]
        process = subprocess.Popen(
            [*inside, *UNIDLE, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        self._stack.callback(_ended, process)
        return process

    def box(self, node: str, job: str) -> int:
        """The process of the box of a job on a host."""
        return int((self.place / node / "boxes" / job / LOCK).read_text())

    def _end_boxes(self) -> None:
        """Boxes outlive their agents, and their ranks with them until the lease is over."""
        locks = list(self.place.glob(f"*/boxes/*/{LOCK}"))
        for lock in locks:
            if is_held(lock):
                os.kill(int(lock.read_text()), signal.SIGTERM)
        until(lambda: not any(map(is_held, locks)), "all boxes to end")


def until(found: Callable[[], T | None], what: str, every_s: float = LOOK_S) -> T:
    """The first answer that is true. It ends the benchmark when there is none in time."""
    end = time.monotonic() + LIMIT_S
    while not (answer := found()):
        if time.monotonic() > end:
            sys.exit(f"bench/hosts.py: it took too long for {what}")
        time.sleep(every_s)
    return answer


def event_of(stored: StoredEvent) -> ev.Event:
    return ev.decode(stored.kind, stored.body, stored.seq)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
