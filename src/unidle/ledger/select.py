"""The filter and the dimensions of a query."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from unidle.errors import BadInput
from unidle.ledger.columns import HOWS, LEAVES, RowColumns
from unidle.ledger.tables import JobInfo, SliceNames
from unidle.ledger.taxonomy import GROUP_OF, GROUPS

Value = str | int | None

SLICE_DIMENSIONS: Final[dict[str, Callable[[SliceNames], tuple[str, ...]]]] = {
    "node": lambda names: names.nodes,
    "device": lambda names: names.devices,
    "slice": lambda names: names.ids,
}
JOB_DIMENSIONS: Final[dict[str, Callable[[JobInfo], str]]] = {
    "job": lambda job: job.id,
    "queue": lambda job: job.queue,
    "user": lambda job: job.user,
}
LEAF_DIMENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "leaf": LEAVES,
    "group": tuple(GROUP_OF[leaf] for leaf in LEAVES),
}
FAILURE: Final = "failure"
"""The kind of failure that ended the attempt of a row."""
DIMENSIONS: Final = (*LEAF_DIMENSIONS, "how", *JOB_DIMENSIONS, "attempt", FAILURE, *SLICE_DIMENSIONS)

_KNOWN: Final[dict[str, Sequence[str]]] = {"leaf": LEAVES, "group": tuple(GROUPS), "how": HOWS}


class TimeRange(NamedTuple):
    """``[start_ns, end_ns)`` on the controller's clock."""

    start_ns: int
    end_ns: int


def known_dimensions(names: Iterable[str], field: str) -> tuple[str, ...]:
    """The names as they are, without repeats; :class:`BadInput` for one that is none."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        _one_of(name, DIMENSIONS, field)
    return chosen


class Selection:
    """A filter: for each dimension that is named, a row must have one of the values.

    ``{"leaf": ["useful", "bubble"], "job": ["a"]}`` keeps useful and bubble time of job ``a``. Rows
    without a job have the job, queue and user ``""`` and the attempt 0. A leaf, group or ``how``
    that does not exist is :class:`BadInput`.
    """

    def __init__(self, where: Mapping[str, Collection[str | int]] | None = None) -> None:
        self._where = {name: frozenset(values) for name, values in (where or {}).items()}
        known_dimensions(self._where, "filter")
        for name, known in _KNOWN.items():
            for value in self._where.get(name, ()):
                _one_of(str(value), known, name)

    @property
    def by_rows(self) -> bool:
        """Whether it distinguishes rows of one slice; otherwise it keeps whole slices."""
        return any(name not in SLICE_DIMENSIONS for name in self._where)

    def slices_of(self, columns: RowColumns) -> RowColumns:
        """The rows and the capacity of the slices that it keeps."""
        keep = np.ones(len(columns.slices), np.bool_)
        for name, values in self._where.items():
            if name in SLICE_DIMENSIONS:
                keep &= [v in values for v in SLICE_DIMENSIONS[name](columns.slices.names)]
        if keep.all():
            return columns
        table = columns.slices
        none_else = replace(table, last_ns=np.where(keep, table.last_ns, table.first_ns))
        return replace(columns, slices=none_else).take(keep[columns["slice"]])

    def rows_of(self, columns: RowColumns) -> RowColumns:
        """The rows that it keeps; capacity stays as it is."""
        keep = np.ones(len(columns), np.bool_)
        for name, values in self._where.items():
            if name not in SLICE_DIMENSIONS:
                keep &= _mask(columns, name, values)
        return columns if keep.all() else columns.take(keep)


def _mask(columns: RowColumns, name: str, values: frozenset[str | int]) -> npt.NDArray[np.bool_]:
    if name in LEAF_DIMENSIONS:
        return np.array([v in values for v in LEAF_DIMENSIONS[name]])[columns["leaf"]]
    if name == "how":
        return np.array([v in values for v in HOWS])[columns["how"]]
    if name == "attempt":
        return np.isin(columns["attempt"], [int(v) for v in values])
    if name == FAILURE:
        return np.array([v in values for v in failure_kinds(columns.jobs)])[failure_codes(columns)]
    of = JOB_DIMENSIONS[name]
    return np.array([of(job) in values for job in columns.jobs], np.bool_)[columns["job"]]


def failure_kinds(jobs: Sequence[JobInfo]) -> list[str]:
    """The kinds of failure of these jobs' attempts, ``""`` (none) first."""
    return list(dict.fromkeys(["", *(kind for job in jobs for kind in job.failures)]))


def failure_codes(columns: RowColumns) -> npt.NDArray[np.int64]:
    """For each row the kind of failure that ended its attempt, as an index into :func:`failure_kinds`."""
    codes = {kind: code for code, kind in enumerate(failure_kinds(columns.jobs))}
    most = max([len(job.failures) for job in columns.jobs], default=0)
    table = np.zeros(
        (len(columns.jobs), most + 2), np.int64
    )  # attempts count from 1; beyond those known is none
    for k, job in enumerate(columns.jobs):
        table[k, 1 : len(job.failures) + 1] = [codes[kind] for kind in job.failures]
    codes_of_rows: npt.NDArray[np.int64] = table[columns["job"], np.clip(columns["attempt"], 0, most + 1)]
    return codes_of_rows


def _one_of(name: str, known: Sequence[str], field: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        raise BadInput("is not a column of the ledger", field=field, value=name, remedy=remedy)
