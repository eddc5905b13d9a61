"""What ``unidle span simulate`` writes and draws: rows, a Gantt picture, a strip for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from xml.sax.saxutils import escape

from unidle.errors import BadInput
from unidle.span.simulate import Simulation
from unidle.span.timeline import Row

COLUMNS: Final = ("device_or_link", "op", "pipeline", "stage", "microbatch", "start_ns", "end_ns")
MORE: Final = ("chunk", "bytes", "of", "schedule")
COLOURS: Final = {
    "F": "#4c8dbf", "B": "#e08a3c", "W": "#5aa469", "R": "#b9b9b9", "send": "#8e6bb3", "scatter": "#c9a5dd",
    "gather": "#c9a5dd", "allreduce": "#c05b5b",
}  # fmt: skip
_DRAWN: Final = 50_000
_SORTED: Final = (
    200_000  # microbatches times devices; more are written device by device, without being held at once
)


def write_rows(stream: BinaryIO, found: Iterable[Simulation], *, lines: bool) -> None:
    """Every operation of every simulation, in order of time where there are not too many to sort."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    names = (*COLUMNS, *MORE)
    if not lines:
        writer.writerow(names)
    for each in found:
        found_rows: Iterable[Row] = each.rows()
        if each.setting.devices * each.setting.microbatches < _SORTED:
            found_rows = sorted(found_rows, key=lambda row: (row.start_ns, row.end_ns, row.device_or_link))
        for row in found_rows:
            cells = (*row, each.result.schedule)
            if lines:
                text.write(json.dumps(dict(zip(names, cells, strict=True))) + "\n")
            else:
                writer.writerow(cells)
    text.detach()


def _places(simulation: Simulation) -> Iterator[str]:
    for pipeline in range(simulation.run.pipelines):
        for stage in range(len(simulation.setting.stages)):
            yield simulation.setting.device(pipeline, stage)


def write_svg(stream: BinaryIO, simulation: Simulation, width: int = 1200, line: int = 18) -> None:
    """Devices of one cell and the links between sites, one line each; at most so many operations."""
    devices = list(_places(simulation))
    by_place: dict[str, list[Row]] = {name: [] for name in devices}
    for row in simulation.rows():
        if row.device_or_link in by_place or (row.op == "send" and row.pipeline < simulation.run.pipelines):
            by_place.setdefault(row.device_or_link, []).append(row)
    length = max(simulation.result.iteration_ns, 1)
    left, height = 220, line * (len(by_place) + 2)
    told = simulation.result
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<text x="4" y="13">{escape(told.schedule)}: {told.iteration_ns / 1e6:.6g} ms, modelled</text>',
    ]
    drawn = 0
    for k, (name, there) in enumerate(by_place.items(), 1):
        top = k * line + 4
        parts.append(f'<text x="4" y="{top + 12}">{escape(name)}</text>')
        for row in there:
            drawn += 1
            if drawn > _DRAWN:
                break
            x = left + (width - left - 4) * row.start_ns / length
            wide = max((width - left - 4) * (row.end_ns - row.start_ns) / length, 0.2)
            parts.append(
                f'<rect x="{x:.2f}" y="{top}" width="{wide:.2f}" height="{line - 3}" fill="{COLOURS[row.op]}">'
                f"<title>{row.op}{row.microbatch} {row.start_ns}-{row.end_ns} ns</title></rect>"
            )
    parts.append("</svg>\n")
    stream.write("\n".join(parts).encode())


def strip(simulation: Simulation, width: int = 72, most: int = 12) -> list[str]:
    """A line of letters for each device of the first pipeline: what takes most of each column."""
    setting, length = simulation.setting, max(simulation.result.iteration_ns, 1)
    if setting.microbatches * len(setting.stages) > _DRAWN:
        return []
    names = [setting.device(0, stage) for stage in range(min(len(setting.stages), most))]
    taken: dict[str, list[dict[str, int]]] = {name: [{} for _ in range(width)] for name in names}
    for row in simulation.rows():
        columns = taken.get(row.device_or_link)
        if columns is None:
            continue
        first, last = row.start_ns * width // length, min((row.end_ns * width - 1) // length, width - 1)
        for column in range(first, last + 1):
            inside = min(row.end_ns * width, (column + 1) * length) - max(
                row.start_ns * width, column * length
            )
            columns[column][row.op] = columns[column].get(row.op, 0) + inside
    wide = max(map(len, names))
    lines = [f"{name.ljust(wide)}  {''.join(_letter(c, length) for c in taken[name])}" for name in names]
    return [f"{simulation.result.schedule}, first pipeline: F, B, W, R as computed, · waits", *lines]


def _letter(column: dict[str, int], length: int) -> str:
    idle = length - sum(column.values())
    op, most = max(column.items(), key=lambda item: item[1], default=("·", 0))
    return op if most >= idle else "·"


def write_ledger(path: str, simulation: Simulation) -> None:
    """Rows of the ledger, ``modelled``, of the devices of one cell; the name's end says the form."""
    from unidle.cli.output import whole_file
    from unidle.ledger import export
    from unidle.ledger.sources import LiveRows
    from unidle.span.ledger import columns

    forms = {".csv": export.write_csv, ".jsonl": export.write_jsonl, ".parquet": export.write_parquet}
    write = forms.get(Path(path).suffix)
    if write is None:
        raise BadInput(
            "ends in none of the known forms",
            field="--ledger-rows",
            value=path,
            remedy=f"end it in {', '.join(forms)}",
        )
    source = LiveRows(columns(simulation))
    with whole_file(path, "--ledger-rows") as stream:
        write(source, stream)
