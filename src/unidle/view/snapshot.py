"""A view as bytes and back. Disposable: a snapshot that cannot be read is folded again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any, Final, cast

import msgspec

from unidle.errors import StoreDamaged
from unidle.store.protocol import Lease, Segment, Snapshot, Store
from unidle.view.fold import FOLD_VERSION, collector_paused, fold
from unidle.view.job_table import ENDED_JOBS, JobTable
from unidle.view.removed import REMOVED_JOBS, RemovedJobs
from unidle.view.state import View
from unidle.view.stored_rows import StoredRows
from unidle.view.waiting_records import WAITING_JOBS


def encode(view: View, without: Collection[str] | None = None) -> Snapshot:
    """The state of the view, without the indexes that are rebuilt from it.

    ``without``: ended jobs that it leaves out, as it does all removals and jobs that rest then; None: nothing more is
    left out than was before.
    """
    bare = replace(view, book=replace(view.book, _index={}, _on=None), **_NO_INDEX)
    bare.jobs = cast("JobTable", view.jobs.plain(without or (), view.seq if without is not None else None))
    bare.removed = cast("RemovedJobs", view.removed.plain(gone=without is not None))
    return Snapshot(view.seq, FOLD_VERSION, _ENCODER.encode(bare))


def decode(snapshot: Snapshot) -> View | None:
    """The view of a snapshot, or None when it is of another form."""
    if snapshot.fold_version != FOLD_VERSION:
        return None
    try:
        with collector_paused():
            view = _DECODER.decode(snapshot.body)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None
    return view if view.seq == snapshot.seq else None


def _part(kind: type, value: dict[str, Any]) -> JobTable | RemovedJobs:
    if kind is RemovedJobs:
        return RemovedJobs.of(value)
    if kind is not JobTable:
        raise TypeError(f"not part of a view: {kind}")
    return JobTable.of(value)


_NO_INDEX: Final[dict[str, Any]] = {field.name: None for field in fields(View) if field.name.startswith("_")}
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(View, dec_hook=_part)


def load_view(store: Store) -> View:
    """The view of everything in the store: the newest snapshot, then the events after it."""
    view = _kept_view(store)
    return fold(view, store.read(after=view.seq))


def renewed_view(store: Store) -> View:
    """:func:`load_view` for who writes: without the snapshot, if a row that it leaves out is damaged or missing."""
    view = _kept_view(store)
    parts = ((ENDED_JOBS, view.jobs.shelved), (REMOVED_JOBS, view.removed.shelved))
    whole = all(store.has_view_rows(FOLD_VERSION, part, view.seq, count) for part, count in parts)
    if not whole or not _has_waiting(store, view):
        view = View()
    view.jobs.records.found(store.view_row_keys(FOLD_VERSION, WAITING_JOBS))
    return fold(view, store.read(after=view.seq))


def _has_waiting(store: Store, view: View) -> bool:
    """Whether the store has the records of all jobs that rest, and none of them is damaged."""
    try:
        found = {row.key for row in store.view_rows(FOLD_VERSION, WAITING_JOBS, view.seq)}
    except StoreDamaged:
        return False
    return view.jobs.records.keys() <= found


def _kept_view(store: Store) -> View:
    """The view of the newest snapshot; what that left out is looked up in the store."""
    snapshot = store.load_snapshot(FOLD_VERSION)
    view = (decode(snapshot) if snapshot is not None else None) or View()
    _look_up(view, store)
    return view


def _look_up(view: View, store: Store, gone: Collection[str] = (), removed: int = 0) -> None:
    """Ended jobs and removals that are not in memory are those of the store, from now on also these."""
    jobs = StoredRows(store, FOLD_VERSION, ENDED_JOBS, view.seq, view.jobs.shelved + len(gone))
    view.jobs.shelve(jobs, gone)
    removals = StoredRows(store, FOLD_VERSION, REMOVED_JOBS, view.seq, view.removed.shelved + removed)
    view.removed.shelve(removals, removed)
    view.jobs.records.look_up(StoredRows(store, FOLD_VERSION, WAITING_JOBS, view.seq, None))


def keep(store: Store, lease: Lease, view: View, segments: Sequence[Segment]) -> int:
    """Keep the view, and return the snapshot's bytes. Ended jobs whose postings are final, jobs that rest, and removals
    leave it for the store.
    """
    ended = view.jobs.ended(without=set(view.unposted))  # the unposted ones are read as a whole, soon
    removed = view.removed.rows()
    gone = {row.key for row in ended}
    records, waiting = view.jobs.records, view.jobs.unwritten()
    new = records.new_rows(waiting, view.seq)
    old = records.outdated(new)
    kept = encode(view, gone)
    try:
        store.save_snapshot(
            lease, kept, segments, [*ended, *removed, *new], [(WAITING_JOBS, key) for key in old]
        )
    except BaseException:
        view.jobs.forget_blocks()
        raise
    _look_up(view, store, gone, len(removed))
    view.jobs.leave(waiting, view.seq)
    records.dropped(old)
    return len(kept.body)
