"""One self-contained HTML file: the waterfall, the Gantt chart and the tables.

The file loads nothing from outside, and a content security policy forbids it. The tables are plain
HTML and work without scripts; the chart's data is deflated JSON and numbers in base64, so no name
that a user chose appears inside a script.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from unidle.report.advice import Advice, best_advice, shell_line, steps_advice
from unidle.report.bars import pack
from unidle.report.model import ReportData
from unidle.report.payload import payload
from unidle.report.story_html import stories
from unidle.report.tables import PROSE, Cell, Table, tables
from unidle.report.text import clock_time, device_time, duration, number, visible
from unidle.report.waterfall import waterfall_table
from unidle.scope.export.page import head
from unidle.words import does, plural

STATIC_ROWS: Final = 200
_SCRIPTS: Final = ("data.js", "gantt.js", "chart.js", "plot.js", "page.js")


def render(data: ReportData) -> str:
    """The whole file as text; write it as UTF-8."""
    packed = pack(data.devices, data.window_start_ns, data.window_end_ns)
    shown = tables(data, packed)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    body = [
        _header(data),
        '<main><p id="filters" hidden></p>',
        *_first(data),
        _ratios(data),
        *(_section(table) for table in shown),
        "</main>",
        _footer(data),
        _data("data", _deflated(payload(data, packed, shown))),
        _data("bars", packed.blob),
        f"<script>{script}</script>",
    ]
    return head(visible(data.title), _asset("page.css"), script) + "\n".join(body) + "\n</body></html>\n"


def _first(data: ReportData) -> tuple[str, str, str]:
    """What a reader comes for: of one job that failed why, else where the time went."""
    where, story, gantt = _where(data), stories(data), _gantt(data)
    if len(data.stories) != 1:
        return where, gantt, story
    only = data.stories[0]
    return (story, where, gantt) if only.problem or only.hang else (where, story, gantt)


def _header(data: ReportData) -> str:
    window = duration(data.window_end_ns - data.window_start_ns)
    devices = len({track.device for track in data.devices})
    facts = (
        f"{number(devices)} {plural(devices, 'device')} for {window}",
        f"{clock_time(data.window_start_ns)} to {clock_time(data.window_end_ns)} UTC",
        f"capacity {device_time(data.capacity_ns, data.time_unit)}",
        f"store <bdi>{_text(data.store)}</bdi>",
    )
    return f'<header><h1><bdi>{_text(data.title)}</bdi></h1><p class="quiet">{" · ".join(facts)}</p></header>'


def _where(data: ReportData) -> str:
    unit = "GPU" if data.time_unit == "GPU" else "device"
    title = f"<h2>Where did the {unit}-seconds go?</h2>"
    if data.capacity_ns == 0:
        words = ("unidle", "run", "--ranks", "4", "--store", data.store, "--", "python", "train.py")
        empty = _empty("No device time in this window yet. Start a job:", words)
        return f'<section id="where">{title}{empty}</section>'
    return f'<section id="where">{title}{_answer(data)}{waterfall_table(data)}</section>'


def _answer(data: ReportData) -> str:
    advice = best_advice(data)
    if advice is None:
        return "<p>All of it was of use.</p>"
    steps = steps_advice(data)
    return _advised(advice, data) + ("" if steps is None else _advised(steps, data))


def _advised(advice: Advice, data: ReportData) -> str:
    line = advice.line
    spent = f"{device_time(line.ns, data.time_unit)}, {line.share}"
    return (
        f"<p>{_text(advice.lead)}: <b>{_text(line.group)} / {_text(line.leaf)}</b> ({spent}): "
        f"{_text(advice.text)}. <code>{_text(shell_line(advice.words))}</code></p>"
    )


def _gantt(data: ReportData) -> str:
    if not any(track.bars for track in data.devices):
        words = ("unidle", "fleet", "--store", data.store)
        empty = _empty("No device was observed in this window. See the devices of the store:", words)
        return f'<section id="gantt"><h2>Each device over time</h2>{empty}</section>'
    return f'<section id="gantt"><h2>Each device over time</h2>{_asset("gantt.html")}</section>'


def _ratios(data: ReportData) -> str:
    if not data.ratios:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{_text(ratio.name)}</th>"
        f'<td class=number data-head="value">{"-" if ratio.value is None else f"{100 * ratio.value:.1f} %"}</td>'
        f'<td class=number data-head="of this">{device_time(ratio.numerator_ns, data.time_unit)}</td>'
        f'<td class=number data-head="in this">{device_time(ratio.denominator_ns, data.time_unit)}</td>'
        f'<td data-head="definition">{_text(ratio.definition)}</td></tr>'
        for ratio in data.ratios
    )
    head = _heads(("ratio", "value", "of this", "in this", "definition"), frozenset({1, 2, 3}))
    return (
        '<section id="ratios"><h2>Ratios</h2><div class="scroll"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _section(table: Table) -> str:
    title = f"<h2>{table.title} <small>{number(len(table.rows) + table.left_out)}</small></h2>"
    if not table.rows:
        return f'<section id="{table.id}">{title}{_empty(table.empty, table.command)}</section>'
    classes = [_class(k, name, table.numeric) for k, name in enumerate(table.columns)]
    rows = "".join(
        f"<tr>{_cells(row.cells, classes, table.columns)}</tr>" for row in table.rows[:STATIC_ROWS]
    )
    more = len(table.rows) - STATIC_ROWS
    notes = (
        [f"{number(more)} more {plural(more, 'row')} {does(more, 'need')} the page's script."]
        if more > 0
        else []
    )
    if table.left_out:
        notes.append(
            f"{number(table.left_out)} {plural(table.left_out, 'row')} did not fit into this file; the store has them."
        )
    note = f'<p class="quiet note">{" ".join(notes)}</p>'
    return (
        f'<section id="{table.id}">{title}<div class="scroll"><table data-table="{table.id}"><thead><tr>'
        f"{_heads(table.columns, table.numeric)}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{note}</section>"
    )


def _heads(columns: Iterable[str], numeric: frozenset[int]) -> str:
    return "".join(
        f'<th scope=col class="{_class(k, name, numeric)}">{_text(name)}</th>'
        for k, name in enumerate(columns)
    )


def _class(column: int, name: str, numeric: frozenset[int]) -> str:
    if column in numeric:
        return "number"
    return "prose" if name in PROSE else ""


def _cells(cells: Sequence[Cell], classes: Sequence[str], heads: Sequence[str]) -> str:
    """``data-head`` stands before the cell where the screen is too narrow for columns."""
    texts = (cell if isinstance(cell, str) else cell[0] for cell in cells)
    return "".join(
        f'<td class="{name}" data-head="{_text(head)}"><bdi>{_text(text)}</bdi></td>'
        for name, text, head in zip(classes, texts, heads, strict=True)
    )


def _empty(sentence: str, command: tuple[str, ...]) -> str:
    return f'<p class="empty">{_text(sentence)} <code>{_text(shell_line(command))}</code></p>'


def _footer(data: ReportData) -> str:
    return (
        '<footer class="quiet"><p>Every nanosecond of every device has exactly one cause; the causes sum to '
        "the capacity. <b>measured</b>: an observer saw it; <b>inferred</b>: it follows from what was seen; "
        "<b>modelled</b>: it comes from a model (always hatched).</p>"
        f"<p>Made {clock_time(data.generated_ns)} UTC by unidle.</p></footer>"
    )


def _data(element_id: str, text: str) -> str:
    return f'<script type="text/plain" id="{element_id}">{text}</script>'


def _deflated(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))  # ASCII: names may hold half a surrogate pair
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def _asset(name: str) -> str:
    return files("unidle.report").joinpath("assets", name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(visible(text))
