"""Where jobs work and save, by node: for the checks of a node, which count faults of their file systems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from unidle.control.nodes.storage_watch import directories_of
from unidle.view.state import View

_MOST_JOBS: Final = 256
_MOST_PATHS: Final = 512
_MOST_CHARS: Final = 128 * 1024  # a command line and a frame have limits


class UsedDirectories:
    """Of jobs that run, and with ``waiting`` also of those that do not run now.

    ``elsewhere``: each node is a machine of its own. A node's directories are then those of the jobs that run on it; a job
    that waits may start on any node. Else all nodes have the same file systems.
    """

    def __init__(self, view: View, *, elsewhere: bool, waiting: bool) -> None:
        self._view, self._elsewhere = view, elsewhere
        self._on: dict[str, list[str]] = {}
        live = sorted(view.live)
        if elsewhere:
            for job in live:
                for node in {place.node for place in view.jobs.open[job].attempts[-1].places}:
                    self._on.setdefault(node, []).append(job)
        self._everywhere = [] if elsewhere else live
        if waiting:
            self._everywhere += [job for job in view.jobs.open if job not in view.live]

    def of(self, node: str) -> tuple[str, ...]:
        """Absolute paths, those of the jobs that run first."""
        return _bounded(self._view, dict.fromkeys([*self._on.get(node, ()), *self._everywhere]))


def _bounded(view: View, jobs: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    chars = 0
    for job in list(jobs)[:_MOST_JOBS]:
        for path in directories_of(view.jobs.open[job].spec):
            if path in found:
                continue
            chars += len(path)
            if chars > _MOST_CHARS or len(found) >= _MOST_PATHS:
                return tuple(found)
            found[path] = None
    return tuple(found)
