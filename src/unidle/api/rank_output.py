"""What ranks printed, for reports: from files of this machine, or from the hosts of the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun
from unidle.private import plain_file
from unidle.report.rank_output import NoOutput, RankOutput, UnknownOutput
from unidle.view.jobs import JobView

if TYPE_CHECKING:
    from unidle.api.open_hosts import HostsOfStore
    from unidle.store.protocol import Store

_FILLS_MOST: Final = 16 << 20


class LocalOutput:
    """Of jobs whose run directories are below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, job: str) -> bool:
        return (self._root / job).exists()

    def has_all(self, job: str) -> bool:
        """Whether the job ran here, so that nothing of its output is elsewhere."""
        return self.has(job) and not (self._root / job / rundir.COPIED).exists()

    def end(self, job: JobView, attempt: int, rank: int, most_bytes: int) -> tuple[bytes, int]:
        """Errors: NoOutput."""
        path = Path(rundir.rank_dir(self._root, job.id, attempt, rank), rundir.LOG)
        try:
            with plain_file(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - most_bytes, 0))
                return file.read(most_bytes), size
        except OSError as error:
            raise NoOutput(f"the output of rank {rank} cannot be read: {error.strerror}") from error

    def fills(self, job: JobView) -> bytes:
        """Of a file that is longer than 16 MiB the begin."""
        try:
            with plain_file(self._root / job.id / rundir.FILLS) as file:
                return file.read(_FILLS_MOST)
        except (OSError, ValueError):
            return b""


class HostOutput:
    """Of jobs on hosts, by way of their controller; of those that ran on this machine ``local``."""

    def __init__(self, connect: Callable[[], HostsOfStore], local: LocalOutput) -> None:
        self._connect, self._local = connect, local
        self._files: HostsOfStore | None = None
        self._why_not = ""

    def end(self, job: JobView, attempt: int, rank: int, most_bytes: int) -> tuple[bytes, int]:
        """Errors: NoOutput. A controller that does not answer is asked once."""
        from unidle.hub.file_parts import NotThere

        if self._local.has_all(job.id):
            return self._local.end(job, attempt, rank, most_bytes)
        node = job.attempts[attempt - 1].places[rank].node
        try:
            part = self._opened().part(node, (job.id, attempt, rank), rundir.LOG, -most_bytes, most_bytes)
        except NotThere as error:
            raise NoOutput(f"the output of rank {rank} cannot be read on host {node}: {error}") from error
        except CannotRun as error:
            if self._local.has(job.id):  # what a controller kept
                return self._local.end(job, attempt, rank, most_bytes)
            self._why_not = error.problem
            raise NoOutput(self._why_not) from error
        return part.data, part.size_bytes

    def fills(self, job: JobView) -> bytes:
        """Fillers run where `unidle fill` runs, so next to a controller and not on its hosts."""
        return self._local.fills(job)

    def _opened(self) -> HostsOfStore:
        if self._why_not:
            raise CannotRun(self._why_not)
        if self._files is None:
            self._files = self._connect()
        return self._files

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


@contextmanager
def rank_output(store: Store, data_dir: Path | None, job: str | None) -> Iterator[RankOutput]:
    """For a report of one job, which may be archived, or of all. ``data_dir``: see :func:`unidle.report.write.write_report`."""
    from unidle.api.open_hosts import HostsOfCluster, LocalHosts
    from unidle.control.retention.archive import runs_of
    from unidle.control.store_files import run_root, state_dir
    from unidle.hub.place import has_hosts
    from unidle.store.cluster import calls_of

    calls = calls_of(store)
    if not data_dir and calls is None and not store.url.startswith("sqlite:///"):
        yield UnknownOutput()
        return
    place = data_dir or Path()
    local = LocalOutput(runs_of(store, place, job) if job else run_root(store, place))
    state = state_dir(store, place)
    if calls is None and not has_hosts(state):
        yield local
        return
    connect: Callable[[], HostsOfStore] = (
        LocalHosts(state) if calls is None else partial(HostsOfCluster, calls)
    )
    hosts = HostOutput(connect, local)
    try:
        yield hosts
    finally:
        hosts.close()
