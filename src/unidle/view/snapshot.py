"""A view as bytes and back. Disposable: a snapshot that cannot be read is folded again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any, Final, cast

import msgspec

from unidle.store.protocol import Lease, Segment, Snapshot, Store
from unidle.view.fold import FOLD_VERSION, collector_paused, fold
from unidle.view.jobs import ENDED_JOBS, JobTable, JobView
from unidle.view.removed import REMOVED_JOBS, RemovedJobs
from unidle.view.resting import rows
from unidle.view.shelf import StoredRows
from unidle.view.state import View


def encode(view: View, without: Collection[str] | None = None) -> Snapshot:
    """The state of the view, without the indexes that are rebuilt from it.

    ``without``: ended jobs that it leaves out, as it does all removals then; None: it leaves out nothing.
    """
    bare = replace(view, book=replace(view.book, _index={}), **_NO_INDEX)
    bare.jobs = cast("JobTable", view.jobs.plain(without or ()))
    bare.removed = cast("RemovedJobs", view.removed.plain(gone=without is not None))
    return Snapshot(view.seq, FOLD_VERSION, _ENCODER.encode(bare))


def decode(snapshot: Snapshot) -> View | None:
    """The view of a snapshot, or None when it is of another form."""
    if snapshot.fold_version != FOLD_VERSION:
        return None
    try:
        with collector_paused():
            view = _DECODER.decode(snapshot.body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return view if view.seq == snapshot.seq else None


def _part(kind: type, value: dict[str, Any]) -> JobTable | RemovedJobs:
    if kind is RemovedJobs:
        return RemovedJobs.of(value)
    if kind is not JobTable:
        raise TypeError(f"not part of a view: {kind}")
    jobs, resting = value["jobs"], rows(value["resting"])
    positions = msgspec.convert(value["positions"], dict[str, int])
    for name in [name for name, job in jobs.items() if type(job) is not bytes]:
        jobs[name] = msgspec.convert(jobs[name], JobView)
    if any(type(jobs.get(name)) is not bytes for name in resting):
        raise msgspec.ValidationError("a waiting job is missing from a snapshot")
    if positions.keys() != {name for name, job in jobs.items() if type(job) is bytes} - resting.keys():
        raise msgspec.ValidationError("an ended job has no position in a snapshot")
    return JobTable(jobs, resting, positions, msgspec.convert(value["shelved"], int))


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
    if not all(store.has_view_rows(FOLD_VERSION, part, view.seq, count) for part, count in parts):
        view = View()
    return fold(view, store.read(after=view.seq))


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


def keep(store: Store, lease: Lease, view: View, segments: Sequence[Segment]) -> int:
    """Keep the view, and return the snapshot's bytes. Ended jobs whose postings are final, and removals, leave it for the store."""
    ended = view.jobs.ended(without=set(view.unposted))  # the unposted ones are read as a whole, soon
    removed = view.removed.rows()
    gone = {row.key for row in ended}
    kept = encode(view, gone)
    store.save_snapshot(lease, kept, segments, [*ended, *removed])
    _look_up(view, store, gone, len(removed))
    return len(kept.body)
