"""``unidle guard incidents``: what went wrong with jobs, who was to blame, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import (
    JsonOption,
    StoreOption,
    age,
    clock_time,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
    table,
)

if TYPE_CHECKING:
    from unidle.view.incidents import Incident


def incidents(
    store: StoreOption = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            show_default=False,
            autocompletion=complete.jobs,
            help="Only incidents of this job.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List incidents: failures, hangs and faults of nodes. Each has the times of its start, detection and end."""
    from unidle.view.incidents import incidents as all_incidents
    from unidle.view.incidents import incidents_of

    opened = read_store(store)
    view = read_view(opened)
    found = (
        all_incidents(view) if job is None else list(incidents_of(view, need_job(view, job, removed=True)))
    )
    if as_json:
        print_json([as_object(one) for one in found])
        return
    if not found:
        say("no incidents")
        return
    for line in _lines(found, view.fleet.currency):
        say(line)


def as_object(one: Incident) -> dict[str, Any]:
    """One incident as ``--json`` prints it."""
    return {
        "job": one.job, "attempt": one.attempt, "kind": one.kind, "rank": one.rank, "node": one.node or None, "device": one.device or None, "link": one.link or None,
        "onset_ns": one.onset_ns, "signal_ns": one.signal_ns, "verdict_ns": one.verdict_ns,
        "resumed_ns": one.resumed_ns, "lost_steps": one.lost_steps,
        "cost": None if one.cost_micro is None else one.cost_micro / 1e6,
        "device_s": one.device_ns / 1e9, "because": one.because,
    }  # fmt: skip


def _lines(found: list[Incident], currency: str) -> list[str]:
    rows = [
        [
            clock_time(one.onset_ns), one.job or "-", "-" if one.attempt is None else str(one.attempt), one.kind, "" if one.rank is None else str(one.rank),
            one.node or one.link, _after(one.onset_ns, one.verdict_ns), _after(one.onset_ns, one.resumed_ns), str(one.lost_steps),
            f"{one.device_ns / 1e9:.1f}", "" if one.cost_micro is None else f"{one.cost_micro / 1e6:.2f} {currency}",
        ]
        for one in found
    ]  # fmt: skip
    heads = [
        "onset",
        "job",
        "attempt",
        "kind",
        "rank",
        "node",
        "verdict",
        "resumed",
        "lost steps",
        "device-s",
        "cost",
    ]
    lines = table(heads, rows)
    return lines + [f"{one.job or one.node}: {one.because}" for one in found]


def _after(onset_ns: int, at_ns: int | None) -> str:
    return "" if at_ns is None else f"+{age(max(at_ns - onset_ns, 0))}"
