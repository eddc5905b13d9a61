"""A view as bytes and back. Disposable: a snapshot that cannot be read is folded again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import Any, Final, cast

import msgspec

from unidle.errors import StoreDamaged
from unidle.store.protocol import EndedJob, Snapshot, Store
from unidle.view.fold import FOLD_VERSION, collector_paused, fold
from unidle.view.jobs import JobTable, JobView
from unidle.view.resting import rows
from unidle.view.state import View
from unidle.words import counted


class StoredJobs:
    """The ended jobs that a snapshot up to event ``seq`` left out, ``count`` in all, as the store has them."""

    def __init__(self, store: Store, seq: int, count: int) -> None:
        self._store, self._seq, self._count = store, seq, count

    def __len__(self) -> int:
        return self._count

    def get(self, job_id: str) -> bytes | None:
        return self._store.ended_job(FOLD_VERSION, self._seq, job_id) if self._count else None

    def all(self, *, backwards: bool = False) -> Iterator[EndedJob]:
        """Errors: :class:`StoreDamaged` at the end, if some are missing."""
        if not self._count:
            return
        found = 0
        for one in self._store.ended_jobs(FOLD_VERSION, self._seq, backwards=backwards):
            found += 1
            yield one
        if found != self._count:
            lost = self._count - found
            raise StoreDamaged(
                f"{counted(lost, 'ended job')} {'is' if lost == 1 else 'are'} missing",
                field=self._store.url,
                remedy="the next controller of the store makes them again: `unidle up`",
            )  # fmt: skip

    def __deepcopy__(self, memo: object) -> StoredJobs:
        return self  # a copy of a view reads the same rows


def encode(view: View, without: Collection[str] = ()) -> Snapshot:
    """The state of the view, without the indexes that are rebuilt from it and the ended jobs ``without``."""
    bare = replace(view, book=replace(view.book, _index={}), **_NO_INDEX)
    bare.jobs = cast("JobTable", view.jobs.plain(without))
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


def _table(kind: type, value: dict[str, Any]) -> JobTable:
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
_DECODER: Final = msgspec.msgpack.Decoder(View, dec_hook=_table)


def load_view(store: Store) -> View:
    """The view of everything in the store: the newest snapshot, then the events after it."""
    snapshot = store.load_snapshot(FOLD_VERSION)
    view = (decode(snapshot) if snapshot is not None else None) or View()
    view.jobs.shelve(StoredJobs(store, view.seq, view.jobs.shelved))
    return fold(view, store.read(after=view.seq))


def renewed_view(store: Store) -> View:
    """:func:`load_view` for who writes: without the snapshot, if one of the ended jobs that it leaves out is damaged."""
    snapshot = store.load_snapshot(FOLD_VERSION)
    view = decode(snapshot) if snapshot is not None else None
    if view is None or not store.has_whole_ended(FOLD_VERSION, view.seq, view.jobs.shelved):
        return fold(View(), store.read())
    view.jobs.shelve(StoredJobs(store, view.seq, view.jobs.shelved))
    return fold(view, store.read(after=view.seq))
