"""The Gantt chart's bars as compact columns, thinned only as far as the file's size limit requires.

The steps of thinning, in order: none; neighbours with the same cause joined; edges rounded to a unit
far below a pixel; bars narrower than a bucket joined into the leaf that has most of the bucket. The
page states which step was used. The sums per track always come from the exact bars.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.page.frame import deflated
from unidle.report.model import DeviceTrack

Ints = NDArray[np.int64]
Context = tuple[str, str, int, str, str]  # leaf, job, attempt, how, observer

MAX_BLOB_CHARS: Final = 6_000_000
MAX_BARS: Final = 2_000_000
EXACT_IN_A_DOUBLE: Final = 2**53
ROUNDED_STEPS: Final = 2**27  # edges per window after rounding: a thousandth of a pixel
BUCKETS: Final = tuple(2**k for k in range(13, 2, -1))


@dataclass(frozen=True, slots=True)
class Columns:
    """Bars sorted by track and start; all arrays have one element per bar. ``pure_ppt`` is the
    share of its own leaf in a joined bar, in thousandths."""

    track: Ints
    start: Ints
    end: Ints
    context: Ints
    step: Ints
    last_step: Ints
    pure_ppt: Ints

    def __len__(self) -> int:
        return len(self.track)

    def take(self, keep: NDArray[np.bool_]) -> Columns:
        return Columns(*(getattr(self, name)[keep] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class PackedBars:
    """``blob`` is base64 of a deflated run of LEB128 numbers, see :func:`_blob`."""

    contexts: tuple[Context, ...]
    counts: tuple[int, ...]
    blob: str
    unit_ns: int
    bars_in: int
    bars_out: int
    joined: bool
    bucket_ns: int  # 0 where no bar was joined with one of another cause
    leaf_ns: tuple[dict[str, int], ...]  # per track, share-weighted, exact


def pack(
    tracks: Sequence[DeviceTrack], start_ns: int, end_ns: int, limit: int = MAX_BLOB_CHARS
) -> PackedBars:
    """The bars of ``tracks`` inside ``[start_ns, end_ns)`` in at most ``limit`` characters, if at all possible."""
    columns, contexts = _read(tracks, start_ns, end_ns)
    leaves = sorted({context[0] for context in contexts})
    leaf_of = np.array([leaves.index(context[0]) for context in contexts], dtype=np.int64)
    sums = _leaf_sums(columns, leaf_of, leaves, tracks)
    window_ns = end_ns - start_ns
    unit_ns = 1 if window_ns < EXACT_IN_A_DOUBLE else 1_000
    for thinned, unit, bucket_ns in _tries(columns, leaf_of, window_ns, unit_ns):
        if len(thinned) > MAX_BARS and bucket_ns < window_ns // BUCKETS[-1]:
            continue
        blob = _blob(thinned, unit)
        if len(blob) <= limit:
            break
    counts = np.bincount(thinned.track, minlength=len(tracks))
    return PackedBars(
        contexts=contexts,
        counts=tuple(counts.tolist()),
        blob=blob,
        unit_ns=unit,
        bars_in=sum(len(track.bars) for track in tracks),
        bars_out=len(thinned),
        joined=len(thinned) < len(columns),
        bucket_ns=bucket_ns,
        leaf_ns=sums,
    )


def _tries(
    columns: Columns, leaf_of: Ints, window_ns: int, unit_ns: int
) -> Iterator[tuple[Columns, int, int]]:
    """Ever shorter columns, with the unit of their edges and the bucket's width."""
    yield columns, unit_ns, 0
    joined = _join(columns, _breaks(columns, _changes(columns.context)), leaf_of)
    yield joined, unit_ns, 0
    while window_ns // unit_ns > ROUNDED_STEPS:
        unit_ns *= 10
    rounded = _rounded(joined, unit_ns)
    yield rounded, unit_ns, 0
    for buckets in BUCKETS:
        bucket_ns = max(window_ns // buckets, 1)
        yield _rounded(_bucketed(joined, bucket_ns, leaf_of), unit_ns), unit_ns, bucket_ns


def _read(tracks: Sequence[DeviceTrack], start_ns: int, end_ns: int) -> tuple[Columns, tuple[Context, ...]]:
    index: defaultdict[Context, int] = defaultdict(itertools.count().__next__)
    parts: list[tuple[Ints, ...]] = []
    for k, track in enumerate(tracks):
        if not track.bars:
            continue
        starts, ends, leaves, _, jobs, attempts, steps, hows, observers = zip(*track.bars, strict=True)
        causes = map(index.__getitem__, zip(leaves, jobs, attempts, hows, observers, strict=True))
        part = (starts, ends, list(causes), steps)
        track_column = np.full(len(starts), k, dtype=np.int64)
        parts.append((track_column, *(np.array(column, dtype=np.int64) for column in part)))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Columns(*[empty] * 7), ()
    of_track, start, end, context, step = (np.concatenate(column) for column in zip(*parts, strict=True))
    start = np.clip(start, start_ns, end_ns) - start_ns
    end = np.clip(end, start_ns, end_ns) - start_ns
    whole = np.full(len(of_track), 1_000, dtype=np.int64)
    columns = Columns(of_track, start, end, context, step, step.copy(), whole)
    order = np.lexsort((start, of_track))
    return _clean(Columns(*(getattr(columns, name)[order] for name in Columns.__slots__))), tuple(index)


def _clean(columns: Columns) -> Columns:
    """Without empty bars, and with none that starts before its neighbour ended."""
    columns = columns.take(columns.end > columns.start)
    if len(columns) == 0:
        return columns
    before = np.concatenate(([0], columns.end[:-1]))
    before[_changes(columns.track)] = 0
    start = np.maximum(columns.start, before)
    columns = replace(columns, start=start)
    return columns.take(columns.end > start)


def _changes(values: Ints) -> NDArray[np.bool_]:
    """True where a value differs from the one before it, and for the first."""
    change = np.ones(len(values), dtype=np.bool_)
    change[1:] = values[1:] != values[:-1]
    return change


def _breaks(columns: Columns, more: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True where a joined bar must begin: another track, a gap, or ``more``."""
    begin = _changes(columns.track) | more
    begin[1:] |= columns.start[1:] != columns.end[:-1]
    return begin


def _join(columns: Columns, begin: NDArray[np.bool_], leaf_of: Ints) -> Columns:
    """One bar for each run; its cause is the longest bar of the leaf that has most of the run."""
    if begin.all():
        return columns
    first = np.flatnonzero(begin)
    last = np.concatenate((first[1:], [len(columns)])) - 1
    run = np.cumsum(begin) - 1
    length = columns.end - columns.start
    winner, pure = _winners(run, leaf_of[columns.context], length, len(first))
    no_step = np.where(columns.step < 0, np.iinfo(np.int64).max, columns.step)
    step = np.minimum.reduceat(no_step, first)
    return Columns(
        track=columns.track[first],
        start=columns.start[first],
        end=columns.end[last],
        context=columns.context[winner],
        step=np.where(step == np.iinfo(np.int64).max, -1, step),
        last_step=np.maximum.reduceat(columns.last_step, first),
        pure_ppt=pure,
    )


def _winners(run: Ints, leaf: Ints, length: Ints, runs: int) -> tuple[Ints, Ints]:
    """Per run the bar that names it, and the share of that bar's leaf in thousandths."""
    leaves = int(leaf.max()) + 1
    keys, inverse = np.unique(run * leaves + leaf, return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, inverse, length)
    by_run = np.lexsort((length, sums[inverse], run))
    winner = by_run[np.flatnonzero(np.concatenate((run[by_run][1:] != run[by_run][:-1], [True])))]
    whole = np.zeros(runs, dtype=np.int64)
    np.add.at(whole, run, length)
    own = sums[inverse[winner]]
    share = np.floor(1_000 * (own / whole)).astype(np.int64)
    return winner, np.where(own == whole, 1_000, np.minimum(share, 999))


def _bucketed(columns: Columns, bucket_ns: int, leaf_of: Ints) -> Columns:
    """Runs of bars that are narrower than a bucket become one bar per bucket."""
    wide = columns.end - columns.start >= bucket_ns
    bucket = (columns.start + columns.end) // 2 // bucket_ns
    after_wide = np.concatenate(([False], wide[:-1]))
    return _join(columns, _breaks(columns, wide | after_wide | _changes(bucket)), leaf_of)


def _rounded(columns: Columns, unit_ns: int) -> Columns:
    """Edges on whole units, so that neighbours still touch; what became empty goes."""
    if unit_ns == 1:
        return columns
    start = (columns.start + unit_ns // 2) // unit_ns * unit_ns
    end = (columns.end + unit_ns // 2) // unit_ns * unit_ns
    columns = replace(columns, start=start, end=end)
    return columns.take(end > start)


def _leaf_sums(
    columns: Columns, leaf_of: Ints, leaves: Sequence[str], tracks: Sequence[DeviceTrack]
) -> tuple[dict[str, int], ...]:
    sums = np.zeros(len(tracks) * max(len(leaves), 1), dtype=np.int64)
    if len(columns):
        np.add.at(sums, columns.track * len(leaves) + leaf_of[columns.context], columns.end - columns.start)
    table = sums.reshape(len(tracks), max(len(leaves), 1)).tolist()
    return tuple(
        {leaf: ns * track.share_ppm // 1_000_000 for leaf, ns in zip(leaves, row, strict=False) if ns}
        for track, row in zip(tracks, table, strict=True)
    )


def _blob(columns: Columns, unit_ns: int) -> str:
    """Six columns of LEB128 numbers, one after the other: gap before the bar and its length (in units),
    context, first step + 1, further steps, 1000 - ``pure_ppt``; deflated (zlib), in base64."""
    if len(columns) == 0:
        return deflated(b"")
    start, end = columns.start // unit_ns, columns.end // unit_ns
    before = np.concatenate(([0], end[:-1]))
    before[_changes(columns.track)] = 0
    further = np.maximum(columns.last_step - columns.step, 0)
    numbers = (
        start - before,
        end - start,
        columns.context,
        columns.step + 1,
        further,
        1_000 - columns.pure_ppt,
    )
    return deflated(b"".join(_leb128(n) for n in numbers))


def _leb128(values: Ints) -> bytes:
    """Unsigned LEB128: seven bits per byte, the low ones first."""
    width = 1
    top = int(values.max(initial=0))
    while top >> 7 * width:
        width += 1
    shifted = values[:, None] >> (7 * np.arange(width, dtype=np.int64))[None, :]
    more = np.zeros(shifted.shape, dtype=np.bool_)
    more[:, :-1] = shifted[:, 1:] > 0
    used = shifted > 0
    used[:, 0] = True
    octets = ((shifted & 0x7F) | (more.astype(np.int64) << 7)).astype(np.uint8)
    return octets[used].tobytes()
