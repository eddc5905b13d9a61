"""Applies the fleet's retention to jobs that have ended: which leave, in small steps, those that ended first before others.

The decision is logged before any file is deleted. What ``kill -9`` leaves in between is found by the next controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from unidle.clock import Clock
from unidle.control.retention.removal import is_held
from unidle.control.retention.worker import FilesFound, FilesFreed, RetentionWorker, RunPacked
from unidle.engine.local.ranks import rundir
from unidle.events import types as ev
from unidle.files.values import duration_text
from unidle.fleet.policies import RetentionPolicy
from unidle.view.state import View

EVERY_NS: Final = 250_000_000  # between two steps
AT_ONCE: Final = 16  # jobs in one step, and how long it may take of a turn
STEP_NS: Final = 5_000_000
SCAN_EVERY_NS: Final = 3_600_000_000_000  # for what could not be deleted or compressed
_MOST_SAID: Final = 1000  # different problems that are reported
_PACKS_AHEAD: Final = 4
BY: Final = "retention"


def beyond(
    view: View, policy: RetentionPolicy, sizes: Mapping[str, int], now_ns: int, busy: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """Jobs beyond a limit, those that ended first before others, each with the limit. Pure but for ``busy``.

    ``sizes``: bytes on disk by job, as far as they are known. Jobs that are asked to be kept or ``busy`` count, but stay.
    """
    count, total = len(view.stored), sum(sizes.values())
    for job, ended_ns in view.stored.items():
        size = sizes.get(job, 0)
        if policy.age_ns is not None and now_ns - ended_ns >= policy.age_ns:
            why = f"age {duration_text(policy.age_ns)}"
        elif policy.jobs is not None and count > policy.jobs:
            why = f"jobs {policy.jobs}"
        elif policy.size_bytes is not None and total > policy.size_bytes:
            why = f"size {policy.size_bytes} bytes" if size else ""
        else:
            return  # those that ended later are not beyond a limit either
        if why and job not in view.keep and not busy(job):
            yield job, why
            count, total = count - 1, total - size


class Retention:
    """The controller's part: it decides and logs, and leaves slow work on files to a :class:`RetentionWorker`.

    ``say`` is called with one line for each problem with a file.
    """

    def __init__(
        self, state: Path, worker: RetentionWorker, clock: Clock, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._state, self._worker, self._clock, self._say = state, worker, clock, say
        self._said: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._to_pack: deque[str] = deque()
        self._packing: set[str] = set()
        self._next_ns = self._scan_ns = 0

    def ended(self, view: View, job: str) -> None:
        """The job has ended, and this is in the view."""
        policy = view.fleet.retention
        if policy.compress_ns is not None:
            self._to_pack.append(job)
        if policy.size_bytes is not None:
            self._worker.measure(job)

    def look(self, view: View, now_ns: int) -> list[ev.JobsRemoved]:
        """The events of this step, at most one in :data:`EVERY_NS`. Their jobs go to :meth:`act` once they are logged."""
        policy = view.fleet.retention
        if not policy.on or now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + EVERY_NS
        self._take(view)
        if now_ns >= self._scan_ns:
            self._scan_ns = now_ns + SCAN_EVERY_NS
            self._worker.scan(measure=policy.size_bytes is not None)
        self._pack(view, policy, now_ns)
        if not policy.removes:
            return []
        chosen: list[tuple[str, str]] = []
        begin_ns = self._clock.now_ns()
        for found in beyond(view, policy, self._sizes, now_ns, self._busy):
            chosen.append(found)
            if len(chosen) == AT_ONCE or self._clock.now_ns() - begin_ns > STEP_NS:
                break
        for job, _ in chosen:
            self._sizes.pop(job, None)
        return [
            ev.JobsRemoved(tuple(job for job, _ in found), BY, why)
            for why, found in groupby(chosen, key=lambda item: item[1])
        ]

    def act(self, events: list[ev.JobsRemoved]) -> None:
        """The events are in the log: the files may go."""
        for event in events:
            self._worker.remove(event.jobs)

    def close(self) -> None:
        self._worker.close()

    def _busy(self, job: str) -> bool:
        return job in self._packing or is_held(self._state, job) or rundir.is_read(self._state / "runs" / job)

    def _take(self, view: View) -> None:
        """What the worker has done."""
        for done in self._worker.results():
            if isinstance(done, FilesFound):
                self._scanned(view, done)
            elif isinstance(done, FilesFreed):
                self._report(done.problems)
                continue
            elif isinstance(done, RunPacked):
                self._report(done.problems)
                self._packing.discard(done.job)
                if done.job in view.removed:
                    self._worker.remove((done.job,))  # a person removed it meanwhile
                elif done.again:
                    self._to_pack.append(done.job)
            if (size := done.sizes) and view.fleet.retention.size_bytes is not None:
                self._sizes.update((job, n) for job, n in size.items() if job in view.stored)

    def _report(self, problems: tuple[str, ...]) -> None:
        """Each problem once: what failed is tried again with each scan, and fails again."""
        for problem in problems:
            if problem not in self._said and len(self._said) < _MOST_SAID:
                self._said.add(problem)
                self._say(
                    f"retention: {problem}; check its owner, mode and disk; it is tried again every hour, "
                    "and `unidle prune` tries it now"
                )

    def _scanned(self, view: View, held: FilesFound) -> None:
        left = [job for job in sorted(held.names) if job in view.removed]
        for first in range(0, len(left), AT_ONCE):
            self._worker.remove(tuple(left[first : first + AT_ONCE]))
        loose = held.loose.difference(self._packing)
        if view.fleet.retention.compress_ns is not None:
            wanted = loose.union(self._to_pack)  # those that ended since the worker looked, too
            self._to_pack = deque(job for job in view.stored if job in wanted)
        for job in [job for job in self._sizes if job not in view.stored]:
            del self._sizes[job]

    def _pack(self, view: View, policy: RetentionPolicy, now_ns: int) -> None:
        for _ in range(min(len(self._to_pack), AT_ONCE)):
            job = self._to_pack[0]
            ended_ns = view.stored.get(job)
            if len(self._packing) >= _PACKS_AHEAD or policy.compress_ns is None:
                return
            if ended_ns is not None and now_ns - ended_ns < policy.compress_ns:
                return
            self._to_pack.popleft()
            if ended_ns is not None and job not in self._packing:
                self._packing.add(job)
                self._worker.pack(job)
