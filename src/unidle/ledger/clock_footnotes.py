"""Which rows of a ledger a host's clock makes uncertain: footnotes for people. Pure.

Rows with a job have boundaries from the clock of their host, which is known within an error. That is worth a word above
1 % of a row, or 10 ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from unidle.ledger.columns import RowColumns
from unidle.ledger.export import standing_rows
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LedgerSource
from unidle.words import counted, length

SHARE: Final = 100  # rows shorter than so many errors
PLAIN_NS: Final = 10_000_000  # a larger error concerns every row
_NAMED: Final = 4


def clock_footnotes(
    source: LedgerSource,
    window: TimeRange,
    where: Mapping[str, Collection[str | int]] | None,
    errors_ns: Mapping[str, int],
) -> list[str]:
    """One line for each host of which rows are uncertain, the least known clock first. ``errors_ns``: by node."""
    if not errors_ns:
        return []
    bad: dict[str, int] = {}
    rows: dict[str, int] = {}
    for part in standing_rows(source, window, where):
        _count(part, errors_ns, rows, bad)
    found = sorted(bad, key=lambda node: (-errors_ns[node], node))
    lines = [
        f"the clock of {node} is known within {length(errors_ns[node])}: "
        f"more than 1 % of {bad[node]} of {counted(rows[node], 'row')} there"
        if errors_ns[node] <= PLAIN_NS
        else f"the clock of {node} is known within {length(errors_ns[node])}, and so is each of {counted(rows[node], 'row')} there"
        for node in found[:_NAMED]
    ]
    more = len(found) - _NAMED
    return [*lines, f"and so are rows of {counted(more, 'more host')}"] if more > 0 else lines


def _count(part: RowColumns, errors_ns: Mapping[str, int], rows: dict[str, int], bad: dict[str, int]) -> None:
    """Add the rows with a job of this part by node: all, and those that are uncertain."""
    nodes = part.slices.names.nodes
    of_jobs = np.array([bool(job.id) for job in part.jobs], bool)[part["job"]]
    error = np.array([errors_ns.get(node, 0) for node in nodes], np.int64)[part["slice"]]
    mine = of_jobs & (error > 0)
    unsure = mine & ((error > PLAIN_NS) | (part["end_ns"] - part["start_ns"] < SHARE * error))
    for picked, counts in ((mine, rows), (unsure, bad)):
        for code, number in enumerate(np.bincount(part["slice"][picked], minlength=len(nodes)).tolist()):
            if number:
                counts[nodes[code]] = counts.get(nodes[code], 0) + number
