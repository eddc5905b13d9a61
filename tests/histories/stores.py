"""The two kinds of store on disks and servers of their own, and the faults that only one of them has."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

import needs
import places
from unidle.store.open import open_store
from unidle.store.sql import SqlStore
from waiting import wait_until


def expire(address: str) -> bool:
    """Let the writer's lease be over, as it is 4 s after its last renewal. False where a stopped writer has it locked."""
    try:
        store = open_store(address, create=False)
        assert isinstance(store, SqlStore)
        try:
            store.writer.set(store.writer.read(), expires_ns=0)
        finally:
            store.close()
    except Exception:  # locked, or the writer renewed it meanwhile
        return False
    return True


class SqliteDisk:
    """A small tmpfs with the store and its run directories. Needs root."""

    kind = "sqlite"

    def __init__(self, place: Path) -> None:
        self.disk = place / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", self.disk], check=True)
        self.file = self.disk / "s.db"
        self.address = str(self.file)
        self.expiring = self.address
        self.runs = Path(f"{self.file}.d/runs")
        self.env: dict[str, str] = {}

    def faults(self) -> list[str]:
        return ["disk_full", "immutable", "wal_moved"]

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.disk / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.disk / "fill").unlink(missing_ok=True)

    def immutable(self, on: bool) -> None:
        """No process may open the file for writing, as after a wrong chown; those that have it open may."""
        places.set_immutable(self.file, on)

    def wal(self) -> Path:
        return Path(f"{self.file}-wal")

    def heal(self) -> None:
        self.free()
        if self.file.exists():
            self.immutable(False)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.heal()
        wait_until(
            lambda: subprocess.run(["umount", self.disk], capture_output=True).returncode == 0, 60, "umount"
        )


class PostgresServer:
    """A server that can be restarted, and whose connections can be ended."""

    kind = "postgres"

    def __init__(self, place: Path) -> None:
        programs = needs.postgres_bin()
        assert programs is not None
        self.programs = programs
        self.home = Path(tempfile.mkdtemp(prefix="unidle-history-", dir=places.open_parent()))
        self._become = places.server_user(self.home)
        self.server: subprocess.Popen[bytes] | None = None
        data = self.home / "data"
        make = [
            *self._become,
            programs / "initdb",
            "-D",
            data,
            "-N",
            "-U",
            "unidle",
            "-A",
            "trust",
            "--locale=C",
        ]
        subprocess.run([*map(str, make), "-E", "UTF8"], cwd="/", check=True, capture_output=True)
        self.start()
        self.address = f"postgresql://unidle@/postgres?host={self.home}"
        self.expiring = f"{self.address}&options=-clock_timeout%3D2000"
        self.env = {"XDG_DATA_HOME": str(place / "data")}
        self.runs = self._runs(place / "data" / "unidle")

    def _runs(self, data: Path) -> Path:
        from unidle.control.store_files import run_root

        store = open_store(self.address, create=True)
        try:
            return run_root(store, data)
        finally:
            store.close()

    def faults(self) -> list[str]:
        return ["connections_ended", "server_restarted", "server_killed"]

    def start(self) -> None:
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"]
        command = [*self._become, "--pdeathsig", "INT", self.programs / "postgres", "-D", self.home / "data"]
        with (self.home / "log").open("ab") as log:
            self.server = subprocess.Popen(
                [*map(str, command), "-k", str(self.home), *settings], stdout=log, stderr=log, cwd=self.home
            )
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.home)]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60, "PostgreSQL's start")

    def stop(self, number: signal.Signals) -> None:
        """SIGINT: sessions are ended, and the server leaves cleanly; SIGQUIT: it recovers at its next start."""
        assert self.server is not None
        self.server.send_signal(number)
        self.server.wait(60)

    def end_connections(self) -> None:
        with psycopg.connect(self.address, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = 'postgres' AND pid <> pg_backend_pid()"
            )

    def heal(self) -> None:
        if self.server is None or self.server.poll() is not None:
            self.start()

    def close(self) -> None:
        if self.server is not None and self.server.poll() is None:
            self.stop(signal.SIGINT)
        shutil.rmtree(self.home, ignore_errors=True)


AnyStore = SqliteDisk | PostgresServer


@contextlib.contextmanager
def made(kind: str, place: Path) -> Iterator[AnyStore]:
    store: AnyStore = SqliteDisk(place) if kind == "sqlite" else PostgresServer(place)
    try:
        yield store
    finally:
        store.close()


def pause(seconds: float) -> None:
    """The moments of faults are what is tried; nothing is waited for."""
    time.sleep(seconds)
