"""Output of the ranks of a job: one attempt in order of time, or followed across rotations and restarts."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING, Final

from unidle.api.job_watch import LOOK_S, JobWatch
from unidle.api.lines import RankLines
from unidle.api.stores import data_dir
from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from pathlib import Path

    from unidle.api.host_logs import HostLogs
    from unidle.engine.local.logs import LogReader
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Which lines: printed since a time, that match, of these the last ``tail``."""

    since_ns: int | None = None
    tail: int | None = None
    match: re.Pattern[str] | None = None

    def has(self, line: bytes) -> bool:
        """Whether a line matches; what is not UTF-8 in it is U+FFFD."""
        return (
            self.match is None or self.match.search(line.decode("utf-8", "replace").rstrip("\r")) is not None
        )


ALL: Final = LogSelection()


def _unnoticed(_rank: int, _lines: int) -> None:
    """Lines that rotation dropped are not reported."""


class Output:
    """Unread output of some ranks of a job, attempt after attempt.

    ``ranks``: None for all. ``attempt``: only this one; else from attempt ``first`` on, 0 being the last one when it is
    first read. With several ranks each line begins with its rank. ``raw``: bytes as they are, of one rank.
    ``dropped(rank, lines)`` is called where rotation dropped lines before they could be read.
    """

    def __init__(
        self, store: Store, job: str, ranks: Sequence[int] | None, *, attempt: int | None = None, first: int = 0,
        raw: bool = False, wanted: LogSelection = ALL, dropped: Callable[[int, int], None] = _unnoticed,
    ) -> None:  # fmt: skip
        self._root, self._hosts = log_root(store, job)
        self._lock: int | None = None  # shared, on the run directory: retention leaves it alone
        self._job, self._ranks, self._attempt, self._raw = job, ranks, attempt, raw
        self._wanted, self._dropped = wanted, dropped
        self._number = first  # of the attempt that is read next; 0: the last one
        self._begun = False  # reading it
        self._readers: dict[int, tuple[LogReader, RankLines]] = {}

    def new(self, job: JobView | None, *, once: bool = False) -> Iterator[bytes]:
        """Lines without their ends that have come since, ``raw``: chunks; ``job`` as it was before this call.

        ``once``: no call follows, so what has no end is a line, too, and of the attempt that is read first alone.
        """
        while job is not None and self._open(job):
            over = job.terminal or not job.attempts[self._number - 1].live
            if self._hosts is not None:
                self._hosts.renew(self._number, job.attempts[self._number - 1], list(self._readers))
            yield from self._pieces(over=over, once=once)
            if once or not over:
                return
            self._leave()
            self._number += 1

    @property
    def over(self) -> bool:
        """Whether the one requested attempt was read to its end."""
        return self._attempt is not None and self._number > self._attempt

    @property
    def missing(self) -> dict[int, str]:
        """Ranks whose output is on a host where it cannot be read now, and why."""
        return {} if self._hosts is None else self._hosts.missing

    def close(self) -> None:
        self._leave()
        if self._hosts is not None:
            self._hosts.close()

    def _leave(self) -> None:
        """Close what is open of the attempt."""
        for reader, _ in self._readers.values():
            reader.close()
        self._readers, self._begun = {}, False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, job: JobView) -> bool:
        """See that the attempt that is read next is open; False if it does not exist now."""
        from unidle.engine.local.logs import LogReader
        from unidle.engine.local.ranks import rundir

        if not self._number:
            self._number = self._attempt or max(len(job.attempts), 1)
        if self.over or self._number > len(job.attempts):
            return False
        if not self._readers:
            self._lock = rundir.lock_for_reading(self._root / self._job) if self._lock is None else self._lock
            there = range(len(job.attempts[self._number - 1].places))
            marked = self._ranks is None or len(self._ranks) > 1
            for rank in there if self._ranks is None else self._ranks:
                if rank in there:
                    reader = LogReader(rundir.rank_dir(self._root, self._job, self._number, rank))
                    self._readers[rank] = reader, RankLines(b"[%d] " % rank if marked else b"")
        return True

    def _pieces(self, *, over: bool, once: bool) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield from self._present(final=once)
            self._wanted = LogSelection(match=self._wanted.match)  # of what comes later everything is new
        for rank, (reader, lines) in self._readers.items() if not once else ():
            while chunk := reader.read():
                self._count(rank, reader)
                yield from [chunk] if self._raw else self._chosen(lines.feed(chunk))
            if over:
                yield from self._chosen(lines.rest())

    def _present(self, *, final: bool) -> Iterator[bytes]:
        """What there is now, in order of time; with ``final`` also the lines that have no end."""
        wanted = self._wanted
        for reader, _ in self._readers.values():
            # the last lines of each rank hold the last of all; of those that match it is not known where they begin
            reader.begin(
                wanted.since_ns, wanted.tail if wanted.since_ns is None and wanted.match is None else None
            )
        if self._raw and (wanted.tail is None or wanted.since_ns is None):
            yield from (chunk for rank in self._readers for chunk, _ in self._chunks(rank))
            return
        parts = [self._lines_of(rank, final=final) for rank in self._readers]
        lines = self._chosen(line for _, line in merge(*parts, key=lambda item: item[0]))
        for line in lines if wanted.tail is None else deque(lines, maxlen=wanted.tail):
            yield line + b"\n" if self._raw else line
        for _, rest in self._readers.values() if self._raw else ():
            yield from rest.rest()  # bytes that follow go on with it

    def _lines_of(self, rank: int, *, final: bool) -> Iterator[tuple[int, bytes]]:
        """The lines that the rank has printed by now, with their times."""
        lines, time_ns = self._readers[rank][1], 0
        for chunk, read_ns in self._chunks(rank):
            time_ns = max(time_ns, read_ns)
            for line in lines.feed(chunk):
                yield time_ns, line
        if final:
            for line in lines.rest():
                yield time_ns, line

    def _chunks(self, rank: int) -> Iterator[tuple[bytes, int]]:
        """What the rank has printed by now, and when; what comes meanwhile is left."""
        reader = self._readers[rank][0]
        left = reader.unread_bytes()
        while left > 0 and (chunk := reader.read()):
            self._count(rank, reader)
            left -= len(chunk)
            yield chunk, reader.time_ns or 0

    def _chosen(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        return (line for line in lines if self._wanted.has(line))

    def _count(self, rank: int, reader: LogReader) -> None:
        if reader.lost_lines:
            self._dropped(rank, reader.lost_lines)
            reader.lost_lines = 0


def log_root(store: Store, job: str) -> tuple[Path, HostLogs | None]:
    """The directory with the job's run directory, and what copies logs into it where its ranks are on other hosts.

    Errors: CannotRun where they are, no controller answers, and nothing was kept here.
    """
    from unidle.api.open_hosts import has_copies, hosts_of_job
    from unidle.control.retention.archive import runs_of

    root = runs_of(store, data_dir(), job)
    connect = hosts_of_job(store, root, job)
    if connect is None:
        return root, None
    from unidle.api.host_logs import HostLogs

    try:
        hosts = HostLogs(connect, job)
    except CannotRun:
        if has_copies(store, root, job):
            return root, None
        raise
    return hosts.root, hosts


def lines_of(address: str, job: str, rank: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
    """See :meth:`unidle.api.job_object.Job.logs`."""
    with JobWatch(address, job) as watch:
        found = watch.news()
        if found is not None:
            _check(found, rank, attempt)
        output = Output(watch.store, job, None if rank is None else [rank], attempt=attempt)
        try:
            while True:
                ended = watch.ended() if follow else found
                for line in output.new(watch.view.jobs.get(job), once=not follow):
                    yield line.decode("utf-8", "replace")
                if ended is not None or not follow or output.over:
                    return
                time.sleep(LOOK_S)
        finally:
            output.close()


def _check(job: JobView, rank: int | None, attempt: int | None) -> None:
    most = max([len(one.places) for one in job.attempts], default=job.spec.ranks)
    if rank is not None and not 0 <= rank < most:
        raise BadInput("the job has no such rank", field="rank", value=rank, remedy=f"0 to {most - 1}")
    if attempt is not None and not 1 <= attempt <= max(len(job.attempts), 1):
        raise BadInput("the job has no such attempt", field="attempt", value=attempt, remedy=f"1 to {len(job.attempts)}")  # fmt: skip
