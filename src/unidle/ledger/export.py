"""A ledger as files: JSON lines, CSV, Parquet, and a trace for Perfetto (``unidle.ledger.perfetto``).

Every format is streamed and holds the same rows: those that stand in the window, cut at its edges
and whole otherwise, wherever segments were cut. The rows of one slice are in order of time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from unidle.ledger.columns import (
    DTYPES,
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
    import polars as pl

FIELDS: Final = LedgerRow._fields
ROWS_AT_ONCE: Final = 1 << 18


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
    for rows in standing_rows(source, window, where):
        frame(rows).write_ndjson(out)


def write_csv(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> None:
    """A header and one line per row (RFC 4180 quoting, line feeds); an empty field for none."""
    frame(empty()).write_csv(out)
    for rows in standing_rows(source, window, where):
        frame(rows).write_csv(out, include_header=False)


def write_parquet(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
) -> None:
    """One Parquet file with names, not codes, in it (zstd, null for none)."""
    from polars.io.plugins import register_io_source

    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        del columns, predicate, limit, batch_rows  # the sink asks for everything
        for rows in standing_rows(source, window, where):
            yield frame(rows)

    schema = frame(empty()).schema
    register_io_source(frames, schema=schema).sink_parquet(out, compression="zstd", statistics=True)


def frame(rows: RowColumns) -> pl.DataFrame:
    """Rows with their names, one column per field of ``LedgerRow``."""
    import polars as pl

    names = rows.slices.names
    named = {
        "device": _named(names.devices, rows["slice"]),
        "slice": _named(names.ids, rows["slice"]),
        "leaf": _named(LEAVES, rows["leaf"]),
        "job": _named([job.id or None for job in rows.jobs], rows["job"]),
        "how": _named(HOWS, rows["how"]),
        "observer": _named(rows.observers, rows["observer"]),
    }
    numbers = {
        **{name: pl.Series(rows[name], dtype=pl.Int64) for name in DTYPES if name not in named},
        "share_ppm": pl.Series(rows.slices.share_ppm[rows["slice"]], dtype=pl.Int64),
    }
    return pl.DataFrame({name: named.get(name, numbers.get(name)) for name in FIELDS}).with_columns(
        pl.col("attempt").replace(0, None), pl.col("step").replace(-1, None)
    )


def _named(names: Collection[str | None], codes: Array) -> pl.Series:
    import polars as pl

    return pl.Series(names, dtype=pl.String).gather(codes)
