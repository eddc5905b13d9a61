"""Rows that snapshots leave out, next to them: a snapshot stays as small as what is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from unidle.errors import StoreDamaged
from unidle.store import statements as sql
from unidle.store.checksum import blob_crc
from unidle.store.database import Database, Params, RowTuple
from unidle.store.protocol import ViewRow

Query = Callable[[str, Params], list[RowTuple]]
TABLE: Final = "unidle_view_rows"
_PAGE: Final = 1024
_BEYOND: Final = 1 << 62  # no position or event is as high


def add(db: Database, fold_version: int, seq: int, rows: Sequence[ViewRow]) -> None:
    """Add rows that the snapshot up to event ``seq`` leaves out."""
    written = (
        (fold_version, *row[:3], seq, blob_crc(row.body, fold_version, *row[:3], seq), row.body)
        for row in rows
    )
    db.execute_many(sql.ADD_VIEW_ROW, written)


def drop(db: Database, fold_version: int, keys: Sequence[tuple[str, str]]) -> None:
    """Drop rows, by part and key."""
    db.execute_many(sql.DROP_VIEW_ROW, ((fold_version, part, key) for part, key in keys))


def row_of(query: Query, fold_version: int, part: str, seq: int, key: str) -> bytes | None:
    """See :meth:`unidle.store.protocol.Store.view_row`."""
    for row in query(sql.VIEW_ROW, (fold_version, part, seq, key)):
        return _checked(fold_version, part, row).body
    return None


def rows_of(query: Query, fold_version: int, part: str, seq: int, *, backwards: bool) -> Iterator[ViewRow]:
    """See :meth:`unidle.store.protocol.Store.view_rows`."""
    statement, last = (sql.VIEW_ROWS_DOWN, _BEYOND) if backwards else (sql.VIEW_ROWS_UP, -1)
    while rows := query(statement, (fold_version, part, seq, last, _PAGE)):
        for row in rows:
            yield _checked(fold_version, part, row)
        last = rows[-1][1]


def damaged(db: Database) -> Iterator[str]:
    """Rows that are damaged, in words."""
    if TABLE not in db.tables():
        return
    for version, part in db.query(sql.VIEW_PARTS):
        last = -1
        while rows := db.query(sql.VIEW_ROWS_UP, (version, part, _BEYOND, last, _PAGE)):
            for row in rows:
                try:
                    _checked(version, part, row)
                except StoreDamaged as error:
                    yield error.field or part
            last = rows[-1][1]


def _checked(fold_version: int, part: str, row: RowTuple) -> ViewRow:
    key, position, seq, crc, body = row
    if blob_crc(body, fold_version, part, key, position, seq) != crc:
        raise StoreDamaged(
            "its record is damaged", field=f"{part} {key}",
            remedy="the next controller of the store makes it again: `unidle up`",
        )  # fmt: skip
    return ViewRow(part, key, position, bytes(body))
