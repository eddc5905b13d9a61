"""Who holds a lease, and whether that process is still there."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from unidle.clock import boot_id


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, named so that another one can tell whether it still runs.

    ``boot`` is the kernel's boot id and ``pid_ns`` the namespace in which ``pid`` counts (containers
    share the first and not the second); ``ticks`` is the process's start time, since pids come back.
    """

    purpose: str
    host: str
    boot: str
    pid_ns: str
    pid: int
    ticks: int
    since_ns: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def words(self) -> str:
        """``unidle up (pid 4711 on node7, since 2025-01-31 12:00:00 UTC)``"""
        since = datetime.fromtimestamp(self.since_ns // 1_000_000_000, UTC)
        return f"{self.purpose} (pid {self.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S} UTC)"

    def is_alive(self) -> bool | None:
        """Whether the process runs; None if this process cannot determine it."""
        if not self.ticks or not self.boot or (self.boot, self.pid_ns) != (boot_id(), _pid_namespace()):
            return None
        return start_ticks(self.pid) == self.ticks

    def is_of_earlier_start(self) -> bool:
        """Whether a host of this name has it in another boot or PID namespace: the machine or the container was started
        again, or it is another one of the same name.
        """
        here = self.host == socket.gethostname()
        return bool(self.boot) and here and (self.boot, self.pid_ns) != (boot_id(), _pid_namespace())


def this_process(purpose: str, now_ns: int) -> Holder:
    """The calling process as a holder."""
    pid = os.getpid()
    ticks = start_ticks(pid) or 0
    return Holder(purpose, socket.gethostname(), boot_id(), _pid_namespace(), pid, ticks, now_ns)


def parse(text: str) -> Holder | None:
    """The holder in ``text``; None when another version wrote something else there."""
    try:
        return Holder(**json.loads(text))
    except (TypeError, ValueError):
        return None


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); None when it
    does not run. One that is dead and not yet waited for does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the command's name may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
