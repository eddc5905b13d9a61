"""The control groups of a cluster: everything it starts is in them, so everything can be found and ended.

Groups of version 1 (also next to an empty version 2) and of version 2 alone. A daemon joins all hierarchies but those of
processor time, processor sets and devices: in the first it would share the time of one process with all others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from unidle.errors import CannotRun, UnidleError

DAEMONS: Final = "daemons"
_NOT_JOINED: Final = {"cpu", "cpuset", "devices"}
_NEEDED: Final = {"cpu", "cpuacct", "cpuset", "memory"}
_V2_NEEDED: Final = {"cpu", "cpuset", "memory", "pids"}
_END_LIMIT_S: Final = 30.0


class Hierarchy(NamedTuple):
    """A mounted tree of groups. ``controllers`` is empty for version 2, and for a named one of version 1."""

    top: Path
    controllers: frozenset[str]
    version: int


@cache
def hierarchies() -> tuple[Hierarchy, ...]:
    """All of this machine. Errors: CannotRun where a kubelet could not work with them."""
    found: dict[Path, Hierarchy] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        top = Path(before.split()[4])
        names = frozenset(options.split(",")) - {"rw", "ro"} if kind == "cgroup" else frozenset()
        controllers = frozenset(name for name in names if "=" not in name and name != "xattr")
        found.setdefault(top, Hierarchy(top, controllers, 1 if kind == "cgroup" else 2))
    _check(tuple(found.values()))
    return tuple(found.values())


def _check(found: tuple[Hierarchy, ...]) -> None:
    have = frozenset[str]().union(*(hierarchy.controllers for hierarchy in found))
    needed = _NEEDED
    if not have and found:
        needed, have = _V2_NEEDED, frozenset((found[0].top / "cgroup.controllers").read_text().split())
    if missing := needed - have:
        raise CannotRun(
            f"no control groups for {', '.join(sorted(missing))} are mounted",
            remedy="mount them below /sys/fs/cgroup",
        )


def make(group: str) -> None:
    """The group ``CLUSTER/NODE`` in each hierarchy, with a place for its daemons."""
    for hierarchy in hierarchies():
        path = hierarchy.top
        for part in Path(group).parts:
            if hierarchy.version == 2 and not any(h.controllers for h in hierarchies()):
                _hand_down(path)
            path /= part
            path.mkdir(exist_ok=True)
            _fill(path, hierarchy.controllers)
        if hierarchy.version == 2 and not any(h.controllers for h in hierarchies()):
            _hand_down(path)
        if joined(hierarchy):
            (path / DAEMONS).mkdir(exist_ok=True)


def _hand_down(path: Path) -> None:
    """Version 2: groups below may have every controller that this one has."""
    for name in (path / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # one that cannot be had there
            (path / "cgroup.subtree_control").write_text(f"+{name}")


def _fill(path: Path, controllers: frozenset[str]) -> None:
    """Version 1: a new processor set is empty; and the whole cluster would weigh as much as one process."""
    if "cpuset" in controllers:
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (path / name).read_text().strip():
                (path / name).write_text((path.parent / name).read_text())
    if "cpu" in controllers:
        (path / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))


def joined(hierarchy: Hierarchy) -> bool:
    """Whether daemons are in it."""
    return not hierarchy.controllers & _NOT_JOINED


def join_script(group: str) -> str:
    """Shell commands with which a process joins, and fails where the cluster was taken down meanwhile."""
    files = [
        hierarchy.top / group / DAEMONS / "cgroup.procs" for hierarchy in hierarchies() if joined(hierarchy)
    ]
    return "set -e\n" + "".join(f"echo $$ > '{file}'\n" for file in files)


def members(group: str) -> dict[int, str]:
    """Processes in the group and below it, with the part of the path that follows the group."""
    found: dict[int, str] = {}
    for path in _all(group):
        with contextlib.suppress(OSError):  # gone meanwhile
            for pid in (path / "cgroup.procs").read_text().split():
                below = str(path).partition(group)[2].strip("/")
                if len(below) >= len(found.get(int(pid), "")):
                    found[int(pid)] = below
    return found


def memory_bytes(group: str) -> int:
    """Resident memory of all processes in the group; shared pages count once for each."""
    total = 0
    for pid in members(group):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def _all(group: str) -> Iterator[Path]:
    """Directories of the group in all hierarchies, the deepest first."""
    for hierarchy in hierarchies():
        if (hierarchy.top / group).is_dir():
            for place, _, _ in os.walk(hierarchy.top / group, topdown=False):
                yield Path(place)


def exists(group: str) -> bool:
    return any((hierarchy.top / group).is_dir() for hierarchy in hierarchies())


def remove(group: str) -> int:
    """End every process in the group, then remove it; returns how many processes that were.

    Errors: UnidleError if it is still there after half a minute.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + _END_LIMIT_S
    while exists(group):
        for path in _all(group):
            _thaw(path)
        for pid in members(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            ended.add(pid)
        for path in _all(group):
            with contextlib.suppress(OSError):  # busy until its last process is gone
                path.rmdir()
        if time.monotonic() > deadline:
            left = ", ".join(map(str, sorted(members(group)))) or "none"
            raise UnidleError(f"the control group {group} cannot be removed; processes in it: {left}")
        if exists(group):
            time.sleep(0.02)
    return len(ended)


def _thaw(path: Path) -> None:
    for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        if (path / name).exists():
            with contextlib.suppress(OSError):
                (path / name).write_text(word)


def shell() -> str:
    """The shell that runs :func:`join_script`."""
    return shutil.which("sh") or "/bin/sh"
