"""What the ranks of a job printed: one attempt in order of time, or followed over rotations and restarts."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import BinaryIO

from unidle.cli.lines import Lines, for_terminal
from unidle.engine.local import rundir
from unidle.engine.local.logs import LogReader
from unidle.store.protocol import Store
from unidle.view.fold import fold
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view
from unidle.view.state import View

_ASK_EVERY_S = 0.2
_VIEW_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines: printed since a time, that match, of these the last ``tail``."""

    since_ns: int | None = None
    tail: int | None = None
    match: re.Pattern[str] | None = None

    def has(self, line: bytes) -> bool:
        """Whether a line matches; what is not UTF-8 in it is U+FFFD."""
        return (
            self.match is None or self.match.search(line.decode("utf-8", "replace").rstrip("\r")) is not None
        )


class LogFollower:
    """Copies what ranks printed to ``out``; with several ranks each line is marked with its rank.

    ``dropped(rank, lines)`` is called where rotation dropped lines before they could be read.
    """

    def __init__(
        self, root: Path, job: str, ranks: Sequence[int], out: BinaryIO, wanted: Wanted,
        dropped: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self._root, self._job, self._ranks, self._out = root, job, ranks, out
        self._wanted, self._dropped = wanted, dropped
        self._readers: dict[int, tuple[LogReader, Lines]] = {}
        self._raw = len(ranks) == 1 and wanted.match is None  # bytes as they are
        self._terminal = not self._raw and out.isatty()

    def run(self, store: Store, attempt: int | None, follow: bool) -> None:
        """Print one attempt (the last by default); ``follow`` goes on until the job has ended."""
        view = load_view(store)
        while self._job not in view.jobs:  # submitted, and no controller has taken it over yet
            if not follow:
                return
            time.sleep(_ASK_EVERY_S)
            fold(view, store.read(after=view.seq))
        job = view.jobs[self._job]
        number = attempt or len(job.attempts)
        while True:
            if number:
                job = self._copy_attempt(store, view, number, follow)
                self._wanted = Wanted(match=self._wanted.match)  # of later attempts everything is new
            if not follow or attempt is not None:
                return
            while number >= len(job.attempts):
                if job.terminal:
                    return
                time.sleep(_ASK_EVERY_S)
                job = self._news(store, view)
            number += 1

    def _news(self, store: Store, view: View) -> JobView:
        return fold(view, store.read(after=view.seq)).jobs[self._job]

    def _copy_attempt(self, store: Store, view: View, number: int, follow: bool) -> JobView:
        """Copy until the attempt has ended and all of it was printed."""
        several = len(self._ranks) > 1
        for rank in self._ranks:
            reader = LogReader(rundir.rank_dir(self._root, self._job, number, rank))
            self._readers[rank] = reader, Lines(b"[%d] " % rank if several else b"")
        job = view.jobs[self._job]
        try:
            self._copy_present(final=not follow)
            if follow:
                job = self._follow(store, view, number)
            self._out.flush()
        finally:
            for reader, _ in self._readers.values():
                reader.close()
            self._readers.clear()
        return job

    def _follow(self, store: Store, view: View, number: int) -> JobView:
        asked, job = time.monotonic(), view.jobs[self._job]
        while True:
            over = not _runs(job, number)
            for rank, (reader, lines) in self._readers.items():
                while chunk := reader.read():
                    self._count(rank, reader)
                    self._write(chunk if self._raw else b"".join(map(self._shown, lines.feed(chunk))))
                if over:
                    self._write(b"".join(map(self._shown, lines.rest())))
            self._out.flush()
            if over:
                return job
            time.sleep(_ASK_EVERY_S)
            if time.monotonic() - asked >= _VIEW_EVERY_S:
                asked = time.monotonic()
                job = self._news(store, view)

    def _copy_present(self, *, final: bool) -> None:
        """What there is now, in order of time; with ``final`` also the lines that have no end."""
        wanted = self._wanted
        for reader, _ in self._readers.values():
            # the last lines of each rank hold the last of all; of those that match it is not known where they begin
            reader.begin(
                wanted.since_ns, wanted.tail if wanted.since_ns is None and wanted.match is None else None
            )
        if self._raw and (wanted.tail is None or wanted.since_ns is None):
            for chunk, _ in self._chunks(self._ranks[0]):
                self._write(chunk)
            return
        parts = [self._lines_of(rank, final=final) for rank in self._ranks]
        lines = (self._shown(line) for _, line in merge(*parts, key=lambda item: item[0]))
        found: Iterable[bytes] = (line for line in lines if line)
        for line in found if wanted.tail is None else deque(found, maxlen=wanted.tail):
            self._write(line)

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

    def _shown(self, line: bytes) -> bytes:
        """The line as it is printed; nothing where it does not match."""
        if not self._wanted.has(line):
            return b""
        return (for_terminal(line).encode() if self._terminal else line) + b"\n"

    def _write(self, data: bytes) -> None:
        self._out.write(data)

    def _count(self, rank: int, reader: LogReader) -> None:
        if reader.lost_lines:
            self._dropped(rank, reader.lost_lines)
            reader.lost_lines = 0


def _runs(job: JobView, number: int) -> bool:
    """Whether the attempt may still print: it has not ended, or is not the job's last known one."""
    return not job.terminal and job.attempts[number - 1].live
