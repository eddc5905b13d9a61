"""Following the logs of several ranks over rotations and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from unidle.engine.local.logs import LogTail
from unidle.store.protocol import Store
from unidle.view.snapshot import load_view

_ASK_EVERY_S = 0.2
_VIEW_EVERY_S = 1.0


class LogReader:
    """Copies what ranks printed to ``out``; with several ranks each line is marked with its rank."""

    def __init__(self, root: Path, job: str, ranks: Sequence[int], out: BinaryIO) -> None:
        self._root, self._job, self._ranks, self._out = root, job, ranks, out

    def run(self, store: Store, attempt: int | None, follow: bool) -> None:
        """Print one attempt (the last by default); ``follow`` goes on until the job has ended."""
        number = attempt or len(load_view(store).jobs[self._job].attempts)
        while True:
            for alive in self._attempt(store, number, follow and attempt is None):
                if not alive:
                    break
            job = load_view(store).jobs[self._job]
            if not follow or attempt is not None or job.terminal and number >= len(job.attempts):
                return
            if number < len(job.attempts):
                number += 1
            else:
                time.sleep(_ASK_EVERY_S)

    def _attempt(self, store: Store, number: int, follow: bool) -> Iterator[bool]:
        """Copy until the attempt has ended and all of it was copied; yields whether it still runs."""
        if number == 0:
            return
        tails = {rank: LogTail(self._root, self._job, number, rank) for rank in self._ranks}
        asked = 0.0
        alive = True
        while True:
            if follow and time.monotonic() - asked >= _VIEW_EVERY_S:
                asked = time.monotonic()
                attempts = load_view(store).jobs[self._job].attempts
                alive = number <= len(attempts) and attempts[number - 1].live
            ended = not follow or not alive
            for rank, tail in tails.items():
                self._copy(rank, tail, ended)
            self._out.flush()
            yield alive
            if ended:
                return
            time.sleep(_ASK_EVERY_S)

    def _copy(self, rank: int, tail: LogTail, ended: bool) -> None:
        if len(self._ranks) == 1:
            for chunk in tail.read():
                self._out.write(chunk)
            return
        for line in tail.lines(whole=ended):
            self._out.write(b"[%d] " % rank + line)
