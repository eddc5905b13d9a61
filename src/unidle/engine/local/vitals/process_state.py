"""One look at one process: what its main thread does, from /proc. No ptrace, nothing stops for it."""

from __future__ import annotations

import functools
import os
import platform
import struct
import time
from typing import Final, NamedTuple

from unidle.engine.local.ranks import process_tree
from unidle.engine.local.ranks.cgroups import hierarchies
from unidle.jobs.vitals import Doing

_NETWORK: Final = ("epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect6", "recvfrom", "recvmsg", "accept", "accept4", "connect", "sendto", "sendmsg")  # fmt: skip
_SYSCALLS: Final[dict[str, dict[int, str]]] = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 23: "select", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 270: "pselect6",
        271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait", 63: "read", 64: "write", 72: "pselect6", 73: "ppoll", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4",
    },
}  # fmt: skip
_NAMES: Final = _SYSCALLS.get(platform.machine(), {})
_WCHAN: Final[tuple[tuple[str, Doing], ...]] = (
    ("futex", "lock"), ("nanosleep", "sleep"), ("hrtimer", "sleep"), ("nsleep", "sleep"), ("epoll", "network"), ("ep_poll", "network"),
    ("poll", "network"), ("select", "network"), ("tcp", "network"), ("sk_wait", "network"), ("skb", "network"),
    ("pipe", "pipe"), ("do_wait", "child"),
)  # fmt: skip
_ABSOLUTE: Final = 1  # TIMER_ABSTIME
_MOST_BYTES: Final = 4096


class ProcessState(NamedTuple):
    """What a process' main thread does; ``wakes_ns`` (CLOCK_BOOTTIME) where it sleeps until then."""

    doing: Doing
    timed: bool = False
    wakes_ns: int | None = None


_RUNS: Final = b"running\n"
_RUNNING: Final = ProcessState("running")
_GONE: Final = ProcessState("gone")
_BY_STATE: Final = {
    ord(letter): look
    for letters, look in (
        ("R", _RUNNING),
        ("D", ProcessState("disk")),
        ("Tt", ProcessState("stopped")),
        ("ZX", _GONE),
    )
    for letter in letters
}


class ProcessReader:
    """Observes one process repeatedly. With ``keep`` its files stay open, so that a look is one or two system calls.

    An open file remains that of the process it was opened for. When that process is gone, the file cannot be read,
    even if another process has got its number.
    """

    def __init__(self, pid: int, *, keep: bool = True) -> None:
        self.pid, self._keep = pid, keep
        self._fds: dict[str, int] = {}

    def look(self) -> ProcessState:
        """What the main thread does now; it may have moved on a moment later."""
        try:
            syscall = self._said("syscall")
        except OSError:  # it is gone, or who looks may not trace it
            syscall = b""
        if syscall == _RUNS:  # told at once, where the other file adds up all threads
            return _RUNNING
        try:
            state = process_tree.state_in(self._said("stat"))
        except OSError:
            return _GONE
        if (found := _BY_STATE.get(state)) is not None:
            return found
        words = syscall.split()
        name = _NAMES.get(int(words[0]), "") if len(words) > 6 else ""
        if not name:
            return ProcessState(_by_wchan(self.pid))
        return _blocked_in(self.pid, name, [int(word, 16) for word in words[1:7]])

    def children(self) -> set[int]:
        """As :func:`unidle.engine.local.ranks.process_tree.children`."""
        try:
            listed = self._said(f"task/{self.pid}/children")
        except OSError:
            return set()
        # the kernel gives whole names only, so one that is cut short is not quite as long as it might be
        return (
            set(map(int, listed.split()))
            if len(listed) < _MOST_BYTES // 2
            else process_tree.children(self.pid)
        )

    def state_and_ticks(self) -> tuple[str, int]:
        """The state letter, Z for a process that is gone, and its ticks as :func:`cpu_ticks` counts them."""
        try:
            stat = self._said("stat")
        except OSError:
            return "Z", 0
        return chr(process_tree.state_in(stat)), sum(map(int, process_tree.fields_of(stat)[11:15]))

    def on_cpu_ns(self) -> int:
        """Time in which the main thread ran, or was ready to run and waited for a CPU; 0 if unknown."""
        try:
            ran_ns, wanted_ns, _ = map(int, self._said("schedstat").split())
        except (OSError, ValueError):
            return 0
        return ran_ns + wanted_ns

    def io_bytes(self) -> int:
        """Bytes that were read and written by system calls, of files, pipes and (mostly) sockets."""
        try:
            return sum(int(line.split()[1]) for line in self._said("io").split(b"\n", 2)[:2])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _said(self, name: str) -> bytes:
        if not self._keep:
            return process_tree.said(f"/proc/{self.pid}/{name}")
        fd = self._fds.get(name)
        if fd is None:
            fd = self._fds[name] = os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, _MOST_BYTES, 0)


def look_at(pid: int) -> ProcessState:
    """One look at the main thread of ``pid``."""
    return ProcessReader(pid, keep=False).look()


def _blocked_in(pid: int, name: str, args: list[int]) -> ProcessState:
    if name == "futex":
        return ProcessState("lock", timed=args[3] != 0)
    if name in ("nanosleep", "clock_nanosleep"):
        return ProcessState("sleep", timed=True, wakes_ns=_wakes_ns(pid, name, args))
    if name in ("wait4", "waitid"):
        return ProcessState("child")
    if name in _NETWORK:
        no_files = name in ("select", "pselect6", "poll", "ppoll") and args[1 if "poll" in name else 0] == 0
        return ProcessState("sleep" if no_files else "network", timed=no_files)
    return ProcessState("pipe" if _by_wchan(pid) == "pipe" else "network")


def _by_wchan(pid: int) -> Doing:
    try:
        where = process_tree.said(f"/proc/{pid}/wchan").decode("ascii", "replace")
    except OSError:
        return "lock"
    return next((doing for part, doing in _WCHAN if part in where), "lock")


def _wakes_ns(pid: int, name: str, args: list[int]) -> int | None:
    """When a sleep ends by itself, on CLOCK_BOOTTIME; None where its argument cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            file.seek(args[2] if name == "clock_nanosleep" else args[0])
            seconds, nanoseconds = struct.unpack("qq", file.read(16))
    except (OSError, struct.error, OverflowError, ValueError):
        return None
    length_ns: int = seconds * 1_000_000_000 + nanoseconds
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if name == "clock_nanosleep" and args[1] & _ABSOLUTE:
        try:
            return boot_ns + length_ns - time.clock_gettime_ns(args[0])
        except OSError:
            return None
    return boot_ns + length_ns  # it began a little earlier


def worker_of(pid: int) -> int:
    """The process that does a rank's work: ``pid``, or the one that wrappers (shells, launchers) wait for."""
    for _ in range(8):
        below = [child for child in process_tree.children(pid) if process_tree.is_live(child)]
        if not below or look_at(pid).doing != "child":
            return pid
        pid = max(below, key=lambda child: (cpu_ticks(child), -child))
    return pid


def cpu_ticks(pid: int) -> int:
    """Clock ticks of CPU that a process used, and those that its children used that it waited for."""
    return ProcessReader(pid, keep=False).state_and_ticks()[1]


def quota_of(pid: int) -> str:
    """The file ``cpu.stat`` that shows how the CPU quota of its control group limits a process; empty without one."""
    try:
        return _cpu_stat(process_tree.said(f"/proc/{pid}/cgroup").decode("ascii", "replace"))
    except OSError:
        return ""


@functools.lru_cache(4096)
def _cpu_stat(own: str) -> str:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        found = hierarchies(file.read(), own)
    paths = [f"{found[use][0]}/cpu.stat" for use in ("cpu", "unified") if use in found]
    return next((path for path in paths if os.path.exists(path)), "")


def throttled_ns(stat: str) -> int:
    """How long the quota has held the group of a ``cpu.stat`` so far, over all CPUs: v1 in ns, v2 in us."""
    try:
        words = dict(line.split() for line in process_tree.said(stat).decode("ascii").splitlines())
        return (
            int(words["throttled_time"]) if "throttled_time" in words else int(words["throttled_usec"]) * 1000
        )
    except (OSError, ValueError, KeyError):
        return 0
