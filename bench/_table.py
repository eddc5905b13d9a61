"""What every benchmark shares: one row per figure, a table for people, JSON lines for ``run_all.py``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    ``ours`` and ``peer`` are in ``unit``; ``ratio`` above 1 is better than the peer, whichever way
    the unit counts; ``holds`` says whether ``goal`` (in words, with its number) is met, None where
    the row has no goal; ``how`` begins with ``measured here``, ``published`` or ``modelled`` and
    names the number of runs and the interval.
    """

    what: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    goal: str | None = None
    holds: bool | None = None
    how: str = "measured here"


COLUMNS = ("what", "ours", "unit", "peer", "ratio", "goal", "holds", "how")


def main(
    name: str,
    rows: Callable[[argparse.Namespace], Iterable[Row]],
    add_arguments: Callable[[argparse.ArgumentParser], object] | None = None,
) -> None:
    """Run a benchmark from the command line; exits 1 when a row falls short of its goal.

    With ``--json`` each row is printed as soon as it is measured, one object a line.
    """
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    if add_arguments:
        add_arguments(parser)
    arguments = parser.parse_args()
    measured = []
    for row in rows(arguments):
        measured.append(row)
        if arguments.json:
            print(json.dumps(asdict(row)), flush=True)
    if not arguments.json:
        print(f"{name}\n{text(measured)}")
    sys.exit(any(row.holds is False for row in measured))


def cells(row: Row) -> tuple[str, ...]:
    """The row as words, in the order of ``COLUMNS``."""
    peer = number(row.peer)
    if row.peer_name:
        peer = f"{peer} ({row.peer_name})" if peer else row.peer_name
    ratio = f"{row.ratio:.3g}x" if row.ratio is not None else ""
    holds = {True: "yes", False: "NO", None: ""}[row.holds]
    return (row.what, number(row.ours), row.unit, peer, ratio, row.goal or "", holds, row.how)


def text(rows: Sequence[Row]) -> str:
    """An aligned table; numbers to the right."""
    table = [COLUMNS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = {COLUMNS.index(c) for c in ("ours", "ratio")}
    return "\n".join(
        "  ".join(
            cell.rjust(w) if k in right else cell.ljust(w)
            for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def number(value: float | None) -> str:
    """Four significant digits, thousands apart, no exponent: ``21,400``, ``0.0312``, ``3``."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
