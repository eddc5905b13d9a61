"""Control groups of ranks: limits, kill, freeze, peak memory and pressure.

What a machine offers is found by trying. A hierarchy is a mapping from a use to the directory that
serves it: ``unified`` (v2) and the v1 controllers ``memory``, ``cpu``, ``cpuacct``, ``pids`` and
``freezer``. On a pure v2 machine there is only ``unified``; on a hybrid one ``unified`` serves kill,
freeze and pressure, and v1 the rest. Where both could, v1 is used when its controller is mounted,
because v2 does not have it then.

Standard library only, and few modules of it: the supervisor imports this file.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # importing typing would cost the supervisor a quarter of its start
if TYPE_CHECKING:
    from collections.abc import Callable

CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "freezer")
_PROBE = "probe"  # with the number of the process that looks
V2_CONTROLLERS = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000


class ControlGroup:
    """The control group of one rank, over all hierarchies; ``paths`` maps a use to its directory.

    Every method is safe when the group, or part of it, does not exist.
    """

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = paths

    @property
    def _v2(self) -> str | None:
        return self.paths.get("unified")

    def create(self, *, cpu: bool = True) -> list[str]:
        """Make the directories; returns what could not be made, in words, and forgets those.

        v2's ``cpu`` is handed down only on request: it is a unit of scheduling, so next to other work
        every rank would get the share of one process.
        """
        problems = []
        wanted = [c for c in V2_CONTROLLERS if cpu or c != "cpu"]
        for use, path in list(self.paths.items()):
            try:
                _make(path, wanted if use == "unified" else [])
            except OSError as error:
                problems.append(f"no control group for {use}: {error.strerror}")
                del self.paths[use]
        return problems

    def limit(self, memory_bytes: int | None, cpus: float | None, pids: int | None) -> list[str]:
        """Set the limits that are not None; returns the ones that cannot be set, in words."""
        problems = []
        if memory_bytes is not None and not self._limit_memory(memory_bytes):
            problems.append("the memory limit is not enforced: no memory controller here")
        if cpus is not None and not self._limit_cpu(cpus):
            problems.append("the CPU limit is not enforced: no cpu controller here")
        if pids is not None and not self._set("pids", "pids.max", "pids.max", str(pids)):
            problems.append("the limit on processes is not enforced: no pids controller here")
        return problems

    def join(self) -> list[str]:
        """Move the calling process in; returns the directories that refused it."""
        refused = []
        for path in self.paths.values():
            try:
                _write(f"{path}/cgroup.procs", "0")
            except OSError:
                refused.append(path)
        return refused

    def members(self) -> set[int]:
        """Processes in the group; zombies may be among them."""
        found: set[int] = set()
        for path in self.paths.values():
            for line in text_of(f"{path}/cgroup.procs").split():
                found.add(int(line))
        return found - {0}

    def kill(self) -> None:
        """SIGKILL every process, also those that fork meanwhile."""
        if self._v2 and _try_write(f"{self._v2}/cgroup.kill", "1"):
            return
        frozen = self.freeze()
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if frozen:
            self.thaw()

    def freeze(self, wait_s: float = 1.0) -> bool:
        """Stop every process from running; True when all are frozen within ``wait_s``."""
        if self._v2 and _try_write(f"{self._v2}/cgroup.freeze", "1"):
            events = f"{self._v2}/cgroup.events"
            return _until(lambda: _field(text_of(events), "frozen") == 1, wait_s)
        freezer = self.paths.get("freezer")
        if freezer is None or not _try_write(f"{freezer}/freezer.state", "FROZEN"):
            return False
        return _until(lambda: text_of(f"{freezer}/freezer.state").strip() == "FROZEN", wait_s)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        if self._v2:
            _try_write(f"{self._v2}/cgroup.freeze", "0")
        if "freezer" in self.paths:
            _try_write(f"{self.paths['freezer']}/freezer.state", "THAWED")

    def usage(self) -> dict[str, int | bool]:
        """What the group used: ``peak_bytes``, ``cpu_ns``, ``oom``, ``pressure_*_us``; only what is known."""
        found: dict[str, int | bool] = {}
        peak = self._get("memory", "memory.max_usage_in_bytes", "memory.peak")
        if peak.strip().isdigit():
            found["peak_bytes"] = int(peak)
        kills = _field(self._get("memory", "memory.oom_control", "memory.events"), "oom_kill")
        if kills is not None:
            found["oom"] = kills > 0
        cpu_ns = self.cpu_ns()
        if cpu_ns is not None:
            found["cpu_ns"] = cpu_ns
        for what in ("cpu", "memory", "io"):
            total = _pressure_us(text_of(f"{self._v2}/{what}.pressure")) if self._v2 else None
            if total is not None:
                found[f"pressure_{what}_us"] = total
        return found

    def remove(self) -> bool:
        """Remove the group and its parent where that is empty; False while something is left in it."""
        gone = True
        for path in self.paths.values():
            gone = remove_tree(path) and gone
            try:
                os.rmdir(os.path.dirname(path))
            except OSError:
                pass  # other ranks are in there
        return gone

    def _limit_memory(self, limit: int) -> bool:
        if not self._set("memory", "memory.limit_in_bytes", "memory.max", str(limit)):
            return False
        # without this a rank would swap instead of being stopped at its limit
        self._set(
            "memory",
            "memory.memsw.limit_in_bytes",
            "memory.swap.max",
            str(limit if self.v1("memory") else 0),
        )
        return True

    def _limit_cpu(self, cpus: float) -> bool:
        quota = max(1000, int(cpus * CPU_PERIOD_US))
        v1 = self.v1("cpu")
        if v1 is None:
            return self._set("cpu", "", "cpu.max", f"{quota} {CPU_PERIOD_US}")
        return _try_write(f"{v1}/cpu.cfs_period_us", str(CPU_PERIOD_US)) and _try_write(
            f"{v1}/cpu.cfs_quota_us", str(quota)
        )

    def cpu_ns(self) -> int | None:
        """CPU time that the group has used; None where it is not known."""
        text = text_of(f"{self.v1('cpuacct')}/cpuacct.usage") if self.v1("cpuacct") else ""
        if text.strip().isdigit():
            return int(text)
        usage_us = _field(text_of(f"{self._v2}/cpu.stat"), "usage_usec") if self._v2 else None
        return None if usage_us is None else usage_us * 1000

    def v1(self, controller: str) -> str | None:
        """Where v1 serves a controller."""
        return self.paths.get(controller)

    def _get(self, controller: str, v1_name: str, v2_name: str) -> str:
        v1 = self.v1(controller)
        if v1:
            return text_of(f"{v1}/{v1_name}")
        return text_of(f"{self._v2}/{v2_name}") if self._v2 else ""

    def _set(self, controller: str, v1_name: str, v2_name: str, value: str) -> bool:
        v1 = self.v1(controller)
        if v1:
            return _try_write(f"{v1}/{v1_name}", value)
        return bool(self._v2) and _try_write(f"{self._v2}/{v2_name}", value)


def hierarchies(mounts: str, own: str) -> dict[str, list[str]]:
    """Where groups might be made: use -> directories, the best first.

    ``mounts`` is the text of /proc/self/mountinfo, ``own`` that of /proc/self/cgroup. For v2 the
    ancestors of this process's own group follow it, because a group that holds processes cannot
    hand controllers down.
    """
    homes = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(",") if names else ["unified"]:
            homes[name] = path
    found: dict[str, list[str]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2" and "unified" in homes:
            home = _inside(point, root, homes["unified"])
            found["unified"] = _up_to(point, home)
        elif kind == "cgroup":
            for name in options.split(" ")[-1].split(","):
                if name in CONTROLLERS and name in homes:
                    found[name] = [_inside(point, root, homes[name])]
    return found


def usable(candidates: dict[str, list[str]], name: str) -> dict[str, str]:
    """Of each use the first directory in which groups below ``name`` work; leaves nothing behind.

    For v2 a directory that hands down all of memory, cpu and pids (those that v1 does not serve)
    is preferred to one that does not.
    """
    chosen = {}
    for use, directories in candidates.items():
        wanted = [c for c in V2_CONTROLLERS if c not in candidates] if use == "unified" else []
        ranked = []
        for order, directory in enumerate(directories):
            offered = _offers(directory, name, v2=use == "unified")
            if offered is not None:
                ranked.append((-len([c for c in wanted if c in offered]), order, directory))
        if ranked:
            chosen[use] = min(ranked)[2]
    return chosen


def own_hierarchies() -> dict[str, list[str]]:
    """Where this process might make groups: see :func:`hierarchies`."""
    return hierarchies(text_of("/proc/self/mountinfo"), text_of("/proc/self/cgroup"))


def detect(name: str) -> dict[str, str]:
    """The hierarchies that this process can use for groups below ``name``; empty when there are none."""
    return usable(own_hierarchies(), name)


def group_name(run_root: str) -> str:
    """What the groups of all ranks below an absolute run root are in."""
    import hashlib  # only where a group is named: the supervisor gets its paths

    return "unidle-" + hashlib.sha256(os.fsencode(run_root)).hexdigest()[:8]


def group_paths(parents: dict[str, str], name: str, rank: str) -> dict[str, str]:
    """The directories of the group ``name/rank``."""
    return {use: f"{parent}/{name}/{rank}" for use, parent in parents.items()}


def needed(groups: dict[str, str], cpus: float | None) -> dict[str, str]:
    """The control groups, without v1's ``cpu`` unless a CPU limit needs it.

    The ``cpu`` group is a unit of scheduling: next to other work, a whole gang would get the share of one process.
    """
    cpu = groups.get("cpu") if cpus is None else None  # often one directory with cpuacct
    return {use: path for use, path in groups.items() if path != cpu}


def capabilities(parents: dict[str, str], name: str) -> dict[str, str]:
    """What groups below ``name`` can do here, in words: use -> "yes (by what)" or "no: why, and what instead"."""
    group = ControlGroup(group_paths(parents, name, "probe"))
    group.create()
    try:
        v1 = [use for use in group.paths if use != "unified"]
        v2 = group.paths.get("unified")
        kind = {(True, True): "hybrid", (True, False): "v1", (False, True): "v2"}.get(
            (bool(v1), bool(v2)), "none"
        )

        def v1_has(controller: str) -> str | None:
            return f"yes (v1 {controller})" if controller in v1 else None

        def v2_has(file: str) -> str | None:
            return f"yes (v2 {file})" if v2 and os.path.exists(f"{v2}/{file}") else None

        no_limit = "no: a limit in a job file is noted, not enforced"
        return {
            "cgroup": kind,
            "memory limit": v1_has("memory") or v2_has("memory.max") or no_limit,
            "cpu limit": v1_has("cpu") or v2_has("cpu.max") or no_limit,
            "pids limit": v1_has("pids") or v2_has("pids.max") or no_limit,
            "peak memory": v1_has("memory")
            or v2_has("memory.peak")
            or "no: largest process only (ru_maxrss)",
            "kill tree": v2_has("cgroup.kill")
            or v1_has("freezer")
            or "by /proc: descendants of the supervisor",
            "freeze": v2_has("cgroup.freeze") or v1_has("freezer") or "by SIGSTOP: processes can notice",
            "pressure": v2_has("cpu.pressure") or "no",
        }
    finally:
        group.remove()


def _make(path: str, controllers: list[str]) -> None:
    """mkdir with v2 ``controllers`` handed down, also of the parent, which a neighbour that ends may remove at any moment."""
    parent = os.path.dirname(path)
    for last in (False, False, True):
        try:
            os.makedirs(parent, 0o755, exist_ok=True)
            for directory in (os.path.dirname(parent), parent):
                for controller in controllers:
                    _try_write(f"{directory}/cgroup.subtree_control", f"+{controller}")
            os.makedirs(path, 0o755, exist_ok=True)
            return
        except FileNotFoundError:
            if last:
                raise


def _offers(directory: str, name: str, *, v2: bool) -> set[str] | None:
    """Controllers of a group made in ``directory``; None when it cannot be made or not be joined."""
    # a process may be moved only by who may write to the closest group above both ends
    if v2 and not os.access(f"{directory}/cgroup.procs", os.W_OK):
        return None
    remove_probes(f"{directory}/{name}")
    probe = ControlGroup({"unified" if v2 else "v1": f"{directory}/{name}/{_PROBE}{os.getpid()}"})
    try:
        if probe.create() or not os.access(f"{next(iter(probe.paths.values()))}/cgroup.procs", os.W_OK):
            return None
        return set(text_of(f"{next(iter(probe.paths.values()))}/cgroup.controllers").split())
    finally:
        probe.remove()


def remove_probes(directory: str) -> None:
    """Remove what processes that were killed while they looked have left in ``directory``, and it where nothing else is in it."""
    try:
        left = [one for one in os.listdir(directory) if one.startswith(_PROBE)]
    except OSError:
        return
    for one in left:
        if not os.path.exists(f"/proc/{one[len(_PROBE) :]}"):
            _rmdir(f"{directory}/{one}")
    if left:
        _rmdir(directory)


def _inside(point: str, root: str, path: str) -> str:
    """Where the group ``path`` is, when the mount at ``point`` shows the hierarchy from ``root`` on."""
    if root != "/" and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return f"{point}{path}".rstrip("/")


def _up_to(point: str, home: str) -> list[str]:
    chain = [home]
    while chain[-1] != point and len(chain[-1]) > len(point):
        chain.append(os.path.dirname(chain[-1]))
    return chain


def _below(path: str) -> list[str]:
    """``path`` and the groups that its processes made in it, the deepest first."""
    found = [directory for directory, _, _ in os.walk(path)]
    return found[::-1]


def remove_tree(path: str) -> bool:
    """Remove a group and all groups in it; False while processes are left in one."""
    gone = True
    for directory in _below(path):
        gone = _rmdir(directory) and gone
    return gone


def _rmdir(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def text_of(path: str) -> str:
    """What a file of the kernel has; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode("ascii"))
    finally:
        os.close(fd)


def _try_write(path: str, value: str) -> bool:
    try:
        _write(path, value)
    except OSError:
        return False
    return True


def _field(text: str, name: str) -> int | None:
    """The number after ``name`` in lines of "name number"."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _pressure_us(text: str) -> int | None:
    """Microseconds in which some task was stalled, from a PSI file."""
    for line in text.splitlines():
        if line.startswith("some ") and "total=" in line:
            return int(line.rpartition("total=")[2])
    return None


def _until(condition: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
