"""One run on the simulated disk: a client, `unidle up`, supervisors and ranks; a fault; and a second `unidle up`."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import secrets
import shutil
import signal
import struct
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from disk import client, model
from disk.faults import Fault
from disk.warm import Programs
from unidle.engine.local.ranks import cgroups, process_tree
from unidle.errors import UnidleError
from unidle.store.open import open_store

SOURCE = Path(__file__).with_name("recorder.c")
FLEET = """\
nodes: [{id: n1, devices: {count: 4, kind: cpu}, watch: {kernel_log: kernel.log}}]
guard: {preflight: "off"}
"""
FIRST_S, SECOND_S, ALONE_S = 60.0, 90.0, 3.0  # machines of CI are shared
_POLL_S = 0.02


def build(into: Path) -> Path:
    """The library that records."""
    library = into / "recorder.so"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, "-o", library, SOURCE], check=True)
    return library


class Hangs(AssertionError):
    """Something did not end."""


class State:
    """What all processes of a run share: struct state of recorder.c."""

    def __init__(self, path: Path, library: Path) -> None:
        path.write_bytes(bytes(4096))
        made = ctypes.CDLL(str(library))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)
        made.simulated_disk_flags.restype = ctypes.c_size_t
        self._at = made.simulated_disk_flags()
        held = (ctypes.c_char * 4096).from_buffer(self._map)
        made.simulated_disk_init(held)
        del held

    def _flags(self) -> tuple[int, int, int, int]:
        cut, disarmed, happened, full = struct.unpack_from("=4i", self._map, self._at)
        return cut, disarmed, happened, full

    @property
    def cut(self) -> bool:
        return bool(self._flags()[0])

    @property
    def happened(self) -> bool:
        return bool(self._flags()[2])

    def disarm(self) -> None:
        """No fault from now on; a full disk has room."""
        struct.pack_into("=i", self._map, self._at + 4, 1)
        struct.pack_into("=2i", self._map, self._at + 12, 0, 0)

    def rearm(self) -> None:
        """The power is on, and one more fault may happen."""
        struct.pack_into("=5i", self._map, self._at, 0, 0, 0, 0, 0)

    def close(self) -> None:
        self._map.close()


class Machine:
    """A run in ``place``, which is empty: ``disk`` is simulated, ``notes`` are what is true. Close it in any case."""

    def __init__(
        self, place: Path, programs: Programs, seed: int, fault: Fault | None, *, lies: bool = False
    ) -> None:
        self.place, self.seed, self.fault, self._lies = place, seed, fault, lies
        self.disk, self.notes = place / "disk", place / "notes"
        for directory in (self.disk, self.notes):
            directory.mkdir(0o700)
        self.store = self.disk / "s.db"
        (place / "fleet.yaml").write_text(FLEET.replace("kernel.log", f"{place}/kernel.log"))
        (place / "kernel.log").touch()
        (place / "record").touch(0o600)
        self.state = State(place / "state", programs.library)
        self._token = f"UNIDLE_DISK_RUN={secrets.token_hex(8)}"
        self._programs = programs
        self._up: subprocess.Popen[bytes] | None = None
        self._client: subprocess.Popen[bytes] | None = None
        self.cut = False
        self.codes: list[int | None] = []
        self.forbidden: set[tuple[str, int, int]] = set()

    # -- first phase: with the fault ----------------------------------------------------------------

    def break_it(self) -> None:
        """Run until all is done, the power is cut, or nothing more can come of it."""
        words = ["client", str(self.store), str(self.notes)]
        self._client = self._start(words, self._environment("client"))
        self._wait(lambda: self._noted("ready") or self._client_gone(), FIRST_S, "the client's submissions")
        if self.fault is not None and self.fault.adopts and not self.state.cut:
            self._kill_one()
        if not self.state.cut:
            self._up = self._start(self._command(), self._environment("up"))
            self._wait(self._first_is_over, FIRST_S, "the first `unidle up`")
        (self.notes / "over").touch()
        if not self.state.cut:
            self._wait(self._client_gone, FIRST_S, "the client")
        if self._up is not None and not self.state.cut and self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)  # ranks go on
            self._wait(lambda: self._up is None or self._up.poll() is not None, FIRST_S, "SIGTERM")
        self.state.disarm()
        self.cut = self.state.cut
        if self.cut:
            self._end_all()
            self._rebuild()
        elif self._up is not None:
            self.codes.append(self._up.poll())

    def _kill_one(self) -> None:
        """A controller without a fault is killed while ranks run."""
        self._up = up = self._start(self._command(), self._environment("none"))
        started = self.notes / "started.job-0"
        self._wait(lambda: started.exists() or up.poll() is not None, FIRST_S, "a rank to start")
        up.kill()
        up.wait()

    def _first_is_over(self) -> bool:
        assert self._up is not None
        if self._up.poll() is not None:
            return True
        if self._client_gone() and not self._noted("cancel long"):  # no one ends that job
            ended = {line.split()[1] for line in self._lines("ranks") if line.startswith("end")}
            self._alone_since = getattr(self, "_alone_since", time.monotonic())
            return ended >= {"job-0", "job-1"} or time.monotonic() > self._alone_since + ALONE_S
        return False

    def _rebuild(self) -> None:
        record = (self.place / "record").read_bytes()
        tree_after = model.after_cut(model.parse(record), str(self.disk), random.Random(self.seed))
        shutil.rmtree(self.disk)
        self.disk.mkdir(0o700)
        for path, content in tree_after.items():
            if content is None:
                Path(path).mkdir(0o700)
            else:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                os.write(fd, content) if content else None
                os.close(fd)
        for path in self.notes.glob("pids.*"):  # numbers of processes of another boot
            path.unlink()

    # -- second phase: without ----------------------------------------------------------------------

    def mend(self) -> None:
        """`unidle up` until nothing is left to do, on a disk that works."""
        self._catch_up()
        name, _, value = self._token.partition("=")
        env = {**os.environ, name: value}
        if self.cut:
            boot = self.place / "boot_id"
            boot.write_text(f"{uuid.uuid4()}\n")
            env["UNIDLE_DISK_BOOT"] = str(boot)
        self._up = self._start(self._command(), env)
        self._wait(
            lambda: self._up is None or self._up.poll() is not None, SECOND_S, "the second `unidle up`"
        )
        self.codes.append(self._up.returncode)

    def _catch_up(self) -> None:
        """What the client could not do is done by another one."""
        store = open_store(str(self.store), create=True)
        try:
            if self.cut:  # the power was off for longer than a lease
                store.writer.set(store.writer.read(), expires_ns=0)
            if not self._noted("cancel long"):
                if not self._noted("submit long"):
                    return
                store.request("cancel", client.cancellation("long"))
                with (self.notes / "client").open("a") as file:
                    file.write("cancel long\n")
        finally:
            store.close()

    # -- processes ----------------------------------------------------------------------------------

    def said(self) -> str:
        return (self.place / "said.txt").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self._end_all()
        self.state.close()
        name = cgroups.group_name(f"{self.store}.d/runs")
        for parents in cgroups.own_hierarchies().values():
            for parent in parents:
                self._wait(lambda path=f"{parent}/{name}": cgroups.remove_tree(path), 10, "groups to go")  # type: ignore[misc]

    def _command(self) -> list[str]:
        command = ["up", "--store", str(self.store), "--until-idle"]
        return [*command, "--fleet", str(self.place / "fleet.yaml"), "--progress", "off"]

    def _environment(self, role: str) -> dict[str, str]:
        name, _, value = self._token.partition("=")
        found = {
            **os.environ, name: value, "LD_PRELOAD": str(self._programs.library), "UNIDLE_DISK_ROOT": str(self.disk),
            "UNIDLE_DISK_NOTES": str(self.notes), "UNIDLE_DISK_STATE": str(self.place / "state"),
            "UNIDLE_DISK_RECORD": str(self.place / "record"), "UNIDLE_DISK_ROLE": role,
        }  # fmt: skip
        found |= {"UNIDLE_DISK_LIES": "1"} if self._lies else {}
        return found if self.fault is None else found | {"UNIDLE_DISK_FAULT": self.fault.words()}

    def _start(self, words: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.place / "said.txt").open("ab") as said:
            return self._programs.start(
                words, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def _client_gone(self) -> bool:
        return self._client is None or self._client.poll() is not None

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.notes / name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def _noted(self, line: str) -> bool:
        return line in self._lines("client")

    def _wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        end = time.monotonic() + limit_s
        while not (condition() or (self.state.cut and not self.cut)):
            if time.monotonic() > end:
                raise Hangs(f"{what} does not end within {limit_s} s")
            time.sleep(_POLL_S)

    def _end_all(self) -> None:
        end = time.monotonic() + 20
        ours = [process for process in (self._up, self._client) if process is not None]
        for process in ours:  # their environment in /proc is that of the warm process
            process.kill()
            process.wait(60)
        while left := process_tree.with_environment(self._token):
            process_tree.send(left, signal.SIGKILL)
            if time.monotonic() > end:
                raise Hangs(f"processes {sorted(left)} do not die")


def store_opens(path: Path) -> str:
    """Empty, or why the store cannot be opened."""
    try:
        open_store(str(path), create=False, read_only=True).close()
    except UnidleError as error:
        return error.line()
    return ""
