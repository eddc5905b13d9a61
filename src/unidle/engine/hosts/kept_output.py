"""Output of ranks in boxes whose disk goes with them: written next to the store while it comes, by a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from unidle.engine.hosts import printed_files
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.printed_files import PrintedFile
from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun
from unidle.hub import frames
from unidle.hub.file_parts import RankFilePart

_WAITING_BYTES: Final = 32 << 20
_CLOSE_S: Final = 5.0
RankPlace = tuple[str, int, int]
"""Job, attempt and rank."""


class KeptOutput:
    """Below ``root``, the run root of the store. ``say`` gets a line where output cannot be written.

    The loop uses it, and never waits for the disk, except to find what an earlier controller has kept.
    """

    def __init__(self, root: Path, say: Callable[[str], None] | None = None) -> None:
        self._root, self._say = root, say
        self._ends: dict[RankPlace, int] = {}  # up to where output was taken
        self._newest: dict[RankPlace, PrintedFile] = {}  # of the thread
        self._waiting = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = ""

    def take(self, gangs: Mapping[Key, GangState], node: str, job: str, body: dict[str, Any]) -> None:
        """What the box of a job on ``node`` has sent of ranks there.

        What is nothing of the kind is passed over, and so is what comes faster than it can be written.
        """
        try:
            seen = msgspec.convert(body, frames.Printed)
        except msgspec.ValidationError:
            return
        size = sum(len(data) for _, data in seen.parts)
        gang = gangs.get((job, seen.attempt))
        if gang is None or seen.rank >= len(gang.ranks) or gang.ranks[seen.rank].node != node:
            return
        if self._waiting + size > _WAITING_BYTES:
            return
        place = (job, seen.attempt, seen.rank)
        self._ends[place] = max(self.end(place), seen.at + size)
        with self._lock:
            self._waiting += size
        self._do(lambda: self._write(place, seen, size))

    def end(self, place: RankPlace) -> int:
        """From which byte of its output on a rank is asked for more."""
        if place not in self._ends:
            self._ends[place] = printed_files.end_of(self._directory(place))
        return self._ends[place]

    def forget(self, job: str) -> None:
        """The job is over: its files stay."""
        self._ends = {place: end for place, end in self._ends.items() if place[0] != job}
        self._do(lambda: self._let_go(job))

    def has(self, place: RankPlace) -> bool:
        return (self._directory(place) / rundir.LOG).exists()

    def read(self, place: RankPlace, file: str, offset: int, count: int, into: Future[RankFilePart]) -> None:
        """Give a future part of a kept file, after all that was taken before."""

        def read() -> None:
            try:
                into.set_result(self._part(place, file, offset, count))
            except OSError as error:
                into.set_exception(CannotRun(f"{error.strerror}: {error.filename}"))
            except CannotRun as error:
                into.set_exception(error)

        self._do(read)

    def close(self) -> None:
        """Write what was taken."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _do(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kept output", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    # -- of the thread ---------------------------------------------------------------------------

    def _write(self, place: RankPlace, seen: frames.Printed, size: int) -> None:
        with self._lock:
            self._waiting -= size
        directory = self._directory(place)
        try:
            if place not in self._newest:
                self._mark(place[0])
                self._newest[place] = printed_files.opened(directory)
            printed_files.append(directory, self._newest[place], seen.at, seen.parts, seen.lines)
        except OSError as error:
            self._newest.pop(place, None)
            if self._say is not None and self._failed != str(error.strerror):
                self._failed = str(error.strerror)
                self._say(f"output of ranks cannot be kept in {self._root}: {self._failed}")

    def _mark(self, job: str) -> None:
        """Note that the directory of a job has copies."""
        directory = self._root / rundir.path_part(job)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / rundir.COPIED).touch(0o600)

    def _let_go(self, job: str) -> None:
        for place in [place for place in self._newest if place[0] == job]:
            del self._newest[place]

    def _part(self, place: RankPlace, file: str, offset: int, count: int) -> RankFilePart:
        if not rundir.is_shown(file):
            raise CannotRun("there is no such file to be read")
        fd = os.open(self._directory(place) / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            begin = min(offset, status.st_size) if offset >= 0 else max(0, status.st_size + offset)
            return RankFilePart(os.pread(fd, count, begin), status.st_size, status.st_ino)
        finally:
            os.close(fd)

    def _directory(self, place: RankPlace) -> Path:
        return Path(rundir.rank_dir(self._root, *place))


def resume_of(kept: KeptOutput | None, gang: GangState, node: str, known: dict[str, int]) -> frames.Resume:
    """What a box is to send again: marks from these ordinals on, and what is not kept of its output."""
    if kept is None:
        return frames.Resume(gang.attempt, known)
    here = [one.rank for one in gang.ranks if one.node == node]
    return frames.Resume(gang.attempt, known, {str(rank): kept.end((*gang.key, rank)) for rank in here})
