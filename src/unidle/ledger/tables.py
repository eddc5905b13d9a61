"""The tables that rows point into: slices, jobs and observers, so that a row holds small codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SliceInfo:
    """One device slice, and from when until when it was sighted.

    ``first_ns`` and ``last_ns`` are capacity: they come from the sightings of the fleet, never from
    the rows, so that the one can be checked against the other.
    """

    id: str
    device: str
    node: str
    share_ppm: int
    first_ns: int
    last_ns: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What rows can be grouped by on the side of the job; its own price overrides the model's."""

    id: str
    name: str = ""
    queue: str = ""
    user: str = ""
    price_per_device_hour: float | None = None
    failures: tuple[str, ...] = ()  # of each attempt the kind of failure that ended it, empty for none


NO_JOB = JobInfo("")


@dataclass(frozen=True, slots=True, eq=False)
class SliceNames:
    """The names of slices, in columns. Parts of one ledger may share the same object."""

    ids: tuple[str, ...]
    devices: tuple[str, ...]
    nodes: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SliceTable:
    """Slices in columns; row codes are indexes into it. ``last_ns == first_ns`` is no capacity."""

    names: SliceNames
    share_ppm: Ints
    first_ns: Ints
    last_ns: Ints

    def __len__(self) -> int:
        return len(self.names.ids)

    @staticmethod
    def of(slices: Sequence[SliceInfo]) -> SliceTable:
        names = SliceNames(
            tuple(s.id for s in slices),
            tuple(s.device for s in slices),
            tuple(s.node for s in slices),
            tuple(s.model for s in slices),
        )
        return SliceTable(
            names,
            np.array([s.share_ppm for s in slices], np.int64),
            np.array([s.first_ns for s in slices], np.int64),
            np.array([s.last_ns for s in slices], np.int64),
        )

    def infos(self) -> list[SliceInfo]:
        """The table as one object per slice."""
        n = self.names
        numbers = zip(self.share_ppm.tolist(), self.first_ns.tolist(), self.last_ns.tolist(), strict=True)
        words = zip(n.ids, n.devices, n.nodes, n.models, strict=True)
        return [SliceInfo(*word[:3], *number, word[3]) for word, number in zip(words, numbers, strict=True)]


def merge_slices(tables: Sequence[SliceTable]) -> tuple[SliceTable, list[Ints]]:
    """One table for all, and for each table the new code of each old one.

    A slice is known by its id and share. Where several tables hold it, it was sighted from the earliest to the
    latest of them; a table without capacity for it is ignored.
    """
    codes: dict[tuple[str, int], int] = {}
    merged: list[SliceInfo] = []
    maps: list[Ints] = []
    for table in tables:
        new = np.empty(len(table), np.int64)
        for k, s in enumerate(table.infos()):
            code = new[k] = codes.setdefault((s.id, s.share_ppm), len(merged))
            if code == len(merged):
                merged.append(s)
            elif s.last_ns > s.first_ns:
                merged[code] = _spanning(merged[code], s)
        maps.append(new)
    return SliceTable.of(merged), maps


def _spanning(a: SliceInfo, b: SliceInfo) -> SliceInfo:
    if a.last_ns <= a.first_ns:
        return b
    first, last = min(a.first_ns, b.first_ns), max(a.last_ns, b.last_ns)
    return SliceInfo(a.id, a.device, a.node, a.share_ppm, first, last, a.model)


def merge_jobs(tables: Sequence[tuple[JobInfo, ...]]) -> tuple[tuple[JobInfo, ...], list[Ints]]:
    """One table for all, and for each table the new code of each old one; code 0 stays "no job"."""
    codes = {"": 0}
    merged = [NO_JOB]
    maps = []
    for table in tables:
        new = np.empty(len(table), np.int64)
        for k, job in enumerate(table):
            code = new[k] = codes.setdefault(job.id, len(merged))
            if code == len(merged):
                merged.append(job)
        maps.append(new)
    return tuple(merged), maps


def merge_names(tables: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], list[Ints]]:
    """One table of names for all, and for each table the new code of each old one."""
    codes: dict[str, int] = {}
    maps = [np.array([codes.setdefault(n, len(codes)) for n in table], np.int64) for table in tables]
    return tuple(codes), maps
