"""The waterfall as an HTML table: each bar starts where the one above it ended."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from unidle.report.model import ReportData
from unidle.report.palette import leaf_colour
from unidle.report.text import device_time, exact_ns, money, visible
from unidle.report.totals import GroupLine, LeafLine, cost_total, describe, waterfall_lines


def waterfall_table(data: ReportData) -> str:
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
    title = f' title="{escape(about)}"' if about else ""
    shown = escape(name).replace("_", "_<wbr>")
    return f'<button type="button" data-{kind}="{escape(name)}"{title}>{shown}</button>'


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
    return f'<td class="number cost">{escape(visible(money(cost, data.currency)))}</td>' if shown else ""
