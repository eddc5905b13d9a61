"""What is folded from the log and kept next to it: snapshots, and sealed segments of the ledger. Both can be made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unidle.errors import StoreDamaged, StoreError
from unidle.store import statements as sql
from unidle.store import view_rows
from unidle.store.checksum import blob_crc, fields_crc
from unidle.store.database import Database, RowTuple
from unidle.store.protocol import Segment, Snapshot

_CHECK: Final = "run `unidle store check`"


def save(db: Database, snapshot: Snapshot, segments: Sequence[Segment]) -> None:
    """Add a snapshot in place of the earlier ones of its fold version, and segments."""
    key = (snapshot.fold_version, snapshot.seq)
    db.execute(sql.DROP_SNAPSHOTS_UNTIL, key)
    db.execute(sql.ADD_SNAPSHOT, (*key, blob_crc(snapshot.body, *key), snapshot.body))
    for segment in segments:
        db.insert(sql.ADD_SEGMENT, _segment_row(segment))


def newest_snapshot(db: Database, fold_version: int, before: int) -> Snapshot | None:
    """The newest one that is not damaged, up to event ``before``."""
    while rows := db.query(sql.SNAPSHOTS, (fold_version, before)):
        seq, crc, body = rows[0]
        if blob_crc(body, fold_version, seq) == crc:
            return Snapshot(seq, fold_version, body)
        before = seq - 1
    return None


def segments(db: Database, fold_version: int) -> list[Segment]:
    """Descriptions of all segments of that fold version. Errors: :class:`StoreDamaged`."""
    return [_segment(row) for row in db.query(sql.SEGMENTS, (fold_version,))]


def segment_body(db: Database, segment_id: int) -> bytes:
    """Errors: :class:`StoreError` if there is none of that id, :class:`StoreDamaged`."""
    rows = db.query(sql.SEGMENT_BODY, (segment_id,))
    if not rows:
        raise StoreError("there is no such segment", field="segment", value=segment_id)
    crc, body = rows[0]
    if blob_crc(body) != crc:
        raise StoreDamaged("its checksum is wrong", field=f"segment {segment_id}", remedy=_CHECK)
    return bytes(body)


def drop_superseded(db: Database) -> None:
    """Drop what is of an older fold version than the newest snapshot."""
    for statement in (sql.DROP_OLD_SEGMENTS, sql.DROP_OLD_VIEW_ROWS, sql.DROP_OLD_SNAPSHOTS):
        db.execute(statement)


def faults(db: Database) -> Iterator[str]:
    """What is damaged, in sentences."""
    for key in db.query(sql.SNAPSHOT_KEYS):
        for crc, body in db.query(sql.SNAPSHOT, key):
            if blob_crc(body, *key) != crc:
                yield f"snapshot {key[1]}: its checksum is wrong (it is skipped)"
    for (fold_version,) in db.query(sql.SEGMENT_VERSIONS):
        for segment in segments(db, fold_version):
            try:
                segment_body(db, segment.id)
            except StoreDamaged as error:
                yield str(error)
    for row in view_rows.damaged(db):
        yield f"{row}: its checksum is wrong (the next controller makes it again)"


def _segment_row(segment: Segment) -> RowTuple:
    if segment.body is None:
        raise StoreError("a segment needs its body", field=f"segment up to {segment.seq}")
    body_crc = blob_crc(segment.body)
    fields = (segment.seq, segment.fold_version, segment.start_ns, segment.end_ns, segment.rows, body_crc)
    return (*fields, fields_crc(*fields), segment.body)


def _segment(row: RowTuple) -> Segment:
    segment_id, *fields, crc = row
    if fields_crc(*fields) != crc:
        raise StoreDamaged("its checksum is wrong", field=f"segment {segment_id}", remedy=_CHECK)
    return Segment(segment_id, *fields[:5])
