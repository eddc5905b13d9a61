"""Process trees as /proc shows them. Standard library only: the supervisor imports it."""

from __future__ import annotations

import os
import signal

_MOST_BYTES = 1 << 14


def said(path: str) -> bytes:
    """A small file of /proc or /sys that the kernel makes in one piece: three system calls, where ``open`` needs seven.

    Errors: OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)


def fields_of(stat: bytes) -> list[bytes]:
    """The words of a ``/proc/PID/stat`` from the state letter on: the command before it may hold spaces and brackets."""
    return stat[stat.rfind(b")") + 2 :].split()


def state_in(stat: bytes) -> int:
    """The state letter in a ``/proc/PID/stat``, as its byte."""
    return stat[stat.rfind(b")") + 2]


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time (clock ticks since boot) of a process; None when it is gone."""
    try:
        fields = fields_of(said(f"/proc/{pid}/stat"))
    except OSError:
        return None
    return fields[0].decode("ascii"), int(fields[1]), int(fields[19])


def ticks_of(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid it names one process."""
    stat = stat_of(pid)
    return None if stat is None else stat[2]


def is_live(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> set[int]:
    """Processes whose parent is the main thread of ``pid``; empty where the kernel does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # may be long
            return {int(name) for name in file.read().split()}
    except OSError:
        return set()


def descendants(root: int) -> set[int]:
    """Live processes below ``root``; complete only while ``root`` is a subreaper."""
    children: dict[int, list[int]] = {}
    dead = set()
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is None:
            continue
        children.setdefault(stat[1], []).append(pid)
        if stat[0] in "ZX":
            dead.add(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return found - dead


def below(root: int, first: set[int]) -> set[int]:
    """``root`` with its live descendants, as far as the kernel lists children; ``first`` are its own children."""
    seen, fresh = {root}, first
    while fresh := {child for child in fresh if child not in seen and is_live(child)}:
        seen |= fresh
        fresh = set().union(*map(children, fresh))
    return seen


def cpu_ns(root: int) -> int | None:
    """CPU time of the processes below ``root``, those that were waited for included; None when it is gone.

    To the clock tick, mostly 10 ms.
    """
    own = _cpu_ticks(root)
    if own is None:
        return None
    below = [ticks for pid in descendants(root) if (ticks := _cpu_ticks(pid)) is not None]
    return (own[1] + sum(map(sum, below))) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> tuple[int, int] | None:
    """Clock ticks that a process has used, and that its children had used when it waited for them."""
    try:
        fields = fields_of(said(f"/proc/{pid}/stat"))
    except OSError:
        return None
    user, system, of_users, of_systems = map(int, fields[11:15])
    return user + system, of_users + of_systems


def with_environment(*entries: str) -> set[int]:
    """Live processes whose initial environment holds every ``NAME=value`` of ``entries``.

    Finds what outlived its supervisor where there is no cgroup: daemons keep their environment.
    """
    wanted = {entry.encode() for entry in entries}
    found = set()
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if wanted <= set(environment.split(b"\0")) and is_live(pid):
            found.add(pid)
    return found - {os.getpid()}


def has_open(pid: int, path: str) -> bool:
    """Whether a process has this file open; False where that cannot be seen."""
    place = f"/proc/{pid}/fd"
    try:
        wanted, names = os.stat(path), os.listdir(place)
    except OSError:
        return False
    for name in names:
        try:
            if os.path.samestat(wanted, os.stat(f"{place}/{name}")):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def send(pids: set[int], number: int) -> None:
    """Signal each process; those already gone, or not ours, are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def terminate(pids: set[int]) -> None:
    """Send SIGTERM, and SIGCONT so that a stopped process can handle it."""
    send(pids, signal.SIGTERM)
    send(pids, signal.SIGCONT)
