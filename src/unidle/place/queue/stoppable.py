"""Running jobs of level low as columns, by name; updated as jobs start and end. Used to choose which to stop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from unidle.place.queue.model import NS_PER_US, Ints, Running

_NEVER_NS: Final = 1 << 62


class Rows(NamedTuple):
    """Of J jobs in the order of their names; ``node`` and ``devices`` list what each holds, job by job."""

    jobs: list[Running]
    numbers: Ints  # (11, J): see ``_numbers``
    node: Ints
    devices: Ints

    @property
    def since_ns(self) -> Ints:
        """From when on each may be stopped."""
        return self._row(0)

    @property
    def leaf(self) -> Ints:
        return self._row(1)

    @property
    def size(self) -> Ints:
        return self._row(2)

    @property
    def each(self) -> Ints:
        return self._row(3)

    @property
    def asks(self) -> Ints:
        """CPU and memory of a rank. Shape (2, J)."""
        return self.numbers[4:6]

    @property
    def nodes(self) -> Ints:
        """On how many nodes each has whole devices."""
        return self._row(6)

    @property
    def milli(self) -> Ints:
        """What each holds, in thousandths of devices."""
        return self._row(10)

    def _row(self, k: int) -> Ints:
        row: Ints = self.numbers[k]
        return row

    def cost(self, now_ns: int) -> Ints:
        """What is lost by stopping each now: ``Running.lost_us``."""
        undone_ns = np.minimum(np.maximum(now_ns - self.numbers[7], 0), self.numbers[8])
        cost: Ints = (undone_ns + self.numbers[9]) // NS_PER_US * self.milli // 1_000
        return cost

    def where(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
        """Some of them."""
        if keep.all():
            return self
        inside = np.repeat(keep, self.nodes)
        jobs = [self.jobs[k] for k in np.flatnonzero(keep).tolist()]
        return Rows(jobs, self.numbers[:, keep], self.node[inside], self.devices[inside])


def rows_of(runs: Iterable[Running], leaf_of: Callable[[str], int]) -> Rows:
    """These jobs, in the order given."""
    jobs = list(runs)
    numbers = np.array([_numbers(run, leaf_of(run.queue)) for run in jobs], np.int64).reshape(-1, 11).T
    node = np.array([n for run in jobs for n in run.devices], np.int64)
    devices = np.array([d for run in jobs for d in run.devices.values()], np.int64)
    return Rows(jobs, numbers, node, devices)


def _numbers(run: Running, leaf: int) -> Sequence[int]:
    return (
        run.started_ns + max(run.min_runtime_ns, 1), leaf, run.size, run.each, *run.asks, len(run.devices),
        max(run.started_ns, run.last_saved_ns or 0), _NEVER_NS if run.save_ns is None else run.save_ns, run.restart_ns,
        run.milli,
    )  # fmt: skip


class Stoppable:
    """All jobs of level low that run; changes are applied at the next look."""

    def __init__(self, runs: Iterable[Running], leaf_of: Callable[[str], int]) -> None:
        self._leaf_of = leaf_of
        low = sorted((run for run in runs if not run.firm), key=lambda run: run.job)
        self._rows = rows_of(low, leaf_of)
        self._names = [run.job for run in low]
        self._changed: dict[str, Running | None] = {}

    def next_ns(self, now_ns: int) -> int | None:
        """When the next of them may be stopped that may not be now."""
        since = self.rows().since_ns
        later = since[since > now_ns]
        return int(later.min()) if len(later) else None

    def change(self, job: str, run: Running | None) -> None:
        """The job runs so now; None: it does not run."""
        self._changed[job] = None if run is None or run.firm else run

    def rows(self) -> Rows:
        """Those that run now."""
        if self._changed:
            self._drop([job for job in self._changed if self._at(job) is not None])
            self._insert(sorted((run for run in self._changed.values() if run), key=lambda run: run.job))
            self._changed = {}
        return self._rows

    def _at(self, job: str) -> int | None:
        at = bisect_left(self._names, job)
        return at if at < len(self._names) and self._names[at] == job else None

    def _drop(self, jobs: list[str]) -> None:
        keep = np.ones(len(self._names), np.bool_)
        keep[[bisect_left(self._names, job) for job in jobs]] = False
        self._rows = self._rows.where(keep)
        self._names = [run.job for run in self._rows.jobs]

    def _insert(self, runs: list[Running]) -> None:
        if not runs:
            return
        old, new = self._rows, rows_of(runs, self._leaf_of)
        at = [bisect_left(self._names, run.job) for run in runs]
        first = np.concatenate(([0], np.cumsum(old.nodes)))[at]
        cells = np.repeat(first, new.nodes)
        jobs = sorted([*old.jobs, *new.jobs], key=lambda run: run.job)
        self._rows = Rows(
            jobs, np.insert(old.numbers, at, new.numbers, axis=1), np.insert(old.node, cells, new.node),
            np.insert(old.devices, cells, new.devices),
        )  # fmt: skip
        self._names = [run.job for run in jobs]
