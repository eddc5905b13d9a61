"""One self-contained HTML file: the waterfall, the Gantt chart and the tables.

The tables are plain HTML and work without scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from unidle.page.frame import asset, deflated, escaped, page
from unidle.report.advice import Advice, best_advice, shell_line, steps_advice
from unidle.report.bars import pack
from unidle.report.model import ReportData
from unidle.report.palette import leaf_colour
from unidle.report.payload import payload
from unidle.report.slow_code_html import slow_code
from unidle.report.story_html import stories
from unidle.report.tables import PROSE, Cell, Table, tables
from unidle.report.text import clock_time, device_time, exact_ns, money, number
from unidle.report.totals import GroupLine, LeafLine, cost_total, describe, waterfall_lines
from unidle.words import does, duration, plural

STATIC_ROWS: Final = 200
_SCRIPTS: Final = ("data.js", "gantt.js", "chart.js", "plot.js", "page.js")


def render(data: ReportData) -> str:
    """The whole file as text; write it as UTF-8."""
    packed = pack(data.devices, data.window_start_ns, data.window_end_ns)
    shown = tables(data, packed)
    body = [
        _header(data),
        '<main><p id="filters" hidden></p>',
        *_first(data),
        slow_code(data),
        _ratios(data),
        *(_section(table) for table in shown),
        "</main>",
        _footer(data),
    ]
    carried = {"data": deflated(payload(data, packed, shown)), "bars": packed.blob}
    return page(data.title, body, package="unidle.report", scripts=_SCRIPTS, data=carried)


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
        f"store <bdi>{escaped(data.store)}</bdi>",
    )
    return (
        f'<header><h1><bdi>{escaped(data.title)}</bdi></h1><p class="quiet">{" · ".join(facts)}</p></header>'
    )


def _where(data: ReportData) -> str:
    unit = "GPU" if data.time_unit == "GPU" else "device"
    title = f"<h2>Where did the {unit}-seconds go?</h2>"
    if data.capacity_ns == 0:
        words = ("unidle", "run", "--ranks", "4", "--store", data.store, "--", "python", "train.py")
        empty = _empty("No device time in this window yet. Start a job:", words)
        return f'<section id="where">{title}{empty}</section>'
    return f'<section id="where">{title}{_answer(data)}{_waterfall(data)}</section>'


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
        f"<p>{escaped(advice.lead)}: <b>{escaped(line.group)} / {escaped(line.leaf)}</b> ({spent}): "
        f"{escaped(advice.text)}. <code>{escaped(shell_line(advice.words))}</code></p>"
    )


def _gantt(data: ReportData) -> str:
    if not any(track.bars for track in data.devices):
        words = ("unidle", "fleet", "--store", data.store)
        empty = _empty("No device was observed in this window. See the devices of the store:", words)
        return f'<section id="gantt"><h2>Each device over time</h2>{empty}</section>'
    return (
        f'<section id="gantt"><h2>Each device over time</h2>{asset("unidle.report", "gantt.html")}</section>'
    )


def _ratios(data: ReportData) -> str:
    if not data.ratios:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{escaped(ratio.name)}</th>"
        f'<td class=number data-head="value">{"-" if ratio.value is None else f"{100 * ratio.value:.1f} %"}</td>'
        f'<td class=number data-head="of this">{device_time(ratio.numerator_ns, data.time_unit)}</td>'
        f'<td class=number data-head="in this">{device_time(ratio.denominator_ns, data.time_unit)}</td>'
        f'<td data-head="definition">{escaped(ratio.definition)}</td></tr>'
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
        f'<th scope=col class="{_class(k, name, numeric)}">{escaped(name)}</th>'
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
        f'<td class="{name}" data-head="{escaped(head)}"><bdi>{escaped(text)}</bdi></td>'
        for name, text, head in zip(classes, texts, heads, strict=True)
    )


def _empty(sentence: str, command: tuple[str, ...]) -> str:
    return f'<p class="empty">{escaped(sentence)} <code>{escaped(shell_line(command))}</code></p>'


def _footer(data: ReportData) -> str:
    return (
        '<footer class="quiet"><p>Every nanosecond of every device has exactly one cause; the causes sum to '
        "the capacity. <b>measured</b>: an observer saw it; <b>inferred</b>: it follows from what was seen; "
        "<b>modelled</b>: it comes from a model (always hatched).</p>"
        f"<p>Made {clock_time(data.generated_ns)} UTC by unidle.</p></footer>"
    )


# -- the waterfall: each bar starts where the one above it ended


def _waterfall(data: ReportData) -> str:
    """One row per group and one per leaf, each a button that filters the page, and the capacity."""
    groups = waterfall_lines(data)
    with_cost = cost_total(data) is not None
    rows = "".join(_group_rows(group, data, with_cost) for group in groups)
    heads = ["cause", "", "share", "time", *(["cost"] if with_cost else []), "known"]
    head = "".join(
        f"<th scope=col{' class=number' if name in {'share', 'time', 'cost'} else ''}>{name}</th>"
        for name in heads
    )
    total = (
        '<tr class="total"><th scope=row>capacity</th><td></td><td class="number share">100.0 %</td>'
        f"{_time_cell(data.capacity_ns, data)}{_cost_cell(cost_total(data), data, with_cost)}<td></td></tr>"
    )
    return (
        f'<div class="scroll"><table id="waterfall"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody><tfoot>{total}</tfoot></table></div>"
    )


def _group_rows(group: GroupLine, data: ReportData, with_cost: bool) -> str:
    alone = len(group.leaves) == 1 and group.leaves[0].leaf == group.group
    head = (
        f'<tr class="group"><th scope=row>{_button("group", group.group)}</th>'
        f"{_lane(group.leaves, data)}<td class='number share'>{group.share}</td>{_time_cell(group.ns, data)}"
        f"{_cost_cell(group.cost, data, with_cost)}{_known(group.leaves[0]) if alone else '<td></td>'}</tr>"
    )
    return head if alone else head + "".join(_leaf_row(leaf, data, with_cost) for leaf in group.leaves)


def _leaf_row(leaf: LeafLine, data: ReportData, with_cost: bool) -> str:
    return (
        f'<tr class="leaf"><th scope=row>{_button("leaf", leaf.leaf)}</th>'
        f"{_lane([leaf], data)}<td class='number share'>{leaf.share}</td>{_time_cell(leaf.ns, data)}"
        f"{_cost_cell(leaf.cost, data, with_cost)}{_known(leaf)}</tr>"
    )


def _button(kind: str, name: str) -> str:
    about = describe(name) if kind == "leaf" else ""
    title = f' title="{escaped(about)}"' if about else ""
    shown = escaped(name).replace("_", "_<wbr>")
    return f'<button type="button" data-{kind}="{escaped(name)}"{title}>{shown}</button>'


def _bar(leaf: LeafLine, data: ReportData) -> str:
    """One piece per way of knowing, so that only what is modelled is hatched."""
    colour = leaf_colour(leaf.leaf, leaf.group)
    before = leaf.before_ns
    pieces = []
    for how, ns in leaf.by_how:
        left, width = 100 * before / data.capacity_ns, 100 * ns / data.capacity_ns
        hatched = " hatched" if how == "modelled" or leaf.group == "unseen" else ""
        style = f"left:min({left:.4f}%,100% - 2px);width:{width:.4f}%;--c:{colour}"
        pieces.append(f'<i class="bar{hatched}" style="{style}"></i>')
        before += ns
    return "".join(pieces)


def _lane(leaves: Iterable[LeafLine], data: ReportData) -> str:
    return f"<td class=run><div class=lane>{''.join(_bar(leaf, data) for leaf in leaves)}</div></td>"


def _known(leaf: LeafLine) -> str:
    if len(leaf.by_how) == 1:
        return f'<td class="known quiet">{leaf.by_how[0][0]}</td>'
    parts = ", ".join(f"{100 * ns / leaf.ns:.0f} % {how}" for how, ns in leaf.by_how)
    return f'<td class="known mixed quiet">{parts}</td>'


def _time_cell(ns: int, data: ReportData) -> str:
    return f'<td class="number time" data-exact="{exact_ns(ns)}">{device_time(ns, data.time_unit)}</td>'


def _cost_cell(cost: float | None, data: ReportData, shown: bool) -> str:
    return f'<td class="number cost">{escaped(money(cost, data.currency))}</td>' if shown else ""
