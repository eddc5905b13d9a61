"""A view as bytes and back. Disposable: a snapshot that cannot be read is folded again."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import msgspec

from unidle.store.protocol import Snapshot, Store
from unidle.view.fold import FOLD_VERSION, collector_paused, fold
from unidle.view.jobs import JobTable, JobView
from unidle.view.resting import rows
from unidle.view.state import View


def encode(view: View) -> Snapshot:
    """The state of the view, without the indexes that are rebuilt from it."""
    bare = replace(view, book=replace(view.book, _index={}), **_NO_INDEX)
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


def _plain(value: object) -> object:
    if isinstance(value, JobTable):
        return value.plain()
    raise TypeError(f"not part of a view: {type(value)}")


def _table(kind: type, value: dict[str, Any]) -> JobTable:
    if kind is not JobTable:
        raise TypeError(f"not part of a view: {kind}")
    jobs, resting = value["jobs"], rows(value["resting"])
    for name in [name for name, job in jobs.items() if type(job) is not bytes]:
        jobs[name] = msgspec.convert(jobs[name], JobView)
    if any(type(jobs.get(name)) is not bytes for name in resting):
        raise msgspec.ValidationError("a waiting job is missing from a snapshot")
    return JobTable(jobs, resting)


_NO_INDEX: Final[dict[str, Any]] = {field.name: None for field in fields(View) if field.name.startswith("_")}
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER: Final = msgspec.msgpack.Decoder(View, dec_hook=_table)


def load_view(store: Store) -> View:
    """The view of everything in the store: the newest snapshot, then the events after it."""
    snapshot = store.load_snapshot(FOLD_VERSION)
    view = (decode(snapshot) if snapshot is not None else None) or View()
    return fold(view, store.read(after=view.seq))
