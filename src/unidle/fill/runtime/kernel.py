"""Whether the kernel lets a filler give way to training, and the control group in which it does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from unidle.engine.local.ranks.cgroups import ControlGroup, detect, group_paths
from unidle.errors import CannotRun

PROCESSES_MOST: Final = 64  # of a filler, with its threads
_IDLE: Final = "cpu.idle"
_REMEDY: Final = "run as root, or in a delegated control group with the cpu controller (Linux 5.15 or newer); `unidle doctor` shows what is here"


def read(path: str) -> str:
    """A small file; empty where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the scheduler weighs a process by. ``group``: its path in the hierarchy of the cpu controller. ``autogroup``: the name of its
    session's group, which counts in the root group only. ``policy``: SCHED_IDLE or another.
    """

    group: str
    autogroup: str
    policy: int


def scheduling_of(pid: int) -> Scheduling:
    """As the kernel shows it now. Errors: CannotRun where the process is gone."""
    group = None
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if "cpu" in names.split(",") or (not names and group is None):
            group = path
    try:
        policy = os.sched_getscheduler(pid)
    except OSError:
        group, policy = None, 0
    if group is None:
        raise CannotRun("the process is gone", field="pid", value=pid, remedy="start it again")
    on = read("/proc/sys/kernel/sched_autogroup_enabled") == "1" and group == "/"
    return Scheduling(group, read(f"/proc/{pid}/autogroup").split(" ")[0] if on else "", policy)


def why_not(filler: Scheduling, training: Scheduling, idle_of: dict[str, str]) -> str | None:
    """Why the filler would take time from training; None where it gives way. Pure.

    ``idle_of``: content of ``cpu.idle`` of each group on the two paths. Shares are divided group by group, from the closest common
    one down. So the filler's branch below that has to be idle, and training's must not be. In one group SCHED_IDLE is enough. A nice value,
    or SCHED_IDLE in a group of its own, is not: a group of default weight gets half of the processor.
    """
    mine, other = _parts(filler.group), _parts(training.group)
    common = 0
    while common < min(len(mine), len(other)) and mine[common] == other[common]:
        common += 1
    for k in range(common + 1, len(other) + 1):
        if idle_of.get("/" + "/".join(other[:k])) == "1":
            return f"training itself is in an idle control group, /{'/'.join(other[:k])}"
    if training.policy == os.SCHED_IDLE:
        return "training itself has the policy SCHED_IDLE"
    if len(mine) > common:
        branch = "/" + "/".join(mine[: common + 1])
        if idle_of.get(branch) == "1":
            return None
        return (
            f"its control group {branch} has no cpu.idle 1, so it would get a group's share of the processors"
        )
    if len(other) > common:
        return f"training is in the control group {training.group} below that of the filler"
    if filler.autogroup != training.autogroup:
        return "its session has an autogroup of its own, with a share of the processors"
    if filler.policy != os.SCHED_IDLE:
        return "it has not the policy SCHED_IDLE"
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def idle_values(paths: list[str], mount: str) -> dict[str, str]:
    """Content of ``cpu.idle`` of each group on these paths, below the mount of the hierarchy."""
    found = {}
    for path in paths:
        parts = _parts(path)
        for k in range(1, len(parts) + 1):
            group = "/" + "/".join(parts[:k])
            found[group] = read(f"{mount}{group}/{_IDLE}")
    return found


def check_gives_way(filler: int, training: int, mount: str) -> None:
    """Errors: CannotRun with the reason, where the process ``filler`` would take time from ``training``."""
    mine, other = scheduling_of(filler), scheduling_of(training)
    reason = why_not(mine, other, idle_values([mine.group, other.group], mount))
    if reason is not None:
        raise CannotRun(
            f"a filler would slow training down: {reason}",
            field="fill",
            value=f"process {training}",
            remedy=_REMEDY,
        )


class FillGroup:
    """A control group with ``cpu.idle`` 1, and in it one for each filler. Errors: CannotRun where it cannot be made.

    ``idle`` False is for tests of other things on busy machines, where an idle group gets no time: nothing is checked then.
    """

    def __init__(self, name: str, *, idle: bool = True) -> None:
        self.name, self.parents, self.idle = name, detect(name), idle
        use = "cpu" if "cpu" in self.parents else "unified"
        if use not in self.parents:
            raise CannotRun(
                "no control group of the cpu controller can be made here, so a filler would slow training down",
                field="fill", remedy=_REMEDY,
            )  # fmt: skip
        self._top = f"{self.parents[use]}/{name}"
        self.mount = self._mount(use)
        self.members: list[ControlGroup] = []

    def _mount(self, use: str) -> str:
        """Where the root of the hierarchy is shown, as far as this process sees it."""
        own = scheduling_of(os.getpid()).group
        parent = self.parents[use]
        while use == "unified" and own != "/" and not parent.endswith(own):
            own = os.path.dirname(own)  # noqa: PTH120
        return parent.removesuffix(own.rstrip("/"))

    def add(self, name: str, memory_bytes: int) -> ControlGroup:
        """The group of one filler, with its limits. Errors: CannotRun."""
        group = ControlGroup(group_paths(self.parents, self.name, name))
        problems = group.create()
        self.members.append(group)
        try:
            with open(f"{self._top}/{_IDLE}", "w") as file:
                file.write(str(int(self.idle)))
        except OSError as error:
            self.close()
            raise CannotRun(
                f"the kernel does not let a control group be idle: {error.strerror}", field=f"{self._top}/{_IDLE}",
                remedy=_REMEDY,
            ) from None  # fmt: skip
        if problems and not group.paths:
            raise CannotRun(problems[0], field="fill", remedy=_REMEDY)
        group.limit(memory_bytes, None, PROCESSES_MOST)
        return group

    def close(self) -> bool:
        """End every process in it, and remove it; False while a process is left that the kernel has not ended."""
        gone = True
        for group in self.members:
            gone = end(group) and gone
        return gone


def end(group: ControlGroup, tries: int = 2000) -> bool:
    """Kill what is in a group, also what was frozen, and remove it."""
    import time

    for _ in range(tries):
        group.kill()
        group.thaw()
        if group.remove():
            return True
        time.sleep(0.01)
    return False
