"""A ledger as files: JSON lines, CSV, Parquet, and a trace for Perfetto (``unidle.ledger.perfetto``).

Every format is streamed and holds the same rows: those that stand in the window, cut at its edges
and whole otherwise, wherever segments were cut. The rows of one slice are in order of time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from unidle.ledger.columns import (
    HOWS,
    LEAVES,
    Array,
    RowColumns,
    coalesce,
    concat,
    empty,
    in_order,
)
from unidle.ledger.rows import LedgerRow
from unidle.ledger.select import Selection, TimeRange
from unidle.ledger.sources import LedgerSource

if TYPE_CHECKING:
    from unidle.ledger.parquet.writer import NumberColumn, TextColumn

FIELDS: Final = LedgerRow._fields
ROWS_AT_ONCE: Final = 1 << 18
_ROWS_OF_TEXT: Final = 1 << 14
_NO_VALUE: Final = {"attempt": 0, "step": -1}
_QUOTED: Final = re.compile(r'[",\r\n]')


def standing_rows(
    source: LedgerSource,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> Iterator[RowColumns]:
    """The rows to export, in parts. A row that was cut at a segment's edge is joined again."""
    selection = Selection(where)
    held = empty()
    for batch in source.batches(window or source.extent()):
        # the last row of each slice may go on in this batch
        last = np.append(np.diff(held["slice"]) != 0, True)[: len(held)]
        yield from held.take(~last).parts(ROWS_AT_ONCE)
        rows = selection.rows_of(selection.slices_of(batch))
        held = coalesce(in_order(concat([held.take(last), rows])) if len(held) else rows)
    yield from held.parts(ROWS_AT_ONCE)


def write_jsonl(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> None:
    """One JSON object per row and line, with the fields of ``LedgerRow`` in its order; null for none."""
    form = "{" + ",".join(f'"{name}":%s' for name in FIELDS) + "}\n"
    for rows in standing_rows(source, window, where):
        _write_text(rows, out, form, _as_json, "null")


def write_csv(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> None:
    """A header and one line per row (RFC 4180 quoting, line feeds); an empty field for none."""
    out.write(",".join(FIELDS).encode() + b"\n")
    form = ",".join(["%s"] * len(FIELDS)) + "\n"
    for rows in standing_rows(source, window, where):
        _write_text(rows, out, form, _as_csv, "")


def write_parquet(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> None:
    """One Parquet file with names, not codes, in it (zstd, null for none)."""
    from unidle.ledger.parquet.writer import ParquetWriter

    writer = ParquetWriter(out)
    writer.group(_columns(empty()))
    for rows in standing_rows(source, window, where):
        writer.group(_columns(rows))
    writer.close()


def _columns(rows: RowColumns) -> dict[str, TextColumn | NumberColumn]:
    """One column per field of ``LedgerRow``."""
    from unidle.ledger.parquet.writer import NumberColumn, TextColumn

    named, found = _named(rows), dict[str, TextColumn | NumberColumn]()
    for name in FIELDS:
        if name in named:
            found[name] = TextColumn(*named[name])
        else:
            values = _numbers(rows, name).astype(np.int64)
            absent = values == _NO_VALUE[name] if name in _NO_VALUE else None
            found[name] = NumberColumn(values, absent)
    return found


def _write_text(rows: RowColumns, out: BinaryIO, form: str, of_name: Callable[[str], str], none: str) -> None:
    for part in rows.parts(_ROWS_OF_TEXT):
        named = _named(part)
        texts: list[list[str]] = []
        for name in FIELDS:
            if name in named:
                codes, names = named[name]
                used, places = np.unique(codes, return_inverse=True)
                known = [none if (text := names[code]) is None else of_name(text) for code in used.tolist()]
                texts.append([known[place] for place in places.tolist()])
            else:
                numbers = list(map(str, _numbers(part, name).tolist()))
                absent = str(_NO_VALUE.get(name, ""))
                texts.append([none if text == absent else text for text in numbers] if absent else numbers)
        out.write("".join(map(form.__mod__, zip(*texts, strict=True))).encode())


def _named(rows: RowColumns) -> dict[str, tuple[Array, Sequence[str | None]]]:
    """The fields that are texts: codes, and the text of each code."""
    names = rows.slices.names
    return {
        "device": (rows["slice"], names.devices),
        "slice": (rows["slice"], names.ids),
        "leaf": (rows["leaf"], LEAVES),
        "job": (rows["job"], [job.id or None for job in rows.jobs]),
        "how": (rows["how"], HOWS),
        "observer": (rows["observer"], rows.observers),
    }


def _numbers(rows: RowColumns, name: str) -> Array:
    return rows.slices.share_ppm[rows["slice"]] if name == "share_ppm" else rows[name]


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text
