"""The work of retention on files, in a thread with a store connection of its own: the controller never waits for it.

It rests after each piece of work, so that it uses at most a third of the time of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeAlias

from unidle.control.retention import removal
from unidle.control.retention.archive import pack
from unidle.engine.local.ranks import rundir
from unidle.errors import LeaseLost, UnidleError
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.store.profiles import ProfileShelf
from unidle.store.sql import SqlStore


@dataclass(frozen=True, slots=True)
class FilesFound:
    """What was found: jobs with any file or archive, of these those with a run directory, and sizes if requested."""

    names: frozenset[str]
    loose: frozenset[str]
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunPacked:
    """A job's run directory is in the store, or that failed (``again``: it is in use, so try later; ``problems``: why)."""

    job: str
    again: bool = False
    problems: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SizesMeasured:
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FilesFreed:
    """Files of removed jobs were deleted; ``problems``: what could not be done."""

    problems: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


Done: TypeAlias = FilesFound | RunPacked | SizesMeasured | FilesFreed


class _Stopped(Exception):
    """The controller stops."""


class RetentionWorker:
    """Does what it is given, in order. ``address`` of the store, ``token`` of the controller's lease.

    The thread starts with the first order. A store that cannot be written is tried again with the next order.
    """

    def __init__(self, address: str, state: Path, token: int) -> None:
        self._address, self._state, self._token = address, state, token
        self._orders: SimpleQueue[Callable[[SqlStore], Done] | None] = SimpleQueue()
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._stop = Event()
        self._thread: Thread | None = None

    def scan(self, *, measure: bool) -> None:
        """List what there is."""
        self._put(lambda store: self._scan(store, measure=measure))

    def measure(self, job: str) -> None:
        """Find out what a job's files take."""
        self._put(lambda store: SizesMeasured({job: self._size(store, job)}))

    def pack(self, job: str) -> None:
        """Compress a job's run directory into the store, then delete it."""
        self._put(lambda store: self._pack(store, job))

    def remove(self, jobs: tuple[str, ...]) -> None:
        """Delete all files of jobs whose removal is in the log."""
        self._put(lambda store: self._remove(store, jobs))

    def results(self) -> list[Done]:
        """What was done since the last call."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._done.get_nowait())
        return found

    def close(self) -> None:
        """End the thread; what it has not done is left to the next controller."""
        self._stop.set()
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join()

    def _put(self, order: Callable[[SqlStore], Done]) -> None:
        self._orders.put(order)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="retention", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        store: SqlStore | None = None
        while (order := self._orders.get()) is not None and not self._stop.is_set():
            begin = time.perf_counter()
            try:
                store = open_store(self._address, create=False) if store is None else store
                self._done.put(order(store))
            except (LeaseLost, _Stopped):
                break
            except (UnidleError, OSError) as error:
                self._done.put(FilesFreed((str(error),)))
                if store is not None:
                    store.close()
                    store = None
            self._stop.wait(2 * (time.perf_counter() - begin))
        if store is not None:
            store.close()

    def _scan(self, store: SqlStore, *, measure: bool) -> FilesFound:
        shelf = ArchiveShelf(store)
        runs = self._state / "runs"
        there = {path.name for path in runs.iterdir()} if runs.is_dir() else set()
        loose = frozenset(name for name in there if not name.startswith("."))
        names = frozenset(removal.with_files(self._state)) | shelf.jobs()
        sizes: dict[str, int] = {}
        if measure:
            archived = shelf.sizes()
            for name in sorted(names):
                begin = time.perf_counter()
                sizes[name] = archived.get(name, 0) + self._on_disk(name)
                if self._stop.wait(time.perf_counter() - begin):
                    raise _Stopped
        return FilesFound(names, loose, sizes)

    def _size(self, store: SqlStore, job: str) -> int:
        return ArchiveShelf(store).size(job) + self._on_disk(job)

    def _on_disk(self, job: str) -> int:
        return removal.size_of(removal.files_of(self._state, job))

    def _pack(self, store: SqlStore, job: str) -> RunPacked:
        directory = self._state / "runs" / job
        if removal.is_held(self._state, job) or rundir.is_read(directory):
            return RunPacked(job, again=True)
        shelf = ArchiveShelf(store, self._token)
        size = 0
        try:
            if directory.is_dir() and not directory.is_symlink() and not shelf.has(job):
                size = shelf.write(job, self._paced(pack(directory)))
            removal.delete([directory])
        except LeaseLost:
            raise
        except UnidleError as error:
            return RunPacked(job, problems=(f"{job} cannot be compressed: {error.line()}",))
        except OSError as error:
            if shelf.has(job):
                return RunPacked(job, problems=(removal.cannot_be_deleted(error, job),))
            place = error.filename or directory
            return RunPacked(job, problems=(f"{place} cannot be compressed: {error.strerror or error}",))
        return RunPacked(job, sizes={job: size + self._on_disk(job)})

    def _paced(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        begin = time.perf_counter()
        for part in parts:
            yield part
            if self._stop.wait(2 * (time.perf_counter() - begin)):
                raise _Stopped
            begin = time.perf_counter()

    def _remove(self, store: SqlStore, jobs: tuple[str, ...]) -> FilesFreed:
        _, problems = removal.delete_jobs(self._state, jobs)
        ProfileShelf(store, self._token).drop_jobs(jobs)
        ArchiveShelf(store, self._token).drop_jobs(jobs)
        return FilesFreed(tuple(problems))
