"""Checks the mounts that hold the directories of running jobs, and gives the events that follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.control.gangs.storage_stalls import mount_stalls
from unidle.events import types as ev
from unidle.jobs import JobSpec
from unidle.probe.mount_watch import MountWatch
from unidle.view.state import View

STORAGE: Final = "storage"
_LOOK_EVERY_NS: Final = 500_000_000


class StorageWatch:
    """Of all jobs that run on this machine; ``locks``: see :class:`~unidle.probe.mount_watch.MountWatch`."""

    def __init__(self, locks: Path) -> None:
        self._mounts = MountWatch(locks)
        self._next_ns = 0

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow from what the mounts answered. Each has to be applied before the next. Never waits."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_EVERY_NS
        used = {job: directories_of(view.jobs.open[job].spec) for job in sorted(view.live)}
        asked = self._mounts.look({path for paths in used.values() for path in paths}, now_ns)
        yield from self._sights(view)
        for job, paths in used.items():
            yield from mount_stalls(view, job, {path: asked[path] for path in paths if path in asked}, now_ns)

    def close(self) -> None:
        self._mounts.close()

    def _sights(self, view: View) -> Iterator[ev.WatchSet]:
        """Nodes of running jobs whose mounts cannot be checked, and those where that is over."""
        why = self._mounts.why_not()
        attempts = [view.jobs.open[job].attempts[-1] for job in view.live] if why else []
        blind = {place.node for attempt in attempts for place in attempt.places}
        known = {node: told[STORAGE].why_not for node, told in view.watching.items() if STORAGE in told}
        for node in sorted(blind | known.keys()):
            says = why if node in blind else ""
            if known.get(node) != says:
                yield ev.WatchSet(node, STORAGE, says)


def directories_of(spec: JobSpec) -> tuple[str, ...]:
    """Where a job works and saves, as absolute paths."""
    workdir = os.path.abspath(spec.workdir)  # noqa: PTH100 - pathlib would look links up
    if spec.checkpoint_path is None:
        return (workdir,)
    return workdir, os.path.join(workdir, spec.checkpoint_path)  # noqa: PTH118
