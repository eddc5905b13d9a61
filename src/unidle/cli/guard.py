"""``unidle guard``: what a log reports of nodes, how nodes are monitored, and what went wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from unidle.cli import complete, failures, forget_host, nodes, notices
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
    say_unwatched,
    show_table,
    table,
    warn,
)
from unidle.cli.help import Commands
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.guard.log import Finding
    from unidle.guard.policy_table import PolicyName
    from unidle.view.incidents import Incident
    from unidle.view.records import FaultView
    from unidle.view.state import View


guard_app = Commands(help="Show the health of nodes, and drain and repair them.")
_BLOCK_BYTES = 1 << 18
_WIDTH = 100
_HOUR_NS = 3600e9


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    guard_app.command("incidents")(incidents)
    guard_app.command("failures")(failures.failures)
    nodes.register(guard_app)
    forget_host.register(guard_app)
    guard_app.command("notices")(notices.notices)
    guard_app.command("watch")(watch)
    app.add_typer(guard_app, name="guard")


@guard_app.command("classify")
def classify(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="Kernel log; default: standard input."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", metavar="NAME", help="Source of the actions: unidle, nvidia, aks, eks or gke."
        ),
    ] = "unidle",
    compare: Annotated[bool, typer.Option("--compare", help="Show the action of every policy.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Classify the lines of a kernel log. For each finding: cause or symptom, the device, and what to do."""
    chosen = _policy(policy)
    try:
        with _opened(file) as stream:
            rows = _findings(stream)
            if as_json:
                _print_json(rows, chosen, compare)
            else:
                _print_table([f for batch in rows for f in batch], chosen, compare)
    except OSError as error:
        if file is None or isinstance(error, BrokenPipeError):
            raise
        raise _unreadable(file, error) from error


def _policy(name: str) -> PolicyName:
    from unidle.guard.policy_table import POLICIES

    for known in POLICIES:
        if name == known:
            return known
    raise BadInput("no such policy", field="--policy", value=name, remedy=f"use one of {', '.join(POLICIES)}")


def _opened(file: str | None) -> BinaryIO:
    if file is None or file == "-":
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return open(file, "rb", buffering=0)
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: OSError) -> BadInput:
    return BadInput(
        f"cannot be read: {error.strerror or error}", field="FILE", value=file,
        remedy="name a file that can be read, or pipe the log in",
    )  # fmt: skip


def _findings(stream: BinaryIO) -> Iterator[list[Finding]]:
    """The findings of each block as it comes, so that a log that is piped in is answered at once."""
    from unidle.guard.log import NEEDLES, Reader, Splitter

    reader, splitter = Reader(), Splitter(needles=NEEDLES)
    while block := stream.read(_BLOCK_BYTES):
        yield [f for line in splitter.feed(block) if (f := reader.consider(line)) is not None]
    yield [f for line in splitter.end() if (f := reader.consider(line)) is not None]


def _print_json(batches: Iterator[list[Finding]], policy: PolicyName, compare: bool) -> None:
    from unidle.guard.policy_table import POLICIES, judge

    for batch in batches:
        lines = []
        for finding in batch:
            own = judge(policy, finding)
            value: dict[str, object] = {**finding.contract(), "action": own.action, "because": own.because}
            if compare:
                value["policies"] = {name: judge(name, finding).action for name in POLICIES}
            lines.append(json.dumps(value, ensure_ascii=False) + "\n")
        if lines:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()


def _print_table(found: list[Finding], policy: PolicyName, compare: bool) -> None:
    from unidle.guard.diagnosis import judge as verdict
    from unidle.guard.policy_table import POLICIES, judge

    if not found:
        warn("no line of this log matches a rule for hardware, driver, network, storage or kernel")
        return
    heads = ["line", "kind", "code", "device", "role"]
    start = [
        [str(f.line), f.kind, "-" if f.code is None else str(f.code), f.device or "-", f.role] for f in found
    ]
    if compare:
        heads += POLICIES
        rows = [
            [*cells, *(judge(p, f).action for p in POLICIES)] for cells, f in zip(start, found, strict=True)
        ]
    else:
        heads += ["action", "because"]
        rows = [
            [*cells, own.action, _short(own.because)]
            for cells, f in zip(start, found, strict=True)
            if (own := judge(policy, f))
        ]
    show_table(heads, rows)
    summary = verdict(found)
    if summary is not None and not compare and policy == "unidle":
        say()
        say(f"deepest fault: {summary.because}")


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


# -- watch: which nodes are monitored, and what was last found wrong with them


def watch(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show which nodes are monitored for faults. Each has its health, its detectors and the last detected
    fault.
    """
    opened = read_store(store)
    view = read_view(opened)
    found = [_node_as_object(view, node.id) for node in view.fleet.nodes]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            one["node"], "not known" if one["health"] == "healthy" and not one["watched"] else one["health"],
            "yes" if one["watched"] else "not watched", str(one["faults"]),
            "" if one["last_fault"] is None else f"{_ago(view, one)}: {one['last_fault']['because']}",
        ]
        for one in found
    ]  # fmt: skip
    show_table(["node", "health", "watched", "faults", "last fault"], rows)
    say_unwatched({one["node"]: one["not_watched"] for one in found})


def _node_as_object(view: View, node: str) -> dict[str, Any]:
    """One node as ``--json`` prints it."""
    from unidle.view.watching import not_watched

    faults = [fault for fault in view.faults if fault.node == node]
    detectors = [
        {"detector": name, "watched": not told.why_not, "why_not": told.why_not or None, "lost": told.lost, "since_ns": told.at_ns}
        for name, told in sorted(view.watching.get(node, {}).items())
    ]  # fmt: skip
    why = not_watched(view, node)
    return {
        "node": node, "health": view.health.get(node, "healthy"), "watched": not why, "not_watched": why or None,
        "detectors": detectors, "faults": len(faults), "last_fault": _fault(faults[-1]) if faults else None,
    }  # fmt: skip


def _fault(fault: FaultView) -> dict[str, Any]:
    return {
        "device": fault.device or None, "kind": fault.kind, "code": fault.code, "action": fault.action,
        "onset_ns": fault.onset_ns, "signal_ns": fault.signal_ns, "jobs": fault.jobs, "because": fault.because.text,
        "figures": fault.because.figures,
    }  # fmt: skip


def _ago(view: View, one: dict[str, Any]) -> str:
    return f"{age(view.time_ns - one['last_fault']['signal_ns'])} before"


# -- incidents: what went wrong with jobs, and what it cost


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
        print_json([_incident_as_object(one) for one in found])
        return
    if not found:
        say("no incidents")
        return
    for line in _incident_lines(found, view.fleet.currency):
        say(line)


def _incident_as_object(one: Incident) -> dict[str, Any]:
    """One incident as ``--json`` prints it."""
    return {
        "job": one.job, "attempt": one.attempt, "kind": one.kind, "rank": one.rank, "node": one.node or None, "device": one.device or None, "link": one.link or None,
        "onset_ns": one.onset_ns, "signal_ns": one.signal_ns, "verdict_ns": one.verdict_ns,
        "resumed_ns": one.resumed_ns, "lost_steps": one.lost_steps,
        "cost": None if one.cost_micro is None else one.cost_micro / 1e6,
        "device_s": one.device_ns / 1e9, "because": one.because, "lasts": one.lasts,
        "device_h_per_day": one.day_ns / _HOUR_NS if one.lasts else None,
        "cost_per_day": None if one.day_micro is None else one.day_micro / 1e6,
    }  # fmt: skip


def _incident_lines(found: list[Incident], currency: str) -> list[str]:
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
    return lines + [f"{one.job or one.node}: {one.because}{_bill(one, currency)}" for one in found]


def _bill(one: Incident, currency: str) -> str:
    """What an incident that continues costs until its end, if nothing is done."""
    if not one.lasts:
        return ""
    money = "" if one.day_micro is None else f", {one.day_micro / 1e6:,.2f} {currency}"
    return f"; it continues, at {one.day_ns / _HOUR_NS:,.1f} device-h{money} a day"


def _after(onset_ns: int, at_ns: int | None) -> str:
    return "" if at_ns is None else f"+{age(max(at_ns - onset_ns, 0))}"
