"""A bound on the CPU time of a running rank: by its own control group, or one made for it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from unidle.drill.scratch import PREFIX, tree
from unidle.engine.local.cgroups import Group, hierarchies
from unidle.errors import CannotRun

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
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
            self._group = Group({"cpu": str(path)})
        elif "unified" in found:
            self._group = Group({"unified": found["unified"][0]})
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
