"""The ranks that boxes of this host hold, as the files of their run directories show them. The boxes are not asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unidle.engine.local.ranks import process_tree, rundir
from unidle.engine.local.ranks.cgroups import ControlGroup
from unidle.engine.local.ranks.spawned import is_same, spawned

Key = tuple[str, int]
"""Job and attempt."""


@dataclass(frozen=True, slots=True)
class HeldProcess:
    """A rank whose process was there at the last look. ``supervisor``: the parent of all that belongs to it."""

    rank: int
    pid: int
    ticks: int
    supervisor: int
    group: ControlGroup

    @property
    def state(self) -> Literal["alive", "gone"]:
        return "alive" if is_same(self.pid, self.ticks) else "gone"

    def pids(self) -> set[int]:
        """Every process of the rank."""
        return self.group.members() | process_tree.descendants(self.supervisor)

    def cpu_ns(self) -> int | None:
        """CPU time that the rank has used: its group's, else its processes'; None where neither can be read."""
        used_ns = self.group.cpu_ns()
        return process_tree.cpu_ns(self.supervisor) if used_ns is None else used_ns


class HeldRanks:
    """Ranks of the boxes below ``root``, one directory for each job, with the run root ``runs`` in it."""

    def __init__(self, root: Path, runs: str) -> None:
        self._root, self._runs = root, runs
        self._found: dict[Key, dict[int, HeldProcess]] = {}
        self._over: set[tuple[str, int, int]] = set()  # ranks whose process has ended: none is started twice

    @property
    def live(self) -> dict[Key, dict[int, HeldProcess]]:
        """As of the last look: ranks by attempt."""
        return self._found

    def look(self, jobs: Iterable[str]) -> None:
        """Find the ranks of the boxes of these jobs."""
        found: dict[Key, dict[int, HeldProcess]] = {}
        over = set()
        for job in jobs:
            for attempt, directory in _numbered(self._root / job / self._runs / job, ""):
                if Path(directory, rundir.RELEASED).exists():
                    continue
                known = self._found.get((job, attempt), {})
                for rank, place in _numbered(directory, "rank"):
                    name = (job, attempt, rank)
                    held = None if name in self._over else known.get(rank) or _process_of(rank, place)
                    if held is not None and held.state == "alive":
                        found.setdefault((job, attempt), {})[rank] = held
                    elif held is not None or name in self._over:
                        over.add(name)
        self._found, self._over = found, over


def _process_of(rank: int, directory: str) -> HeldProcess | None:
    """None while its supervisor has not started it."""
    process = spawned(directory)
    supervisor = (rundir.read_json(f"{directory}/{rundir.SUPERVISOR}") or {}).get("pid")
    if process is None or not isinstance(supervisor, int):
        return None
    groups = (rundir.read_json(f"{directory}/{rundir.ORDERS}") or {}).get("groups")
    paths = {str(use): str(path) for use, path in groups.items()} if isinstance(groups, dict) else {}
    return HeldProcess(rank, *process, supervisor, ControlGroup(paths))


def _numbered(directory: str | Path, prefix: str) -> Iterator[tuple[int, str]]:
    """Number and path of each directory whose name is the prefix and a number."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - twice a second: half the time
    except OSError:
        return
    for name in names:
        rest = name[len(prefix) :] if name.startswith(prefix) else ""
        if rest.isascii() and rest.isdigit() and len(rest) < 10:
            yield int(rest), f"{directory}/{name}"
