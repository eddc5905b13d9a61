"""The rows that result from all postings, and the check of their sums."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from unidle.ledger.columns import LEAVES, RowColumns, in_order
from unidle.ledger.tables import Ints, SliceTable
from unidle.ledger.weights import exact_sum, row_ns, slice_ns

SHOWN: Final = 20  # findings of one kind that are spelled out

# What a reversal shares with the posting that it cancels, besides the revision before its own.
_SAME: Final = ("slice", "start_ns", "end_ns", "leaf", "job", "attempt", "step")


def current(columns: RowColumns) -> RowColumns:
    """The rows that stand, by slice and start; on each slice they tile its time."""
    return in_order(net(columns))


def net(columns: RowColumns) -> RowColumns:
    """Postings without those that were reversed, and without the reversals; in the same order.

    A reversal (sign -1, revision r + 1) cancels one posting of revision r that covers the same
    interval of the same slice with the same leaf, job, attempt and step.
    """
    if (columns["sign"] > 0).all():
        return columns
    return columns.take(_match(columns).stands)


class _Matched(NamedTuple):
    stands: npt.NDArray[np.bool_]  # per row
    orphans: Ints  # indexes of reversals that found no posting


def _match(columns: RowColumns) -> _Matched:
    """Match each reversal with its posting. Only rows that share a reversal's hash are sorted."""
    negative = columns["sign"] < 0
    bucket = _bucket(columns)
    reversed_ = np.zeros(1 << 22, np.bool_)
    reversed_[bucket[negative]] = True
    at = np.flatnonzero(reversed_[bucket])
    keys = [columns[name][at].astype(np.int64) for name in _SAME]
    keys.append(columns["revision"][at].astype(np.int64) - negative[at])
    # by key, the reversals of a key last
    order = np.lexsort((negative[at], *keys))
    at, keys = at[order], [key[order] for key in keys]
    new = np.ones(len(at), np.bool_)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    rank = np.arange(len(at)) - first[group]
    minus = np.bincount(group, weights=negative[at]).astype(np.int64)
    plus = np.diff(np.append(first, len(at))) - minus
    stands = ~negative
    stands[at[(rank < np.minimum(minus, plus)[group]) & ~negative[at]]] = False
    return _Matched(stands, at[negative[at] & (rank - plus[group] >= plus[group])])


def _bucket(columns: RowColumns) -> npt.NDArray[np.uint64]:
    mixed = columns["start_ns"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= columns["end_ns"].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= columns["slice"].astype(np.uint64) * np.uint64(0x165667B19E3779F9)
    # the multiplications moved what distinguishes rows to the upper bits
    return mixed >> np.uint64(64 - 22)


def check(columns: RowColumns) -> list[str]:
    """Errors of a ledger, in sentences; empty if it is consistent.

    Postings balance; on each slice the rows that stand tile the time from its first to its last
    sighting with no gap and no overlap; the leaves sum to the capacity exactly.
    """
    problems = []
    if (columns["sign"] < 0).any():
        orphans = columns.take(_match(columns).orphans)
        problems = _told(orphans, np.ones(len(orphans), np.bool_), "a reversal without a posting to cancel")
    standing = current(columns)
    problems += _tiling(standing)
    counted, capacity = exact_sum(row_ns(standing)), exact_sum(slice_ns(standing.slices))
    if counted != capacity:
        problems.append(f"the leaves sum to {counted} ns, the capacity is {capacity} ns")
    return problems


def check_batches(batches: Iterable[RowColumns]) -> list[str]:
    """As :func:`check`, for a ledger in parts: each adds up, and they continue each other."""
    problems: list[str] = []
    spans: dict[str, list[tuple[int, int]]] = {}
    for batch in batches:
        problems += check(batch)
        for s in batch.slices.infos():
            if s.last_ns > s.first_ns:
                spans.setdefault(s.id, []).append((s.first_ns, s.last_ns))
    for name, found in spans.items():
        found.sort()
        for (_, end), (start, _) in pairwise(found):
            if start != end:
                word = "a gap" if start > end else "an overlap"
                problems.append(f"slice {name}: {word} between parts of the ledger, from {end} to {start} ns")
    return problems


def _tiling(rows: RowColumns) -> list[str]:
    which, start, end, table = rows["slice"], rows["start_ns"], rows["end_ns"], rows.slices
    problems = _told(rows, end <= start, "an interval that does not end after its start")
    follows = which[1:] == which[:-1]
    before = np.zeros(len(rows), np.bool_)
    before[1:] = follows & (start[1:] > end[:-1])
    problems += _told(rows, before, "a gap before the row")
    before[1:] = follows & (start[1:] < end[:-1])
    problems += _told(rows, before, "an overlap with the row before it")
    opening = np.append(True, ~follows)[: len(rows)]
    closing = np.append(~follows, True)[: len(rows)]
    problems += _told(rows, opening & (start != table.first_ns[which]), "not begun at the first sighting")
    problems += _told(rows, closing & (end != table.last_ns[which]), "not ended at the last sighting")
    return problems + _without_rows(table, which)


def _without_rows(table: SliceTable, which: npt.NDArray[np.int32]) -> list[str]:
    bare = np.flatnonzero((np.bincount(which, minlength=len(table)) == 0) & (table.last_ns > table.first_ns))
    return _shown([f"slice {table.names.ids[k]}: sighted, but it has no row" for k in bare.tolist()])


def _told(rows: RowColumns, wrong: npt.NDArray[np.bool_], what: str) -> list[str]:
    at = np.flatnonzero(wrong)
    ids = rows.slices.names.ids
    return _shown(
        [
            f"slice {ids[rows['slice'][k]]}: {what}"
            f" ({LEAVES[rows['leaf'][k]]} from {rows['start_ns'][k]} to {rows['end_ns'][k]} ns)"
            for k in at[: SHOWN + 1].tolist()
        ],
        len(at),
    )


def _shown(found: list[str], count: int | None = None) -> list[str]:
    count = len(found) if count is None else count
    return found if count <= SHOWN else [*found[:SHOWN], f"and {count - SHOWN} more like it"]
