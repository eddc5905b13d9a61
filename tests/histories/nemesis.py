"""The faults of a run, by seed: of controllers, supervisors, clients, files, clocks, and of the store's disk or server."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from histories.record import Ended, Loss, boottime_ns
from histories.stores import AnyStore, PostgresServer, SqliteDisk, expire, pause
from unidle.engine.local.ranks import rundir
from unidle.errors import StoreError
from unidle.store.open import open_store
from waiting import wait_until

UP: Final = Path(__file__).with_name("up.py")
GONE: Final = "was deleted or moved while the store was in use"
COMMON: Final = (
    "controller_killed", "controller_killed", "controller_terminated", "second_controller", "controller_paused",
    "controller_overtaken", "supervisor_killed", "client_killed", "journal_deleted", "orders_deleted",
    "attempt_deleted", "clock_stepped",
)  # fmt: skip
ROUND_S: Final = 60.0
RANK_S: Final = 3.0


def holds(store: AnyStore, pid: int) -> bool:
    """Whether this process has the store's lease."""
    try:
        opened = open_store(store.address, create=False, read_only=True)
        try:
            return f"(pid {pid} " in (opened.holder() or "")
        finally:
            opened.close()
    except StoreError:
        return False


def _runs(rank: Path) -> bool:
    """Whether the supervisor of this run directory runs."""
    pid = (rundir.read_json(str(rank / rundir.SUPERVISOR)) or {}).get("pid")
    try:
        return isinstance(pid, int) and str(rank).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Controllers:
    """One ``unidle up`` at a time, started again when it ends; how each one ended is kept."""

    def __init__(self, place: Path, store: AnyStore, env: dict[str, str], devices: int) -> None:
        self.place, self.store, self.env, self.devices = place, store, env, devices
        self.step = place / "clock_step"
        self.step.write_text("0")
        self.ended: list[Ended] = []
        self.number = 0
        self.up: subprocess.Popen[bytes] | None = None

    def spawn(self, *more: str, space: str = "") -> subprocess.Popen[bytes]:
        self.number += 1
        command = [sys.executable, "-P", str(UP), str(self.step), space, "up", "--store", self.store.address]
        command += ["--cpu-devices", str(self.devices), "--progress", "off", *more]
        with self.stderr(self.number).open("wb") as stderr:
            up = subprocess.Popen(command, env=self.env, stdout=stderr, stderr=stderr, start_new_session=True)
        up.number = self.number  # type: ignore[attr-defined]
        return up

    def stderr(self, number: int) -> Path:
        return self.place / f"up{number}.err"

    def note(self, up: subprocess.Popen[bytes]) -> Ended:
        """Keep how one that has ended did."""
        number = up.number  # type: ignore[attr-defined]
        text = self.stderr(number).read_text(errors="replace")
        self.ended.append(Ended(f"up {number}", up.wait(), text))
        return self.ended[-1]

    def keep(self) -> None:
        """Have one that runs."""
        if self.up is not None and self.up.poll() is not None:
            self.note(self.up)
            self.up = None
        if self.up is None:
            self.up = self.spawn()

    def serving(self) -> subprocess.Popen[bytes]:
        """One that holds the store now."""

        def serves() -> bool:
            self.keep()
            assert self.up is not None
            return self.up.poll() is None and holds(self.store, self.up.pid)

        wait_until(serves, ROUND_S, "a controller to serve")
        assert self.up is not None
        return self.up

    def end(self, number: signal.Signals) -> Ended:
        """Signal the one that runs, and wait for its end."""
        assert self.up is not None
        self.up.send_signal(number)
        self.up.wait(ROUND_S)
        up, self.up = self.up, None
        return self.note(up)

    def drain(self) -> None:
        """Until no job is left; a client's own controller may hold the store for a while."""
        if self.up is not None:
            self.end(signal.SIGTERM)
            self.up = None
        deadline = time.monotonic() + 4 * ROUND_S
        while time.monotonic() < deadline:
            up = self.spawn("--until-idle")
            try:
                up.wait(2 * ROUND_S)
            except subprocess.TimeoutExpired:  # the checker names the jobs that have no end
                up.kill()
            if self.note(up).code in (0, -9):
                return
            pause(0.2)


class Nemesis:
    """``clients`` are the processes that may be killed; ``losses`` is what the faults legitimately destroyed."""

    def __init__(
        self, seed: int, store: AnyStore, controllers: Controllers, *, deletes_wal: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.store, self.controllers = store, controllers
        self.faults = [
            *COMMON,
            *store.faults(),
            *store.faults(),
            *(["wal_deleted"] * 3 if deletes_wal else []),
        ]
        self.clients: list[subprocess.Popen[bytes]] = []
        self.losses: list[Loss] = []
        self.done: Counter[str] = Counter()
        self.log: list[str] = []

    def strike(self, name: str = "") -> None:
        """One fault, by chance unless it is named, and its end."""
        name = name or self.chance.choice(self.faults)
        began = boottime_ns()
        fault = getattr(self, f"_{name}")
        happened = fault()
        self.done[name if happened is not False else f"{name} (nothing to hit)"] += 1
        self.log.append(f"{began} {(boottime_ns() - began) / 1e9:.2f} s {name}")

    # -- controllers and clients --------------------------------------------------------------------

    def _controller_killed(self) -> None:
        self.controllers.keep()
        self.controllers.end(signal.SIGKILL)
        self.controllers.keep()

    def _controller_terminated(self) -> None:
        self.controllers.serving()
        self.controllers.end(signal.SIGTERM)
        self.controllers.keep()

    def _second_controller(self) -> bool:
        first = self.controllers.serving()
        second = self.controllers.spawn()
        second.wait(ROUND_S)
        ended = self.controllers.note(second)
        if first.poll() is None and ended.code != 4:
            self.controllers.ended.append(Ended("up next to one that runs", 1, ended.stderr))
        return ended.code == 4

    def _controller_paused(self) -> None:
        up = self.controllers.serving()
        up.send_signal(signal.SIGSTOP)
        pause(self.chance.uniform(0.2, 2))
        up.send_signal(signal.SIGCONT)

    def _controller_overtaken(self) -> bool:
        """It stops for longer than its lease, another one serves meanwhile, and then it goes on."""
        first = self.controllers.serving()
        first.send_signal(signal.SIGSTOP)
        second: subprocess.Popen[bytes] | None = None
        try:
            if not expire(self.store.expiring):
                return False  # it was stopped inside a transaction, which has the store locked
            second = self.controllers.spawn(space="another")
            self.controllers.up = second
            deadline = time.monotonic() + ROUND_S / 3
            while second.poll() is None and time.monotonic() < deadline:
                if holds(self.store, second.pid):
                    break
                pause(0.05)
            pause(self.chance.uniform(0, 1))
        finally:
            first.send_signal(signal.SIGCONT)
            if second is None:
                self.controllers.up = first
        first.wait(ROUND_S)
        if (ended := self.controllers.note(first)).code != 4:
            self.controllers.ended.append(Ended("up that was overtaken", 1, ended.stderr))
        self.controllers.end(signal.SIGKILL)
        wait_until(lambda: expire(self.store.expiring), ROUND_S, "the end of the lease of another namespace")
        self.controllers.keep()
        return True

    def _client_killed(self) -> bool:
        live = [client for client in self.clients if client.poll() is None]
        if not live:
            return False
        client = self.chance.choice(live)
        if self.chance.random() < 0.5:
            os.killpg(client.pid, signal.SIGKILL)  # and the command that it runs
        else:
            client.kill()
        client.wait()
        return True

    def _clock_stepped(self) -> None:
        """Up to two hours, or up to three days, both ways; at times the controller is started with it."""
        most_s = self.chance.choice([7_200, 3 * 86_400])
        self.controllers.step.write_text(str(int(self.chance.uniform(-most_s, most_s) * 1e9)))
        if self.chance.random() < 0.5:
            self._controller_killed()

    # -- ranks and their files ----------------------------------------------------------------------

    def _ranks(self) -> list[Path]:
        """Run directories of ranks whose supervisor runs; one soon does, while clients submit jobs."""
        deadline = time.monotonic() + RANK_S
        while not (found := [path for path in sorted(self.store.runs.glob("*/*/rank*")) if _runs(path)]):
            if time.monotonic() > deadline:
                break
            pause(0.05)
        return found

    def _supervisor_killed(self) -> bool:
        if not (ranks := self._ranks()):
            return False
        known = rundir.read_json(str(self.chance.choice(ranks) / rundir.SUPERVISOR)) or {}
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(known["pid"])), signal.SIGKILL)
        return True

    def _delete(self, *names: str) -> bool:
        ranks = self._ranks()
        if not ranks:
            return False
        place = self.chance.choice(ranks)
        job, attempt, rank = place.parts[-3], int(place.parts[-2]), int(place.name.removeprefix("rank"))
        for name in names or sorted(path.name for path in place.iterdir()):
            with contextlib.suppress(OSError):
                (place / name).unlink(missing_ok=True)
        self.losses.append(Loss("run_directory", boottime_ns(), job=job, attempt=attempt, rank=rank))
        if self.chance.random() < 0.5:
            self._controller_killed()  # the next one has the files only
        return True

    def _journal_deleted(self) -> bool:
        return self._delete(rundir.JOURNAL)

    def _orders_deleted(self) -> bool:
        return self._delete(rundir.ORDERS, rundir.CLAIMED, rundir.SUPERVISOR)

    def _attempt_deleted(self) -> bool:
        return self._delete()

    # -- the store ----------------------------------------------------------------------------------

    def _disk_full(self) -> None:
        assert isinstance(self.store, SqliteDisk)
        self.store.fill()
        pause(self.chance.uniform(0.3, 2))
        self.store.free()

    def _immutable(self) -> None:
        assert isinstance(self.store, SqliteDisk)
        self.store.immutable(True)
        pause(self.chance.uniform(0.1, 1))
        if self.chance.random() < 0.5:
            self._controller_killed()
            pause(0.5)
        self.store.immutable(False)

    def _quiet(self) -> list[subprocess.Popen[bytes]]:
        """Stop clients and what they run between operations: they must not make another log in the place of one that is away."""
        (self.controllers.place / "hold").touch()
        held = [client for client in self.clients if client.poll() is None]
        for client in held:
            path = self.controllers.place / "held" / client.name  # type: ignore[attr-defined]
            wait_until(
                lambda p=path, c=client: p.exists() or c.poll() is not None, 2 * ROUND_S, "a client to hold"
            )  # type: ignore[misc]
        return held

    def _loud(self) -> None:
        (self.controllers.place / "hold").unlink()
        for path in (self.controllers.place / "held").iterdir():
            path.unlink()

    def _wal_moved(self) -> bool:
        """The write-ahead log is moved away and, as the message of ``up`` has it, put back."""
        return self._without_wal(deletes=False)

    def _wal_deleted(self) -> bool:
        return self._without_wal(deletes=True)

    def _without_wal(self, *, deletes: bool) -> bool:
        assert isinstance(self.store, SqliteDisk)
        wal, away = self.store.wal(), self.store.disk / "away"
        self._quiet()
        try:
            up = self.controllers.serving()
            if not wal.exists():
                return False
            if deletes:
                wal.unlink()
            else:
                wal.rename(away)
            up.wait(ROUND_S)
            self.controllers.up = None
            said = (ended := self.controllers.note(up)).code == 4 and GONE in ended.stderr
            if deletes:
                self.losses.append(Loss("store", boottime_ns(), said=said))
            else:
                away.rename(wal)
                if not said:
                    self.controllers.ended.append(Ended("up without its write-ahead log", 1, ended.stderr))
        finally:
            self._loud()
        self.controllers.keep()
        return True

    def _connections_ended(self) -> None:
        assert isinstance(self.store, PostgresServer)
        for _ in range(self.chance.randrange(1, 4)):
            self.store.end_connections()
            pause(self.chance.uniform(0, 0.3))

    def _server_restarted(self) -> None:
        self._stop_server(signal.SIGINT)

    def _server_killed(self) -> None:
        self._stop_server(signal.SIGQUIT)

    def _stop_server(self, number: signal.Signals) -> None:
        assert isinstance(self.store, PostgresServer)
        self.store.stop(number)
        pause(self.chance.uniform(0, 2))
        self.store.start()
