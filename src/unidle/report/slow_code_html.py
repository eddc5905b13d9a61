"""The section on slow code: what each rule cost, and what is left. It adds up to the capacity."""

from __future__ import annotations

from unidle.page.frame import escaped
from unidle.report.model import ReportData
from unidle.report.text import device_time, exact_ns, money, shares
from unidle.words import counted


def slow_code(data: ReportData) -> str:
    """A table by code, largest first, and a row for all other time; nothing where no code is known."""
    if not data.codes:
        return ""
    priced = any(line.cost is not None for line in data.codes)
    rest_ns = data.capacity_ns - sum(line.ns for line in data.codes)
    parts = shares([*(line.ns for line in data.codes), rest_ns], data.capacity_ns)
    rows = "".join(
        f'<tr data-code="{line.code}"><th scope=row>{line.code}</th><td class="prose">{escaped(line.message)}</td>'
        f"{_figures(data, line.ns, share, line.cost, priced)}<td><bdi>{escaped(line.job)}</bdi>{_others(line.jobs)}</td></tr>"
        for line, share in zip(data.codes, parts, strict=False)
    )
    rows += f'<tr data-code=""><th scope=row>-</th><td class="prose">all other time</td>{_figures(data, rest_ns, parts[-1], None, priced)}<td></td></tr>'
    heads = ["code", "what is slow", "time", "share", *(["cost"] if priced else []), "mostly in"]
    head = "".join(
        f"<th scope=col{' class=number' if name in ('time', 'share', 'cost') else ''}>{name}</th>"
        for name in heads
    )
    return (
        '<section id="codes"><h2>Slow code</h2><div class="scroll"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<p class="quiet note">Shares are those of the profiles that were kept. <code>unidle tune rule CODE</code> explains a rule.</p></section>'
    )


def _figures(data: ReportData, ns: int, share: str, cost: float | None, priced: bool) -> str:
    time = f'<td class="number" data-ns="{ns}" title="{exact_ns(ns)}">{device_time(ns, data.time_unit)}</td>'
    spent = (
        f'<td class="number">{money(cost, data.currency) if cost is not None else ""}</td>' if priced else ""
    )
    return f'{time}<td class="number">{share}</td>{spent}'


def _others(jobs: int) -> str:
    return f" and {counted(jobs - 1, 'other job')}" if jobs > 1 else ""
