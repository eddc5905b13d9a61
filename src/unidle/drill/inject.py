"""Faults happen here, to real processes, links, disks and files. Each returns how it is undone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from unidle.atomic import replaced
from unidle.checkpoint.find import candidates
from unidle.checkpoint.layout import is_partial
from unidle.drill.scratch import PREFIX, tree
from unidle.drill.testbed import Testbed
from unidle.engine.local.ranks.cgroups import ControlGroup, hierarchies
from unidle.errors import CannotRun
from unidle.files.drill import Fault

Undo = Callable[[], None]
_MEASURE_S: Final = 1.0


class NotYet(Exception):
    """The fault cannot happen now, but may soon: for instance there is no checkpoint yet."""


def inject(testbed: Testbed, fault: Fault, chance: random.Random) -> Undo | None:
    """Let a fault happen. Raises :class:`NotYet`, and :class:`CannotRun` where it cannot happen at all."""
    return _ACTS[fault.kind](testbed, fault, chance)


def _kill(testbed: Testbed, fault: Fault, _chance: random.Random) -> None:
    pids = list(_needed(testbed, fault).values())
    if fault.target_kind == "node" and testbed.lab is not None:
        pids += _in_space(testbed.lab.space(fault.name))
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _stop(testbed: Testbed, fault: Fault, _chance: random.Random) -> Undo:
    stopped = [pid for first in _needed(testbed, fault).values() for pid in tree(first)]
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)

    return go_on


def _slow(testbed: Testbed, fault: Fault, _chance: random.Random) -> Undo:
    """Bound the CPU time of ranks to what they used, divided by the factor."""
    pids = _needed(testbed, fault)
    quotas = [Quota(pid, f"{testbed.place.parent.name}-{rank}") for rank, pid in pids.items()]
    before = [quota.used_ns() for quota in quotas]
    begun_ns = time.monotonic_ns()
    time.sleep(_MEASURE_S)
    passed_ns = time.monotonic_ns() - begun_ns
    for quota, used_ns in zip(quotas, before, strict=True):
        quota.bound(max((quota.used_ns() - used_ns) / passed_ns / fault.factor, 0.01))

    def as_before() -> None:
        for quota in quotas:
            quota.close()

    return as_before


def _network(testbed: Testbed, fault: Fault, _chance: random.Random) -> Undo:
    lab = testbed.lab
    assert lab is not None
    if fault.target_kind == "link":
        links = [testbed.drill.link(fault.name)]
    else:
        links = [(fault.name, other) for other in testbed.drill.nodes if other != fault.name]
    if fault.kind == "cut" and fault.target_kind == "node":
        lab.cut(fault.name)
        return lambda: lab.mend(fault.name)
    for a, b in links:
        if fault.kind == "cut":
            lab.cut(a, b)
        elif fault.kind == "rate":
            lab.limit(a, b, int(fault.mbit_per_s * 1e6))
        else:
            lab.delay(a, b, fault.ms)

    def mend() -> None:
        for a, b in links:
            lab.mend(a, b)

    return mend


def _disk_full(testbed: Testbed, _fault: Fault, _chance: random.Random) -> Undo:
    assert testbed.disk is not None
    testbed.disk.fill()
    return testbed.disk.empty


def _disk_slow(testbed: Testbed, fault: Fault, _chance: random.Random) -> Undo:
    disk = testbed.disk
    assert disk is not None
    disk.slow(fault.bytes_per_s)
    return lambda: disk.slow(0)


def _corrupt(testbed: Testbed, fault: Fault, chance: random.Random) -> None:
    newest = newest_checkpoint(testbed)
    if newest is None:
        raise NotYet("there is no checkpoint yet")
    files = [p for p in newest.rglob("*") if p.is_file()] if newest.is_dir() else [newest]
    largest = max(files, key=lambda path: (path.stat().st_size, path.name))
    if fault.how == "remove":
        if largest == newest:
            newest.unlink()
        else:
            shutil.rmtree(newest)
        return
    size = largest.stat().st_size
    if fault.how == "truncate":
        os.truncate(largest, size * 2 // 3)
        return
    with largest.open("r+b") as file:
        at = chance.randrange(size // 2, size)  # in the data: the head is at the front
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def _kernel_log(testbed: Testbed, fault: Fault, _chance: random.Random) -> None:
    node, line = fault.name, fault.line
    if fault.target_kind == "device":
        node, line = fault.name.rpartition("/")[0], line.replace("{pci}", testbed.pci_of(fault.name))
    with testbed.kernel_log(node).open("a") as file:
        file.write(f"[{time.clock_gettime(time.CLOCK_BOOTTIME):12.6f}] {line}\n")


def _nvml(testbed: Testbed, fault: Fault, _chance: random.Random) -> Undo:
    def write(change: Callable[[dict[str, float | bool]], object]) -> None:
        readings: dict[str, dict[str, float | bool]] = json.loads(testbed.readings.read_text())
        change(readings.setdefault(fault.name, {}))
        with replaced(testbed.readings, 0o666, umask=True) as file:
            file.write(json.dumps(readings).encode())

    value = fault.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    write(lambda device: device.update({fault.field: value}))
    return lambda: write(lambda device: device.pop(fault.field, None))


def _controller_kill(testbed: Testbed, _fault: Fault, _chance: random.Random) -> Undo:
    testbed.kill_controller()
    return testbed.start


def _power_cut(testbed: Testbed, _fault: Fault, _chance: random.Random) -> Undo:
    testbed.cut_power()
    return testbed.start


def newest_checkpoint(testbed: Testbed) -> Path | None:
    """The newest finished checkpoint of the job."""
    if testbed.checkpoint is None or not testbed.checkpoint.exists():
        return None
    for path in candidates(str(testbed.checkpoint)):
        if not is_partial(Path(path).name):
            return Path(path)
    return None


def _needed(testbed: Testbed, fault: Fault) -> dict[int, int]:
    pids = testbed.pids_of(fault.target)
    if not pids:
        raise NotYet(f"{fault.target} does not run")
    return pids


def _in_space(space: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        try:
            os.kill(pid, number)
        except PermissionError as error:
            raise CannotRun(
                f"process {pid} may not be signalled: {error.strerror}", remedy="run as root"
            ) from error


_ACTS: Final[dict[str, Callable[[Testbed, Fault, random.Random], Undo | None]]] = {
    "kill": _kill,
    "stop": _stop,
    "slow": _slow,
    "cut": _network,
    "delay": _network,
    "rate": _network,
    "disk_full": _disk_full,
    "disk_slow": _disk_slow,
    "corrupt_checkpoint": _corrupt,
    "kernel_log": _kernel_log,
    "nvml": _nvml,
    "controller_kill": _controller_kill,
    "power_cut": _power_cut,
}


_MOUNTS: Final = Path("/proc/self/mountinfo")


class Quota:
    """CPU time of process ``pid`` and all below it. Errors: :class:`CannotRun` where there is no cpu controller."""

    def __init__(self, pid: int, name: str) -> None:
        self._pid, self._made, self._home = pid, False, Path()
        self._v1 = False
        found = hierarchies(_MOUNTS.read_text(), Path(f"/proc/{pid}/cgroup").read_text())
        if "cpu" in found:
            self._v1, self._home = True, Path(found["cpu"][0])
            path = self._home
            if "unidle-" not in str(path):  # a group of all: one of its own for this rank
                path, self._made = self._home / f"{PREFIX.rstrip('-')}-{name}", True
            self._group = ControlGroup({"cpu": str(path)})
        elif "unified" in found:
            self._group = ControlGroup({"unified": found["unified"][0]})
        else:
            raise CannotRun(
                "CPU time cannot be bounded here: there is no cpu controller", remedy="leave slow out"
            )
        self._path = Path(next(iter(self._group.paths.values())))

    def used_ns(self) -> int:
        """CPU time so far."""
        total = 0
        for pid in tree(self._pid):
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/schedstat").read_text().split()
                tasks = list(Path(f"/proc/{pid}/task").iterdir())
                total += (
                    sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) if fields else 0
                )
        return total

    def bound(self, cpus: float) -> None:
        """At most so many CPUs from now on."""
        problems = self._group.create() if self._made or not self._v1 else []
        problems += self._group.limit(None, cpus, None)
        if problems:
            raise CannotRun(
                f"CPU time cannot be bounded: {problems[0]}", remedy="run as root, or leave slow out"
            )
        if self._made:
            for pid in tree(self._pid):
                self._move(pid, self._path)

    def close(self) -> None:
        """As before."""
        with contextlib.suppress(OSError):
            if not self._v1:
                (self._path / "cpu.max").write_text("max")
                return
            (self._path / "cpu.cfs_quota_us").write_text("-1")
            if self._made:
                for pid in (self._path / "cgroup.procs").read_text().split():
                    self._move(int(pid), self._home)
                self._path.rmdir()

    @staticmethod
    def _move(pid: int, path: Path) -> None:
        with contextlib.suppress(ProcessLookupError):
            (path / "cgroup.procs").write_text(str(pid))
