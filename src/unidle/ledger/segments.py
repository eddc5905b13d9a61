"""Sealed rows as Parquet: rows before the watermark, which never change.

A segment holds the codes of its rows as columns and their tables (taxonomy version, leaves, hows,
slices with their sightings, jobs, observers) as JSON in the file's metadata, so it needs nothing
else to be read, also by a reader that is not unidle.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from unidle.errors import StoreDamaged, UnidleError
from unidle.ledger.columns import DTYPES, HOW_CODE, HOWS, LEAF_CODE, LEAVES, Array, RowColumns, in_order
from unidle.ledger.tables import JobInfo, SliceNames, SliceTable
from unidle.ledger.taxonomy import TAXONOMY_VERSION

_NAMES: Final = "unidle.names"
_SIGHTINGS: Final = "unidle.sightings"
_DETAIL: Final = ("step", "observer", "revision")
_STORED: Final = tuple(name for name in DTYPES if name != "sign")
_REMEDY: Final = "segments are derived: `unidle store compact` folds them again from the log"


def seal(columns: RowColumns, row_group_rows: int = 1 << 18) -> bytes:
    """Rows that stand as Parquet bytes, by slice and start, with statistics per row group."""
    from unidle.ledger.parquet.writer import NumberColumn, ParquetWriter

    if (columns["sign"] < 0).any():
        raise UnidleError("only rows that stand can be sealed", field="sign", remedy="net the postings first")
    columns = in_order(columns)
    table, names = columns.slices, columns.slices.names
    tables = {
        "taxonomy_version": TAXONOMY_VERSION,
        "leaves": LEAVES,
        "hows": HOWS,
        "slices": [names.ids, names.devices, names.nodes, names.models],
        "jobs": [[j.id, j.name, j.queue, j.user, j.price_per_device_hour, j.failures] for j in columns.jobs],
        "observers": columns.observers,
    }
    sightings = [table.share_ppm.tolist(), table.first_ns.tolist(), table.last_ns.tolist()]
    out = io.BytesIO()
    writer = ParquetWriter(out, {_NAMES: json.dumps(tables), _SIGHTINGS: json.dumps(sightings)})
    for part in columns.parts(row_group_rows) if len(columns) else (columns,):
        writer.group({name: NumberColumn(part[name]) for name in _STORED})
    writer.close()
    return out.getvalue()


def unseal(body: bytes, *, detail: bool = True) -> RowColumns:
    """The rows of a segment; without ``detail`` step, observer and revision are blank (and not read).

    :class:`StoreDamaged` when the bytes are not a segment that this version can read.
    """
    from unidle.ledger.parquet.reader import read

    wanted = [name for name in _STORED if detail or name not in _DETAIL]
    try:
        table = read(body, wanted)
        names = _names(table.metadata[_NAMES])
        share, first, last = (np.array(column, np.int64) for column in json.loads(table.metadata[_SIGHTINGS]))
        data = {name: table.columns[name].astype(DTYPES[name], copy=False) for name in wanted}
        for name, recode in (("leaf", names.leaves), ("how", names.hows)):
            data[name] = data[name] if recode is None else recode[data[name]]
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreDamaged(f"not a readable ledger segment: {error}", remedy=_REMEDY) from error
    for name in DTYPES:
        if name not in data:  # one value for all rows takes no memory
            blank = {"step": -1, "sign": 1}.get(name, 0)
            data[name] = np.broadcast_to(np.array(blank, DTYPES[name]), table.rows)
    slices = SliceTable(names.slices, share, first, last)
    return RowColumns(data, slices, names.jobs, names.observers if detail else ("",))


class _Names:
    """The tables of a segment, decoded; ``leaves`` and ``hows`` recode where its taxonomy is another."""

    __slots__ = ("hows", "jobs", "leaves", "observers", "slices")

    def __init__(self, tables: dict[str, Any]) -> None:
        self.slices = SliceNames(*(tuple(column) for column in tables["slices"]))
        # those that older versions sealed do not have the failures
        self.jobs = tuple(JobInfo(*fields[:5], *map(tuple, fields[5:])) for fields in tables["jobs"])
        self.observers = tuple(tables["observers"])
        self.leaves = _recode(tables["leaves"], LEAF_CODE)
        self.hows = _recode(tables["hows"], HOW_CODE)


@lru_cache(maxsize=2)
def _names(text: str) -> _Names:
    # neighbouring segments mostly have the same tables: the same objects are then used again
    return _Names(json.loads(text))


def _recode(stored: list[str], known: Mapping[Any, int]) -> Array | None:
    codes = [known[name] for name in stored]
    return None if codes == list(range(len(codes))) else np.array(codes, np.uint8)
