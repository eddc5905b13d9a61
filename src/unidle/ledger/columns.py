"""Rows as columns: NumPy arrays of codes, 45 bytes a row, with the tables the codes point into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from unidle.ledger.rows import Entry, LedgerRow
from unidle.ledger.tables import (
    NO_JOB,
    JobInfo,
    SliceInfo,
    SliceTable,
    merge_jobs,
    merge_names,
    merge_slices,
)
from unidle.ledger.taxonomy import GROUP_OF, How

LEAVES: Final = tuple(GROUP_OF)
LEAF_CODE: Final = {leaf: code for code, leaf in enumerate(LEAVES)}
HOWS: Final[tuple[How, ...]] = ("measured", "inferred", "modelled")
HOW_CODE: Final = {how: code for code, how in enumerate(HOWS)}

DTYPES: Final[dict[str, type[np.integer[Any]]]] = {
    "slice": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "leaf": np.uint8,
    "job": np.int32,
    "attempt": np.int32,
    "step": np.int64,
    "how": np.uint8,
    "observer": np.uint16,
    "revision": np.int32,
    "sign": np.int8,
}

Array: TypeAlias = npt.NDArray[Any]
Pick: TypeAlias = npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice


@dataclass(frozen=True, slots=True, eq=False)
class RowColumns:
    """Rows of a ledger, or postings that are not yet netted (see ``unidle.ledger.current``).

    ``data`` maps each name of ``DTYPES`` to an array; all have the same length. ``slice`` and ``observer`` are
    indexes into ``slices`` and ``observers``; ``job`` into ``jobs``, whose first is "no job"; ``leaf`` into
    ``LEAVES``, ``how`` into ``HOWS``. Without a step or attempt, ``step`` is -1 and ``attempt`` 0.
    """

    data: Mapping[str, Array]
    slices: SliceTable
    jobs: tuple[JobInfo, ...] = (NO_JOB,)
    observers: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.data["start_ns"])

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def take(self, pick: Pick) -> RowColumns:
        """The rows of a mask, of indexes or of a range, with the same tables."""
        return self.with_data({name: array[pick] for name, array in self.data.items()})

    def with_data(self, data: Mapping[str, Array]) -> RowColumns:
        """The same tables with other arrays; those not given stay."""
        return replace(self, data={**self.data, **data})

    def parts(self, rows: int) -> Iterator[RowColumns]:
        """The same rows in ranges of at most ``rows``, without copying."""
        for start in range(0, len(self), rows):
            yield self.take(slice(start, start + rows))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the tables."""
        return sum(array.nbytes for array in self.data.values())


def from_entries(
    entries: Iterable[Entry], slices: Sequence[SliceInfo], jobs: Iterable[JobInfo] = ()
) -> RowColumns:
    """Postings as columns, one row per slice of each entry, in the order of the entries."""
    rows = list(entries)
    table = {"": NO_JOB} | {job.id: job for job in jobs}
    for e in rows:
        if e.job not in table:
            table[e.job] = JobInfo(e.job)
    codes = {job: code for code, job in enumerate(table)}
    observers: dict[str, int] = {}
    values: dict[str, Callable[[Entry], int]] = {
        "start_ns": lambda e: e.start_ns,
        "end_ns": lambda e: e.end_ns,
        "leaf": lambda e: LEAF_CODE[e.leaf],
        "job": lambda e: codes[e.job],
        "attempt": lambda e: e.attempt,
        "step": lambda e: e.step,
        "how": lambda e: HOW_CODE[e.how],
        "observer": lambda e: observers.setdefault(e.observer, len(observers)),
        "revision": lambda e: e.revision,
        "sign": lambda e: e.sign,
    }
    sizes = np.fromiter((len(e.slices) for e in rows), np.int64, len(rows))
    flat = chain.from_iterable(e.slices for e in rows)
    data: dict[str, Array] = {"slice": np.fromiter(flat, np.int32, int(sizes.sum()))}
    for name, value in values.items():
        data[name] = np.repeat(np.fromiter(map(value, rows), DTYPES[name], len(rows)), sizes)
    return RowColumns(data, SliceTable.of(slices), tuple(table.values()), tuple(observers))


def as_modelled(columns: RowColumns) -> RowColumns:
    """The same rows, none of them known but from a model."""
    how = np.full(len(columns), HOW_CODE["modelled"], DTYPES["how"])
    return columns.with_data({"how": how})


def empty() -> RowColumns:
    """No rows and no capacity."""
    return RowColumns({name: np.empty(0, dtype) for name, dtype in DTYPES.items()}, SliceTable.of(()))


def concat(parts: Sequence[RowColumns]) -> RowColumns:
    """All rows of all parts, in the order of the parts; slices, jobs and observers are merged."""
    if len(parts) < 2:
        return parts[0] if parts else empty()
    slices, slice_maps = merge_slices([p.slices for p in parts])
    jobs, job_maps = merge_jobs([p.jobs for p in parts])
    observers, observer_maps = merge_names([p.observers for p in parts])
    maps = {"slice": slice_maps, "job": job_maps, "observer": observer_maps}
    data = {}
    for name, dtype in DTYPES.items():
        arrays = [p[name] for p in parts]
        if name in maps:
            arrays = [m.astype(dtype)[a] for m, a in zip(maps[name], arrays, strict=True)]
        data[name] = np.concatenate(arrays)
    return RowColumns(data, slices, jobs, observers)


def in_order(columns: RowColumns) -> RowColumns:
    """The rows by slice, then start (stable); the same object where they already are."""
    which, start = columns["slice"], columns["start_ns"]
    step = np.diff(which)
    if not ((step > 0) | ((step == 0) & (np.diff(start) >= 0))).all():
        return columns.take(np.lexsort((start, which)))
    return columns


def clip(columns: RowColumns, start_ns: int, end_ns: int) -> RowColumns:
    """Rows and capacity inside ``[start_ns, end_ns)``; a row that straddles an edge is cut there."""
    s = columns.slices
    first, last = s.first_ns.clip(start_ns, end_ns), s.last_ns.clip(start_ns, end_ns)
    columns = replace(columns, slices=replace(s, first_ns=first, last_ns=last))
    start, end = columns["start_ns"], columns["end_ns"]
    if len(start) and start_ns <= start.min() and end.max() <= end_ns:
        return columns
    cut = {"start_ns": start.clip(start_ns, end_ns), "end_ns": end.clip(start_ns, end_ns)}
    return columns.with_data(cut).take(cut["start_ns"] < cut["end_ns"])


def coalesce(columns: RowColumns) -> RowColumns:
    """Ordered rows with neighbours joined that touch and differ in nothing but their times.

    Where a row was cut, by a window or by a segment, this makes it whole again.
    """
    n = len(columns)
    if n < 2:
        return columns
    joined = columns["end_ns"][:-1] == columns["start_ns"][1:]
    for name in DTYPES:
        if name not in ("start_ns", "end_ns"):
            array = columns[name]
            joined &= array[:-1] == array[1:]
    if not joined.any():
        return columns
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    last = np.append(first[1:] - 1, n - 1)
    whole = columns.take(first)
    return whole.with_data({"end_ns": columns["end_ns"][last]})


def rows(columns: RowColumns) -> Iterator[LedgerRow]:
    """Each row with its names, in the order of the columns."""
    names, jobs, observers = columns.slices.names, columns.jobs, columns.observers
    share = columns.slices.share_ppm.tolist()
    order = ("slice", "start_ns", "end_ns", "leaf", "job", "attempt", "step", "how", "observer", "revision")
    for part in columns.parts(1 << 16):
        lists = (part[name].tolist() for name in order)
        for k, start, end, leaf, job, attempt, step, how, observer, revision in zip(*lists, strict=True):
            yield LedgerRow(
                names.devices[k],
                names.ids[k],
                start,
                end,
                LEAVES[leaf],
                jobs[job].id or None,
                attempt or None,
                step if step >= 0 else None,
                share[k],
                HOWS[how],
                observers[observer],
                revision,
            )
