"""The store's ledger as a source of rows: sealed segments, then what is folded from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unidle.errors import StoreDamaged
from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import OTHER_POD
from unidle.store.protocol import Lease, Segment, Store
from unidle.view import snapshot
from unidle.view.accounts import entries, post_ended, watermarks_ns
from unidle.view.fold import FOLD_VERSION
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.ledger.columns import RowColumns
    from unidle.ledger.money import Prices
    from unidle.ledger.sources import SegmentedRows
    from unidle.ledger.tables import JobInfo, SliceInfo

SEAL_AT_POSTINGS: Final = 50_000
"""Final postings are sealed once there are this many: below, a snapshot carries them well enough."""
SEAL_AT_JOBS: Final = 1_000
"""They are also sealed once so many jobs have ended, since each is in memory and in every snapshot until then."""
_LEAST: Final = 500  # postings of a segment: fewer are not worth its read


def ledger_source(store: Store, view: View) -> SegmentedRows:
    """All rows of the store as of the view."""
    from unidle.ledger.sources import SegmentedRows

    live = _columns(view, entries(view, view.time_ns), [view.time_ns] * len(view.book.slices))
    return SegmentedRows(_segments(store, view), store.segment_body, live)


def _segments(store: Store, view: View) -> list[Segment]:
    """The sealed segments that the view stands on; others are of a fold that was begun again."""
    if not view.book.segments:
        return []
    found = {segment.seq: segment for segment in store.segments(FOLD_VERSION)}
    try:
        return [found[seq] for seq in view.book.segments]
    except KeyError as error:
        raise StoreDamaged(
            "a sealed segment of the ledger is missing",
            field="segment up to event", value=error.args[0], remedy="run `unidle store check`",
        ) from None  # fmt: skip


def prices(view: View) -> Prices:
    """Prices of the fleet by device model."""
    from unidle.ledger.money import Prices

    return Prices(view.fleet.prices_per_device_hour, view.fleet.currency)


def save_snapshot(store: Store, lease: Lease, view: View, *, seal_at: int = SEAL_AT_POSTINGS) -> int:
    """Keep the view, and return the snapshot's bytes; seal its final postings first where there are ``seal_at`` of them.

    The ended jobs whose postings are final leave the view for the store.
    """
    many = len(view.book.closed) + view.unposted_size >= seal_at
    segments = []
    if many or len(view.unposted) >= SEAL_AT_JOBS:
        segments = _seal(view, max(seal_at // 2 if many else min(seal_at // 2, _LEAST), 1))
    return snapshot.keep(store, lease, view, segments)


def _seal(view: View, least: int) -> list[Segment]:
    """Move the postings before each slice's watermark out of the view into one segment, if they are at least so many."""
    from unidle.ledger.current import current
    from unidle.ledger.segments import seal
    from unidle.ledger.sources import span

    post_ended(view)
    book, until = view.book, watermarks_ns(view)
    open_slices = {k for k, since in enumerate(book.since) if until[k] < since}
    done, rest = _split(book.closed, until, open_slices)
    if len(done) < least:
        return []  # what is open holds most of them back
    columns = current(_columns(view, done, until))
    start_ns, end_ns = span(columns)
    segment = Segment(0, view.seq, FOLD_VERSION, start_ns, end_ns, len(columns), seal(columns))
    book.closed, book.sealed = rest, until
    book.segments.append(view.seq)
    return [segment]


def _split(closed: list[Entry], until: list[int], open_slices: set[int]) -> tuple[list[Entry], list[Entry]]:
    """Postings before and after each slice's watermark; none lies across it."""
    done: list[Entry] = []
    rest: list[Entry] = []
    for entry in closed:
        if open_slices.isdisjoint(entry.slices):
            done.append(entry)
            continue
        before = tuple(k for k in entry.slices if entry.end_ns <= until[k])
        after = tuple(k for k in entry.slices if entry.end_ns > until[k])
        done += [entry._replace(slices=before)] if before else []
        rest += [entry._replace(slices=after)] if after else []
    return done, rest


def _columns(view: View, postings: list[Entry], until: list[int]) -> RowColumns:
    from unidle.ledger.columns import as_modelled, from_entries

    columns = from_entries(postings, _slices(view, until), _jobs(view, {e.job for e in postings}))
    return as_modelled(columns) if view.modelled else columns


def _slices(view: View, until: list[int]) -> list[SliceInfo]:
    """Slices with the sightings that are not sealed yet, as far as ``until``."""
    from unidle.ledger.tables import SliceInfo

    infos = []
    for ref, first, last in zip(view.book.slices, view.book.sealed, until, strict=True):
        last = last if ref.gone_ns is None else min(ref.gone_ns, last)
        infos.append(
            SliceInfo(ref.id, ref.device, ref.node, ref.share_ppm, first, max(first, last), ref.model)
        )
    return infos


def _jobs(view: View, named: set[str]) -> list[JobInfo]:
    from unidle.ledger.tables import JobInfo

    jobs = [job for job in map(view.jobs.get, named) if job is not None]
    pods = sorted(name for name in named if name.startswith(OTHER_POD))
    of_others = [
        JobInfo(pod, pod.partition("/")[2], user=pod.removeprefix(OTHER_POD).partition("/")[0])
        for pod in pods
    ]
    return of_others + [
        JobInfo(
            job.id,
            job.spec.name,
            job.spec.queue,
            job.spec.user,
            job.spec.price_per_device_hour,
            tuple(attempt.failure_kind for attempt in job.attempts),
        )
        for job in sorted(jobs, key=lambda job: job.order)
    ]
