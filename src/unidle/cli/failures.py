"""``unidle guard failures``: how often what fails, in which nodes, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    age,
    print_json,
    read_store,
    read_view,
    say,
    table,
)
from unidle.cli.tables import without_empty
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.guard.failure_statistics import Accounts, KindRow
    from unidle.guard.rates import EventRate

_WORST = 10
_HOUR_NS = 3600e9


def failures(
    store: StoreOption = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", show_default=False, help="Only failures since then (as for `unidle ledger`).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", show_default=False, help="Only failures before then.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="FILE", show_default=False,
            help="Fault trace with the true faults: count false and missed detections.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Count failures by component, model, job size and node. Costs are by kind of failure."""
    from unidle.cli.ledger import window_of
    from unidle.control.queries.failure_report import failures_of
    from unidle.files.fault_trace import load_fault_trace
    from unidle.view.source import ledger_source

    known = None if labels is None else load_fault_trace(labels)
    opened = read_store(store)
    view = read_view(opened)
    source = ledger_source(opened, view)
    window = window_of(source.extent(), since, until, ("--since", "--until"))
    found = failures_of(opened, view, source, window, known)
    if as_json:
        how = "modelled" if view.modelled else "measured"
        print_json(
            {"how": how, "window": window._asdict(), "currency": view.fleet.currency, **as_object(found)}
        )
    elif not found.node_days:
        say("no device time in this store yet: nothing to count failures by")
    else:
        for line in _lines(found, view.fleet.currency):
            say(line)
        if view.modelled:
            say("this store is a simulation's: all of it is modelled")


def as_object(found: Accounts) -> dict[str, Any]:
    """The accounts as ``--json`` prints them; rates with the bounds of their 95 % interval, null where too little was seen."""
    from unidle.guard.failure_statistics import ENOUGH_DEVICE_YEARS, ENOUGH_NODE_DAYS, YEAR_DAYS

    return {
        "node_days": found.node_days,
        "device_days": found.device_days,
        "removals_per_1000_node_days": _rate(found.removals, 1000, ENOUGH_NODE_DAYS),
        "rates_from": {"node_days": ENOUGH_NODE_DAYS, "device_years": ENOUGH_DEVICE_YEARS},
        "components": [
            {
                "component": row.component, "model": row.model, "failures": row.rate.events,
                "per_1000_node_days": _rate(row.rate, 1000, ENOUGH_NODE_DAYS),
                "afr_percent": _rate(row.yearly, 100, ENOUGH_DEVICE_YEARS),
                "per_node_year": _yearly(row.node_yearly), "out_of_service": row.out,
                "node_days": row.rate.exposure, "device_h": row.yearly.exposure * YEAR_DAYS * 24,
                "down_h": row.down_ns / _HOUR_NS,
            }
            for row in found.components
        ],
        "faults": _faults(found),
        "jobs": [
            {
                "devices": [row.least, row.most], "jobs": row.jobs, "interruptions": row.rate.events,
                "run_h": row.rate.exposure, "mtbf_h": _mtbf(row.rate),
                "median_stable_h": row.median_ns / _HOUR_NS, "longest_stable_h": row.longest_ns / _HOUR_NS,
            }
            for row in found.sizes
        ],
        "kinds": [{"kind": row.kind, **_costs(row)} for row in found.kinds],
        "causes": [{"cause": row.kind, **_costs(row)} for row in found.causes],
        "nodes": _nodes(found),
        "judged": None if found.judged is None else {
            "removals": found.judged.removals, "false_removals": found.judged.false.events,
            "false_per_1000_node_days": _rate(found.judged.false, 1000, ENOUGH_NODE_DAYS),
            "labels": found.judged.labels, "noticed": found.judged.noticed, "recall": found.judged.recall,
        },
    }  # fmt: skip


def _faults(found: Accounts) -> list[dict[str, Any]]:
    from unidle.guard.failure_statistics import YEAR_DAYS
    from unidle.guard.fault_kinds import CLASSES

    return [
        {
            "fault": row.fault, "component": row.component, "words": CLASSES[row.fault].words,
            "failures": row.rate.events, "of_jobs": row.jobs, "node_days": row.rate.exposure,
            "per_node_year": _yearly(row.rate.per(YEAR_DAYS)),
        }
        for row in found.faults
    ]  # fmt: skip


def _nodes(found: Accounts) -> list[dict[str, Any]]:
    from unidle.guard.failure_statistics import YEAR_DAYS

    return [
        {
            "node": row.node, "events": row.events, "share": row.share, "chance": row.chance, "lemon": row.lemon,
            "node_days": row.rate.exposure, "per_node_year": _yearly(row.rate.per(YEAR_DAYS)),
        }
        for row in found.nodes
    ]  # fmt: skip


def _costs(row: KindRow) -> dict[str, Any]:
    return {
        "incidents": row.incidents, "lost_steps": row.lost_steps, "device_h": row.device_ns / _HOUR_NS,
        "cost": row.cost_micro / 1e6, "unpriced": row.unpriced,
    }  # fmt: skip


def _rate(rate: EventRate, times: float, enough: float) -> dict[str, float | None]:
    """A rate with its bounds; nothing where less than ``enough`` time was observed."""
    if rate.exposure < enough:
        return dict.fromkeys(("value", "low", "high"))
    bounds = {"value": rate.value, "low": rate.low, "high": rate.high}
    return {name: None if one is None else one * times for name, one in bounds.items()}


def _yearly(rate: EventRate) -> dict[str, float | None]:
    """A rate per node and year, from enough observed days on."""
    from unidle.guard.failure_statistics import ENOUGH_NODE_DAYS, YEAR_DAYS

    return _rate(rate, 1, ENOUGH_NODE_DAYS / YEAR_DAYS)


def _mtbf(rate: EventRate) -> dict[str, float | None]:
    """Hours between interruptions: None is without bound."""
    bounds = {"value": rate.value, "low": rate.high, "high": rate.low}
    return {name: 1 / one if one else None for name, one in bounds.items()}


def _lines(found: Accounts, currency: str) -> list[str]:
    from unidle.guard.failure_statistics import ENOUGH_DEVICE_YEARS, ENOUGH_NODE_DAYS, YEAR_DAYS

    seen = f"{found.node_days:,.1f} node-days, {found.device_days:,.1f} device-days"
    removals = counted(found.removals.events, "unplanned removal")
    lines = [f"{seen}; {removals}; intervals are 95 %, exact (Poisson)"]
    if any(row.yearly.exposure < ENOUGH_DEVICE_YEARS for row in found.components):
        least = f"{ENOUGH_NODE_DAYS:g} node-days, AFR {ENOUGH_DEVICE_YEARS:g} device-year"
        lines.append(f"rates need {least} of a model; below that, only counts are shown")
    lines.append("")
    lines += table(
        ["component", "model", "failures", "out", "device-h", "per 1,000 node-days", "AFR % of devices", "per node-year", "down h"],
        [
            [
                row.component, row.model, str(row.rate.events), str(row.out), f"{row.yearly.exposure * YEAR_DAYS * 24:,.1f}",
                _cell(_rate(row.rate, 1000, ENOUGH_NODE_DAYS)),
                _cell(_rate(row.yearly, 100, ENOUGH_DEVICE_YEARS)), _cell(_yearly(row.node_yearly)),
                f"{row.down_ns / _HOUR_NS:.1f}",
            ]
            for row in found.components
        ],
    )  # fmt: skip
    costs = (("incident", found.kinds), ("failure of", found.causes))
    for more in (
        _fault_lines(found),
        _job_lines(found),
        *(_cost_lines(*one, currency) for one in costs),
        _node_lines(found),
    ):
        lines += ["", *more] if more else []
    if found.judged is not None:
        one = found.judged
        recall = "-" if one.recall is None else f"{100 * one.recall:.1f} %"
        rate = _cell(_rate(one.false, 1000, ENOUGH_NODE_DAYS))
        lines += [
            "",
            f"{one.false.events} of {counted(one.removals, 'removal')} false: {rate} per 1,000 node-days",
            f"{one.noticed} of {counted(one.labels, 'label')} noticed: recall {recall}",
        ]
    return lines


def _fault_lines(found: Accounts) -> list[str]:
    from unidle.guard.failure_statistics import YEAR_DAYS
    from unidle.guard.fault_kinds import CLASSES

    rows = [
        [
            row.fault, row.component, str(row.rate.events), str(row.jobs), _cell(_yearly(row.rate.per(YEAR_DAYS))),
            CLASSES[row.fault].words,
        ]
        for row in found.faults
    ]  # fmt: skip
    return table(["fault", "component", "failures", "of jobs", "per node-year", "what"], rows)


def _job_lines(found: Accounts) -> list[str]:
    heads = ["devices", "jobs", "run h", "interruptions", "MTBF h", "stable median", "stable longest"]
    return table(
        heads,
        [
            [
                f"{row.least}-{row.most}" if row.most > row.least else str(row.most), str(row.jobs), f"{row.rate.exposure:.1f}",
                str(row.rate.events), _cell(_mtbf(row.rate)), age(row.median_ns), age(row.longest_ns),
            ]
            for row in found.sizes
        ],
    )  # fmt: skip


def _cost_lines(head: str, rows: tuple[KindRow, ...], currency: str) -> list[str]:
    lines = [
        [
            row.kind, str(row.incidents), str(row.lost_steps), f"{row.device_ns / _HOUR_NS:.2f}",
            "-" if row.unpriced == row.incidents else f"{row.cost_micro / 1e6:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return table(*without_empty([head, "count", "lost steps", "device-h", currency], lines, currency))


def _node_lines(found: Accounts) -> list[str]:
    from unidle.guard.failure_statistics import YEAR_DAYS

    rows = [
        [
            row.node, str(row.events), f"{100 * row.share:.1f}", f"{row.rate.exposure:.1f}",
            _cell(_yearly(row.rate.per(YEAR_DAYS))), f"{row.chance:.1e}", "lemon" if row.lemon else "",
        ]
        for row in found.nodes[:_WORST]
    ]  # fmt: skip
    lines = table(["worst nodes", "events", "% of all", "node-days", "per node-year", "by chance", ""], rows)
    lemons = [row for row in found.nodes if row.lemon]
    if lemons:
        share = 100 * sum(row.share for row in lemons)
        lines.append(f"{counted(len(lemons), 'lemon')} with {share:.1f} % of all events")
    return lines


def _cell(bounds: dict[str, float | None]) -> str:
    value, low, high = (bounds[k] for k in ("value", "low", "high"))
    if value is None and low is None:
        return "-"
    shown = ["∞" if one is None else f"{one:.3g}" for one in (value, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"
