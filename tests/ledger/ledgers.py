"""Ledgers out of thin air, and the plainest way to ask them: for property tests."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from unidle.ledger.columns import LEAVES, RowColumns, clip, concat, from_entries, in_order, rows
from unidle.ledger.current import net
from unidle.ledger.rows import Entry, LedgerRow
from unidle.ledger.segments import seal
from unidle.ledger.sources import LiveRows, SegmentedRows, span
from unidle.ledger.tables import JobInfo, SliceInfo

JOBS = (
    JobInfo("a", "first", "night", "ann", failures=("code", "", "network")),
    JobInfo("b", 'se"cond,\n', "day", "bob", 2.5, ("machine",)),
    JobInfo("c", "</third>", "day", "ann"),
)
PPM = 1_000_000


@dataclass(frozen=True)
class Made:
    """A ledger that adds up: postings (some corrected), slices and jobs."""

    entries: list[Entry]
    slices: list[SliceInfo]
    corrected: list[Entry]  # the originals that were reversed

    def columns(self) -> RowColumns:
        return from_entries(self.entries, self.slices, JOBS)

    def live(self) -> LiveRows:
        return LiveRows(self.columns())


@st.composite
def ledgers(draw, max_slices: int = 3) -> Made:
    slices = draw(_slices(max_slices))
    entries = [e for group in _same_extent(slices) for e in draw(_tiling(slices, group))]
    which = draw(st.sets(st.integers(0, len(entries) - 1), max_size=6))
    corrected = [entries[k] for k in sorted(which)]
    for old in corrected:
        for revision in range(1, draw(st.integers(1, 3))):
            new = old._replace(leaf=draw(st.sampled_from(LEAVES)), revision=revision)
            entries += [old._replace(revision=revision, sign=-1), new]
            old = new
    order = draw(st.permutations(range(len(entries))))
    return Made([entries[k] for k in order], slices, corrected)


@st.composite
def _slices(draw, most: int) -> list[SliceInfo]:
    made: list[SliceInfo] = []
    while len(made) < most and (not made or draw(st.booleans())):
        device = f"n{len(made) % 2}/{len(made)}"
        first = draw(st.sampled_from([0, 7, 1_700_000_000_123_456_789]))
        last = first + draw(st.integers(1, 50) | st.integers(1, 10**16))
        cuts = draw(st.lists(st.integers(1, PPM - 1), max_size=2, unique=True))
        shares = [b - a for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), PPM], strict=True)]
        for k, share in enumerate(shares):
            name = device if len(shares) == 1 else f"{device}#{k}"
            made.append(
                SliceInfo(
                    name, device, device[:2], share, first, last, draw(st.sampled_from(["H100", "A100", ""]))
                )
            )
    return made


def _same_extent(slices: list[SliceInfo]) -> list[tuple[int, ...]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for k, s in enumerate(slices):
        groups.setdefault((s.first_ns, s.last_ns), []).append(k)
    return [tuple(g) for g in groups.values()]


@st.composite
def _tiling(draw, slices: list[SliceInfo], group: tuple[int, ...]) -> list[Entry]:
    first, last = slices[group[0]].first_ns, slices[group[0]].last_ns
    inner = draw(st.sets(st.integers(first, last), max_size=6))
    edges = sorted(inner | {first, last})
    made = []
    for start, end in itertools.pairwise(edges):
        job = draw(st.sampled_from(["", "a", "b", "c"]))
        attempt = draw(st.integers(1, 3)) if job else 0
        step = draw(st.integers(-1, 5)) if job else -1
        how = draw(st.sampled_from(["measured", "inferred", "modelled"]))
        observer = draw(st.sampled_from(["control", "helper"]))
        leaf = draw(st.sampled_from(LEAVES))
        made.append(Entry(group, start, end, leaf, job, attempt, step, how, observer))
    return made


def windows(made: Made) -> st.SearchStrategy[tuple[int, int]]:
    times = [s.first_ns for s in made.slices] + [s.last_ns for s in made.slices]
    time = st.integers(min(times) - 3, max(times) + 3)
    return st.tuples(time, time).map(lambda w: (min(w), max(w)))


# -- the plainest way ----------------------------------------------------------------------------


def plain_rows(made: Made) -> list[tuple[int, Entry]]:
    """(slice, posting) for each that stands, by slice and start."""
    left: Counter[tuple[int, Entry]] = Counter()
    for e in made.entries:
        for k in e.slices:
            # a reversal names the posting of the revision before its own
            original = e._replace(slices=(k,), sign=1, revision=e.revision - (e.sign < 0))
            left[k, original] += e.sign
    return sorted((k, e) for (k, e), n in left.items() if n)


def weight(time_ns: int, share_ppm: int) -> int:
    return time_ns * share_ppm // PPM


def plain_ns(s: SliceInfo, start_ns: int, end_ns: int, window: tuple[int, int]) -> int:
    start, end = max(start_ns, window[0]), min(end_ns, window[1])
    return weight(end, s.share_ppm) - weight(start, s.share_ppm) if start < end else 0


def plain_capacity(made: Made, window: tuple[int, int]) -> int:
    return sum(plain_ns(s, s.first_ns, s.last_ns, window) for s in made.slices)


# -- segments ------------------------------------------------------------------------------------


class Sealed(NamedTuple):
    """What a segment is filed under."""

    id: int
    start_ns: int
    end_ns: int


def segmented(made: Made, cuts: list[int], *, through_rows: bool) -> SegmentedRows:
    """The same ledger sealed at the given times, either through rows or behind whole ones."""
    rest = in_order(net(made.columns()))
    bodies, files = [], []
    for cut in sorted(cuts):
        sealed, rest = split_at(rest, cut) if through_rows else split_closed(rest, cut)
        files.append(Sealed(len(bodies), *span(sealed)))
        bodies.append(seal(sealed))
    return SegmentedRows(files, bodies.__getitem__, rest)


def split_closed(columns: RowColumns, at_ns: int) -> tuple[RowColumns, RowColumns]:
    """Rows that ended by ``at_ns``, and the rest; no row is cut, the edge is ragged by slice.

    This is how rows behind a watermark leave for a segment. The rows must stand and tile.
    """
    closed = columns["end_ns"] <= at_ns
    s = columns.slices
    edge = s.first_ns.copy()
    np.maximum.at(edge, columns["slice"][closed], columns["end_ns"][closed])
    before = replace(columns, slices=replace(s, last_ns=edge)).take(closed)
    after = replace(columns, slices=replace(s, first_ns=edge)).take(~closed)
    return before, after


def split_at(columns: RowColumns, at_ns: int) -> tuple[RowColumns, RowColumns]:
    return clip(columns, -(2**62), at_ns), clip(columns, at_ns, 2**62)


def whole(columns: list[RowColumns]) -> list[LedgerRow]:
    return list(rows(in_order(concat(columns))))
