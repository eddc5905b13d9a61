"""Sources of rows: a ledger as a stream of batches, for any form of storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from unidle.ledger.columns import RowColumns, clip, in_order
from unidle.ledger.current import net
from unidle.ledger.segments import unseal
from unidle.ledger.select import TimeRange


class LedgerSource(Protocol):
    """A ledger that is read in batches of rows that stand."""

    def extent(self) -> TimeRange:
        """From the first sighting of any slice to the last."""

    def batches(self, window: TimeRange, *, detail: bool = True) -> Iterator[RowColumns]:
        """Rows and capacity inside the window, cut at its edges.

        Within a batch rows are in order of slice and start; of two batches the earlier holds the
        earlier times of a slice. Without ``detail`` the order is free, and step, observer and
        revision may be blank: enough for sums, and faster.
        """


class SegmentInfo(Protocol):
    """Metadata of a sealed segment."""

    @property
    def id(self) -> int: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


class LiveRows:
    """Rows in memory; postings are netted once."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = net(columns)

    def extent(self) -> TimeRange:
        return span(self._columns)

    def batches(self, window: TimeRange, *, detail: bool = True) -> Iterator[RowColumns]:
        if detail:
            self._columns = in_order(self._columns)
        yield clip(self._columns, *window)


class SegmentedRows:
    """Sealed segments, one in memory at a time, then the live rows.

    ``segments`` are in the order in which they were sealed; ``body`` gives a segment's bytes by its
    id. Segments outside a window are not read.
    """

    def __init__(
        self,
        segments: Sequence[SegmentInfo],
        body: Callable[[int], bytes],
        live: RowColumns | None = None,
    ) -> None:
        self._segments = tuple(segments)
        self._body = body
        self._live = LiveRows(live) if live is not None else None

    def extent(self) -> TimeRange:
        spans = [TimeRange(s.start_ns, s.end_ns) for s in self._segments]
        if self._live is not None:
            spans.append(self._live.extent())
        spans = [s for s in spans if s.end_ns > s.start_ns]
        if not spans:
            return TimeRange(0, 0)
        return TimeRange(min(s.start_ns for s in spans), max(s.end_ns for s in spans))

    def batches(self, window: TimeRange, *, detail: bool = True) -> Iterator[RowColumns]:
        for segment in self._segments:
            if segment.start_ns < window.end_ns and segment.end_ns > window.start_ns:
                yield clip(unseal(self._body(segment.id), detail=detail), *window)
        if self._live is not None:
            yield from self._live.batches(window, detail=detail)


def span(columns: RowColumns) -> TimeRange:
    """From the first sighting of any slice to the last; what a segment of these rows is filed under."""
    table = columns.slices
    some = table.last_ns > table.first_ns
    if not some.any():
        return TimeRange(0, 0)
    return TimeRange(int(table.first_ns[some].min()), int(table.last_ns[some].max()))
