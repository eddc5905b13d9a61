"""Samples as columns: what is done to a million of them is done once for all, not once for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]

STATE_ORDER: Final[tuple[Literal["on", "off", "runq"], ...]] = ("on", "off", "runq")
_NUMBERS: Final = {state: number for number, state in enumerate(STATE_ORDER)}
_ROOM: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples, a column for each of their fields. ``state`` is a place in :data:`STATE_ORDER`; ``ns`` is nanoseconds."""

    pid: Column
    tid: Column
    stack: Column
    state: Column
    count: Column
    ns: Column

    def __len__(self) -> int:
        return len(self.pid)

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Row by row, in the order of the fields."""
        return zip(*(column.tolist() for column in self.columns()), strict=True)

    def columns(self) -> tuple[Column, ...]:
        return self.pid, self.tid, self.stack, self.state, self.count, self.ns

    def summed(self) -> Rows:
        """One row for each process, thread, stack and state, in the order first seen; counts and times added exactly."""
        code = _codes(self.pid, self.tid, self.stack, self.state)
        order = np.argsort(code, kind="stable")
        starts = _starts(code[order])
        if len(starts) == len(self):
            return self
        firsts = order[starts]
        seen = np.argsort(firsts)
        kept = (column[firsts[seen]] for column in self.columns()[:4])
        sums = (np.add.reduceat(column[order], starts)[seen] for column in (self.count, self.ns))
        return Rows(*kept, *sums)


def rows_of(samples: Sequence[Any]) -> Rows:
    """The columns of :class:`unidle.scope.model.Sample`.

    Raises KeyError, TypeError, ValueError or OverflowError for what is no sample (of a file that was made by others).
    """
    return Rows(
        _column(samples, "pid"), _column(samples, "tid"), _column(samples, "stack"),
        np.fromiter(map(_NUMBERS.__getitem__, map(attrgetter("state"), samples)), np.int64, len(samples)),
        _column(samples, "count"), _column(samples, "ns"),
    )  # fmt: skip


def joined(parts: Iterable[Rows]) -> Rows:
    """Rows behind each other."""
    turned = zip(*(part.columns() for part in parts), strict=True)
    return Rows(*(np.concatenate(columns) for columns in turned))


def _column(samples: Sequence[Any], name: str) -> Column:
    return np.fromiter(map(attrgetter(name), samples), np.int64, len(samples))


def _starts(ordered: Column) -> npt.NDArray[np.intp]:
    """Where each run of equal numbers starts."""
    if not len(ordered):
        return np.zeros(0, np.intp)
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def _codes(*columns: Column) -> Column:
    """One number for each row, the same for rows that are the same in all columns."""
    code = np.zeros(len(columns[0]), np.int64)
    if not len(code):
        return code
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if (int(code.max()) + 1) * (high - low + 1) >= _ROOM:  # too wide for a product: number what occurs
            code, column = (np.unique(one, return_inverse=True)[1] for one in (code, column))
            low, high = 0, int(column.max())
        code = code * (high - low + 1) + (column - low)
    return code
