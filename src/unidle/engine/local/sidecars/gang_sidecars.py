"""What a job has during and between its attempts: holders of copies in memory, checksums, a look before a restart.

What few jobs ask for is imported when one does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unidle.engine.local import launch
from unidle.engine.local.ranks import rundir
from unidle.engine.protocol import CheckpointLook, StartGang
from unidle.events.marks import Mark
from unidle.fleet import Fleet

if TYPE_CHECKING:
    from unidle.engine.local.ranks.saved_checkpoints import SavedCheckpoints
    from unidle.engine.local.sidecars.memory_holders import MemoryHolders


class GangSidecars:
    """Of all jobs of one engine; ``spaces`` are the network namespaces of nodes that have one."""

    def __init__(self, root: Path, fleet: Fleet, spaces: Mapping[str, str]) -> None:
        self._root, self._fleet, self._spaces = root, fleet, spaces
        self._holders: MemoryHolders | None = None
        self._saved: SavedCheckpoints | None = None
        self._workdirs: dict[str, str] = {}  # of jobs whose saves are followed

    def prepare(self, command: StartGang) -> None:
        """A gang starts or is adopted: start its holders if it requests them and they do not run, and follow its saves."""
        if command.spec.checkpoint_memory:
            nodes = dict.fromkeys(place.node for place in command.places)
            where = {n: (launch.address_of(self._fleet, n), self._spaces.get(n, "")) for n in nodes}
            self._of_holders().ensure(command, where)
        if command.spec.checkpoint_path is not None:
            if self._saved is None:
                from unidle.checkpoint.holder import wire
                from unidle.engine.local.ranks.saved_checkpoints import SavedCheckpoints

                self._saved = SavedCheckpoints(wire.environment)
            self._workdirs[command.job] = os.path.abspath(command.spec.workdir)

    def look(self, command: StartGang) -> None:
        """Read the newest checkpoint of a gang that is about to start."""
        if self._saved is not None and command.attempt > 1 and command.spec.checkpoint_path is not None:
            path = os.path.join(os.path.abspath(command.spec.workdir), command.spec.checkpoint_path)
            self._saved.look(command.job, command.attempt, path, aside=command.spec.quarantine_bad)

    def holds(self, job: str, attempt: int) -> bool:
        """Whether the gang's start waits for what is being read."""
        return self._saved is not None and self._saved.holds(job, attempt)

    @property
    def busy(self) -> bool:
        """Whether a gang waits."""
        return self._saved is not None and self._saved.busy

    def saw(self, job: str, marks: tuple[Mark, ...]) -> None:
        """Marks of a rank: what became durable is on them."""
        if self._saved is None or job not in self._workdirs:
            return
        for mark in marks:
            if mark.k == "saved" and mark.text:
                self._saved.saved(os.path.join(self._workdirs[job], mark.text))

    def poll(self) -> list[CheckpointLook]:
        """What was found since the last call; holders that were killed are started again."""
        if self._holders is not None:
            self._holders.tend()
        found = self._saved.poll() if self._saved is not None else []
        return [
            CheckpointLook(job, attempt, bad.path, bad.because, bad.moved_to, bad.step)
            for job, attempt, bad in found
        ]

    def finish(self, job: str) -> None:
        """The job has ended."""
        if self._holders is not None:
            self._holders.finish(job)
        self._workdirs.pop(job, None)

    def keep(self, jobs: Collection[str]) -> None:
        """End what an earlier engine left for jobs other than these."""
        if (self._root / rundir.HOLDERS).exists():
            self._of_holders().keep(jobs)

    def close(self) -> None:
        if self._holders is not None:
            self._holders.close()
        if self._saved is not None:
            self._saved.close()

    def _of_holders(self) -> MemoryHolders:
        if self._holders is None:
            from unidle.engine.local.sidecars.memory_holders import MemoryHolders

            self._holders = MemoryHolders(self._root)
        return self._holders
