"""Following the logs of several ranks over rotations and restarts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from unidle.engine.local import rundir
from unidle.engine.local.logs import LogReader
from unidle.store.protocol import Store
from unidle.view.fold import fold
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view
from unidle.view.state import View

_ASK_EVERY_S = 0.2
_VIEW_EVERY_S = 1.0


class LogFollower:
    """Copies what ranks printed to ``out``; with several ranks each line is marked with its rank."""

    def __init__(self, root: Path, job: str, ranks: Sequence[int], out: BinaryIO) -> None:
        self._root, self._job, self._ranks, self._out = root, job, ranks, out
        self._rest: dict[int, bytes] = {}  # the beginning of a line whose end was not printed yet

    def run(self, store: Store, attempt: int | None, follow: bool) -> None:
        """Print one attempt (the last by default); ``follow`` goes on until the job has ended."""
        view = load_view(store)
        while self._job not in view.jobs:  # submitted, and nobody has taken it up yet
            if not follow:
                return
            time.sleep(_ASK_EVERY_S)
            fold(view, store.read(after=view.seq))
        job = view.jobs[self._job]
        number = attempt or len(job.attempts)
        while True:
            if number:
                job = self._copy_attempt(store, view, number, follow)
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
        readers = {
            rank: LogReader(rundir.rank_dir(self._root, self._job, number, rank)) for rank in self._ranks
        }
        asked = time.monotonic()
        job = view.jobs[self._job]
        while True:
            over = not follow or not _runs(job, number)
            for rank, reader in readers.items():
                self._copy(rank, reader)
            if over:
                break
            time.sleep(_ASK_EVERY_S)
            if time.monotonic() - asked >= _VIEW_EVERY_S:
                asked = time.monotonic()
                job = self._news(store, view)
        for rank, reader in readers.items():
            self._write_lines(rank, b"\n" if self._rest.get(rank) else b"")
            reader.close()
        self._out.flush()
        return job

    def _copy(self, rank: int, reader: LogReader) -> None:
        while chunk := reader.read():
            if len(self._ranks) == 1:
                self._out.write(chunk)
            else:
                self._write_lines(rank, chunk)
        self._out.flush()

    def _write_lines(self, rank: int, chunk: bytes) -> None:
        *lines, rest = (self._rest.get(rank, b"") + chunk).split(b"\n")
        self._rest[rank] = rest
        for line in lines:
            self._out.write(b"[%d] %s\n" % (rank, line))


def _runs(job: JobView, number: int) -> bool:
    """Whether the attempt may still print: it has not ended, or is not the job's last known one."""
    return not job.terminal and job.attempts[number - 1].live
