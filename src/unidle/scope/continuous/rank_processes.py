"""Which processes belong to which rank of a running attempt, from the engine's run directory and from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unidle.engine.local.event_marks import EventMarks
from unidle.engine.local.ranks import process_tree, rundir
from unidle.engine.local.ranks.journal_tail import JournalTail
from unidle.scope.model import Profile

_CHUNKS_MOST: Final = 64  # of a journal, until it says what was spawned


class RunningAttempt(NamedTuple):
    """A running attempt, as the controller names it."""

    job: str
    attempt: int
    ranks: int


@dataclass(slots=True)
class RankFinder:
    """Finds the processes of ranks. What was already read from a journal is not read again.

    ``runs``: on a host, the run root in the directory of each job below ``run_root``. It has only the ranks of this host.
    """

    run_root: str
    runs: str = ""
    _spawned: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)

    def roots(self, attempts: Iterable[RunningAttempt]) -> dict[RunningAttempt, dict[int, int]]:
        """By attempt and rank the process that the rank's supervisor started, where that lives."""
        known = set(attempts)
        names = {(a.job, a.attempt) for a in known}
        self._spawned = {key: found for key, found in self._spawned.items() if key[:2] in names}
        found: dict[RunningAttempt, dict[int, int]] = {}
        for attempt in sorted(known):
            pids = {rank: pid for rank in self._here(attempt) if (pid := self._pid(attempt, rank))}
            if pids:
                found[attempt] = pids
        return found

    def number_of(self, attempt: RunningAttempt) -> int:
        """A number of this host that no other host of the attempt has; 0 where there are no others."""
        return min(self._here(attempt), default=0) + 1 if self.runs else 0

    def _root(self, job: str) -> str:
        return f"{self.run_root}/{rundir.path_part(job)}/{self.runs}" if self.runs else self.run_root

    def _here(self, attempt: RunningAttempt) -> Collection[int]:
        """The ranks that may be here."""
        if not self.runs:
            return range(attempt.ranks)
        directory = rundir.attempt_dir(self._root(attempt.job), attempt.job, attempt.attempt)
        try:
            names = os.listdir(directory)  # noqa: PTH208
        except OSError:
            return ()
        numbers = (name.removeprefix("rank") for name in names if name.startswith("rank"))
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())

    def _pid(self, attempt: RunningAttempt, rank: int) -> int | None:
        key = (attempt.job, attempt.attempt, rank)
        if key not in self._spawned:
            spawned = _spawned(rundir.rank_dir(self._root(attempt.job), *key))
            if spawned is None:
                return None
            self._spawned[key] = spawned
        pid, ticks = self._spawned[key]
        return pid if process_tree.ticks_of(pid) == ticks and process_tree.is_live(pid) else None


def _spawned(directory: str) -> tuple[int, int] | None:
    """Process id and start time of the rank, as its journal has them."""
    tail = JournalTail(f"{directory}/{rundir.JOURNAL}", EventMarks())
    try:
        for _ in range(_CHUNKS_MOST):
            tail.read()
            if tail.spawned is not None or not tail.behind:
                return tail.spawned
    finally:
        tail.close()
    return None


def trees(roots: Mapping[int, int]) -> dict[int, set[int]]:
    """By rank its process and all below it, now."""
    return {rank: process_tree.below(pid, process_tree.children(pid)) for rank, pid in roots.items()}


def belonging(profile: Profile, before: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """By rank the processes of a look: those that were there ``before`` it, and what they started meanwhile."""
    owner = {pid: rank for rank, pids in before.items() for pid in pids}
    parent = {p.pid: p.parent for p in profile.processes}
    found = {rank: set(pids) for rank, pids in before.items()}
    for pid in parent:
        line = [pid]
        while line[-1] not in owner and parent.get(line[-1], 0) not in (0, *line):
            line.append(parent[line[-1]])
        if line[-1] in owner:
            found[owner[line[-1]]].update(line)
    return found


def worker_of(profile: Profile, root: int, pids: Sequence[int] | set[int]) -> int:
    """The process that does a rank's work: its root, or where that is a wrapper, the one below it that runs Python."""
    rows = {p.pid: p for p in profile.processes if p.pid in pids}
    if root in rows and (rows[root].python or len(rows) == 1):
        return root
    python = [p for p in rows.values() if p.python]
    if not python:
        return root
    on_ns: dict[int, int] = {}
    for thread in profile.threads:
        on_ns[thread.pid] = on_ns.get(thread.pid, 0) + thread.on_ns
    uppermost = [p for p in python if p.parent not in rows or not rows[p.parent].python]
    return max(uppermost or python, key=lambda p: (on_ns.get(p.pid, 0), -p.pid)).pid


def log_offset_ns(clock_offset_ns: int) -> int:
    """What turns the kernel's monotonic clock into the log's time, now: the first does not advance while a machine sleeps."""
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot_ns - time.monotonic_ns() + clock_offset_ns
