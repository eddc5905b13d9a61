"""The store's ledger as a source of rows: sealed segments, then what is folded from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unidle.ledger.rows import Entry
from unidle.store.protocol import Lease, Segment, Store
from unidle.view import snapshot
from unidle.view.accounts import entries, watermark_ns
from unidle.view.fold import FOLD_VERSION
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.ledger.columns import RowColumns
    from unidle.ledger.money import Prices
    from unidle.ledger.sources import SegmentedRows
    from unidle.ledger.tables import JobInfo, SliceInfo

SEAL_AT_POSTINGS = 100_000
"""Final postings are sealed once there are this many: below, a snapshot carries them well enough."""


def ledger_source(store: Store, view: View) -> SegmentedRows:
    """All rows of the store as of the view."""
    from unidle.ledger.sources import SegmentedRows

    live = _columns(view, entries(view, view.time_ns), view.book.sealed_ns, view.time_ns)
    sealed = [s for s in store.segments(FOLD_VERSION) if s.end_ns <= view.book.sealed_ns]
    return SegmentedRows(sealed, store.segment_body, live)


def prices(view: View) -> Prices:
    """Prices of the fleet by device model."""
    from unidle.ledger.money import Prices

    return Prices(view.fleet.prices_per_device_hour, view.fleet.currency)


def save_snapshot(store: Store, lease: Lease, view: View) -> None:
    """Keep the view; seal its final postings first where they have grown many."""
    segments: list[Segment] = []
    if len(view.book.closed) >= SEAL_AT_POSTINGS:
        segments = _seal(view)
    store.save_snapshot(lease, snapshot.encode(view), segments)


def _seal(view: View) -> list[Segment]:
    """Move postings that end before the watermark out of the view into one segment."""
    from unidle.ledger.current import current
    from unidle.ledger.segments import seal

    book, until = view.book, watermark_ns(view)
    if until <= book.sealed_ns:
        return []
    done = [e if e.end_ns <= until else e._replace(end_ns=until) for e in book.closed if e.start_ns < until]
    rest = [e if e.start_ns >= until else e._replace(start_ns=until) for e in book.closed if e.end_ns > until]
    columns = current(_columns(view, done, book.sealed_ns, until))
    segment = Segment(
        0, view.seq, FOLD_VERSION, book.sealed_ns or view.first_ns, until, len(columns), seal(columns)
    )  # fmt: skip
    book.closed, book.sealed_ns = rest, until
    return [segment]


def _columns(view: View, postings: list[Entry], start_ns: int, end_ns: int) -> RowColumns:
    from unidle.ledger.columns import from_entries

    return from_entries(postings, _slices(view, start_ns, end_ns), _jobs(view))


def _slices(view: View, start_ns: int, end_ns: int) -> list[SliceInfo]:
    from unidle.ledger.tables import SliceInfo

    infos = []
    for ref in view.book.slices:
        first = max(ref.first_ns, start_ns)
        last = min(end_ns if ref.gone_ns is None else ref.gone_ns, end_ns)
        infos.append(
            SliceInfo(ref.id, ref.device, ref.node, ref.share_ppm, first, max(first, last), ref.model)
        )
    return infos


def _jobs(view: View) -> list[JobInfo]:
    from unidle.ledger.tables import JobInfo

    return [
        JobInfo(job.id, job.spec.name, job.spec.queue, job.spec.user, job.spec.price_per_device_hour)
        for job in view.jobs.values()
    ]
