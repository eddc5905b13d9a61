"""What ``unidle span simulate`` writes and draws: rows, a Gantt picture, a strip for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from xml.sax.saxutils import escape

from unidle.errors import BadInput
from unidle.span.simulate.timeline import OpRow
from unidle.span.simulate.uneven import Modelled, members

COLUMNS: Final = ("device_or_link", "op", "pipeline", "stage", "microbatch", "start_ns", "end_ns")
MORE: Final = ("chunk", "bytes", "of", "schedule")
COLOURS: Final = {
    "F": "#4c8dbf", "B": "#e08a3c", "W": "#5aa469", "R": "#b9b9b9", "send": "#8e6bb3", "scatter": "#c9a5dd",
    "gather": "#c9a5dd", "allreduce": "#c05b5b",
}  # fmt: skip
_COMPUTED: Final = ("F", "B", "W", "R")
_DRAWN: Final = 50_000
_SORTED: Final = (
    200_000  # microbatches times devices; more are written device by device, without being held at once
)


def write_rows(stream: BinaryIO, found: Iterable[Modelled], *, lines: bool) -> None:
    """Every operation of every simulation, in order of time where there are not too many to sort."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    names = (*COLUMNS, *MORE)
    if not lines:
        writer.writerow(names)
    for each in found:
        found_rows: Iterable[OpRow] = each.rows()
        if each.setting.devices * each.setting.microbatches < _SORTED:
            found_rows = sorted(found_rows, key=lambda row: (row.start_ns, row.end_ns, row.device_or_link))
        for row in found_rows:
            cells = (*row, each.result.schedule)
            if lines:
                text.write(json.dumps(dict(zip(names, cells, strict=True))) + "\n")
            else:
                writer.writerow(cells)
    text.detach()


class Picture(NamedTuple):
    """One iteration to be drawn: a title, the devices in order, rows from 0 on, and how long it takes."""

    title: str
    devices: list[str]
    rows: Sequence[OpRow] | Iterator[OpRow]
    length_ns: int


def picture_of(simulation: Modelled) -> Picture:
    """A modelled iteration: the devices of one cell, if pipelines differ, those of one of each kind."""
    told = simulation.result
    devices = [
        each.device(pipeline, stage)
        for each in members(simulation)
        for pipeline in range(each.simulation.run.pipelines)
        for stage in range(len(simulation.setting.stages))
    ]
    title = f"{told.schedule}: {told.iteration_ns / 1e6:.6g} ms, modelled"
    return Picture(title, devices, simulation.rows(), told.iteration_ns)


def write_svg(stream: BinaryIO, pictures: Sequence[Picture], width: int = 1200, line: int = 18) -> None:
    """Devices and the links between sites, one line each, on one scale of time; at most so many operations each."""
    length = max(1, *(picture.length_ns for picture in pictures))
    parts: list[str] = []
    height = 0
    for picture in pictures:
        height = _draw(picture, parts, height, length, width, line)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
    stream.write("\n".join([head, *parts, "</svg>\n"]).encode())


def _draw(picture: Picture, parts: list[str], top: int, length: int, width: int, line: int) -> int:
    """One picture below what is there; the height of all."""
    known, by_place = set(picture.devices), {name: list[OpRow]() for name in picture.devices}
    for row in picture.rows:
        if row.device_or_link in known or (
            row.op == "send" and row.device_or_link.partition(">")[0] in known
        ):
            by_place.setdefault(row.device_or_link, []).append(row)
    left = 220
    scale = (width - left - 4) / length
    parts.append(f'<text x="4" y="{top + 13}">{escape(picture.title)}</text>')
    drawn = 0
    for k, (name, there) in enumerate(by_place.items(), 1):
        y = top + k * line + 4
        parts.append(f'<text x="4" y="{y + 12}">{escape(name)}</text>')
        for row in there:
            drawn += 1
            if drawn > _DRAWN:
                break
            x, wide = left + scale * row.start_ns, max(scale * (row.end_ns - row.start_ns), 0.2)
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{line - 3}" fill="{COLOURS[row.op]}">'
                f"<title>{row.op}{row.microbatch} {row.start_ns}-{row.end_ns} ns</title></rect>"
            )
    return top + line * (len(by_place) + 2)


def strip(simulation: Modelled, width: int = 72, most: int = 12) -> list[str]:
    """A line of letters for each device of the first pipeline, of each kind of them: what takes most of each column."""
    setting, kinds = simulation.setting, members(simulation)
    if setting.microbatches * len(setting.stages) * len(kinds) > _DRAWN:
        return []
    names = [each.device(0, stage) for each in kinds for stage in range(len(setting.stages))][:most]
    which = "first pipeline" if len(kinds) == 1 else "first pipeline of each kind"
    title = f"{simulation.result.schedule}, {which}: F, B, W, R as computed, · waits"
    return strip_of(Picture(title, names, simulation.rows(), simulation.result.iteration_ns), width)


def strip_of(picture: Picture, width: int = 72, scale_ns: int = 0) -> list[str]:
    """The same of any picture; ``scale_ns``: the time of the whole width, by default the iteration."""
    length, names = max(scale_ns or picture.length_ns, 1), picture.devices
    taken: dict[str, list[dict[str, int]]] = {name: [{} for _ in range(width)] for name in names}
    for row in picture.rows:
        columns = taken.get(row.device_or_link)
        if columns is None or row.op not in _COMPUTED:
            continue
        first, last = row.start_ns * width // length, min((row.end_ns * width - 1) // length, width - 1)
        for column in range(max(first, 0), last + 1):
            inside = min(row.end_ns * width, (column + 1) * length) - max(
                row.start_ns * width, column * length
            )
            columns[column][row.op] = columns[column].get(row.op, 0) + inside
    wide = max(map(len, names))
    return [
        picture.title,
        *(f"{name.ljust(wide)}  {''.join(_letter(c, length) for c in taken[name])}" for name in names),
    ]


def _letter(column: dict[str, int], length: int) -> str:
    idle = length - sum(column.values())
    op, most = max(column.items(), key=lambda item: item[1], default=("·", 0))
    return op if most >= idle else "·"


def write_ledger(path: str, simulation: Modelled) -> None:
    """Rows of the ledger, ``modelled``, of the devices of one cell; its form follows from the suffix of the name."""
    from unidle.cli.output import whole_file
    from unidle.ledger import export
    from unidle.ledger.sources import LiveRows
    from unidle.span.simulate.ledger import columns

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
