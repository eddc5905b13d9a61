"""``unidle guard nodes | drain | return | maintain | cordon | uncordon | report``: nodes that are sick, or to be worked on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import (
    JsonOption,
    StoreOption,
    age,
    clock_time,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
)
from unidle.cli.tables import without_empty
from unidle.cli.times import moment, seconds_of
from unidle.errors import BadInput
from unidle.fleet import device_of
from unidle.fleet.policies import STEP_OF
from unidle.login import login_name
from unidle.words import counted, length

if TYPE_CHECKING:
    from unidle.store.protocol import Store
    from unidle.view.state import View

_TAKEN_WITHIN_S = 5.0
_ASK_EVERY_S = 0.05
_ACTIONS = tuple(STEP_OF)

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        show_default=False,
        autocompletion=complete.targets,
        help="Node, or a device such as n1/0.",
    ),
]
NodeArgument = Annotated[
    str,
    typer.Argument(
        metavar="NODE", show_default=False, autocompletion=complete.nodes, help="Node of the fleet."
    ),
]
WhyOption = Annotated[
    str, typer.Option("--because", metavar="TEXT", show_default=False, help="Reason, in words.")
]
NowOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the controller's answer.")]


def register(app: typer.Typer) -> None:
    """Add this room's commands to ``unidle guard``."""
    app.command("nodes")(nodes)
    app.command("drain")(drain)
    app.command("return")(give_back)
    app.command("maintain")(maintain)
    app.command("cordon")(cordon)
    app.command("uncordon")(uncordon)
    app.command("report")(report)


def nodes(
    store: StoreOption = None,
    sick: Annotated[bool, typer.Option("--sick", help="Omit healthy nodes that are in use.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of each node. A node is in use, sick, drained, under repair, on probation or cordoned."""
    opened = read_store(store)
    view = read_view(opened)
    found = [
        line
        for line in _lines(view)
        if not sick or line["state"] != "healthy" or line["cordoned_by"] or line["maintenance"]
    ]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            line["target"], _state(line), line["step"] or "",
            str(line["try"] or ""), "" if line["since_ns"] is None else age(view.time_ns - line["since_ns"]),
            _left(line["deadline_ns"], view.time_ns), str(line["offences"] or ""), _clock(line), _because(line),
        ]
        for line in found
    ]  # fmt: skip
    show_table(
        *without_empty(
            ["node", "state", "step", "try", "since", "left", "fell", "clock", "because"], rows, "clock"
        )
    )
    if not rows:
        say("no node is sick")


def _state(line: dict[str, Any]) -> str:
    cordoned = " (cordoned)" if line["cordoned_by"] else ""
    return str(line["state"]) + cordoned + (" (spare)" if line["spare"] else "")


def _because(line: dict[str, Any]) -> str:
    """Why it is so, and who makes use of it meanwhile."""
    filled = f"filled by {', '.join(line['filler'])}" if line["filler"] else ""
    return "; ".join(filter(None, (line["because"], filled)))


def _clock(line: dict[str, Any]) -> str:
    """How well the clock of a host is known."""
    return "-" if line["clock_error_ns"] is None else f"within {length(line['clock_error_ns'])}"


def _left(deadline_ns: int | None, now_ns: int) -> str:
    return "" if deadline_ns is None else age(max(deadline_ns - now_ns, 0))


def _lines(view: View) -> list[dict[str, Any]]:
    names = [node.id for node in view.fleet.nodes]
    names += [target for target in view.care.targets if target not in set(names)]
    fillers = _fillers(view)
    return [_line(view, name, fillers.get(name, [])) for name in names]


def _fillers(view: View) -> dict[str, list[str]]:
    """By spare, and by node and device on probation, the jobs that fill it."""
    found: dict[str, list[str]] = {}
    from unidle.view.spares import on_trial

    kept = view.spares | on_trial(view)
    for job in sorted(view.live) if kept else ():
        live = view.jobs.open[job].live
        places = live.places if live is not None else ()
        used = {name for place in places for name in (place.node, *map(device_of, place.slices))}
        for name in kept.intersection(used) if view.jobs.open[job].spec.preemption == "low" else ():
            found.setdefault(name, []).append(job)
    return found


def _line(view: View, target: str, filler: Sequence[str] = ()) -> dict[str, Any]:
    from unidle.view.remedies import identity_of

    care = view.care
    here, cordon, window = care.targets.get(target), care.cordons.get(target), care.windows.get(target)
    health = view.health.get(target, "healthy")
    because = here.because.text if here is not None else cordon.because.text if cordon is not None else ""
    if window is not None and here is None:
        because = f"maintenance from {clock_time(window.from_ns)} to {clock_time(window.until_ns)}"
    checks = care.checks.get(target, ())
    return {
        "target": target, "state": here.state if here is not None else "healthy" if health == "healthy" else health,
        "health": health, "step": here.step if here is not None else None, "try": here.try_ if here is not None else None,
        "since_ns": here.since_ns if here is not None else None,
        "deadline_ns": (here.deadline_ns or None) if here is not None else None,
        "because": because, "cause": here.cause.text if here is not None else None,
        "cordoned_by": cordon.by if cordon is not None else None,
        "maintenance": None if window is None else {
            "from_ns": window.from_ns, "until_ns": window.until_ns, "drain_by_ns": window.drain_by_ns, "by": window.by,
        },
        "spare": target in view.spares, "filler": list(filler),
        "clock_error_ns": view.clocks[target].error_ns if target in view.clocks else None,
        "offences": len(care.offences.get(identity_of(view, target), ())),
        "last_check": None if not checks else {
            "at_ns": checks[-1].at_ns, "tier": checks[-1].tier, "fit": checks[-1].fit, "because": checks[-1].because,
        },
    }  # fmt: skip


def drain(
    node: TargetArgument,
    within: Annotated[
        str,
        typer.Option("--within", metavar="TIME", help="Stop jobs without a new checkpoint after this time."),
    ] = "1h",
    because: WhyOption = "",
    store: StoreOption = None,
    no_wait: NowOption = False,
) -> None:
    """Take a node out of service. It receives no new jobs; running jobs are stopped after their next checkpoint
    and restart elsewhere.
    """
    deadline_ns = time.time_ns() + round(seconds_of("--within", within) * 1e9)
    _ask(store, "drain", node, text=because, deadline_ns=deadline_ns, no_wait=no_wait)


def give_back(
    node: TargetArgument,
    unproved: Annotated[bool, typer.Option("--unproved", help="Skip the check and the probation.")] = False,
    store: StoreOption = None,
    no_wait: NowOption = False,
) -> None:
    """Return a node to service, after a check. This ends a drain, a cordon, maintenance and the state `out`."""
    _ask(store, "return", node, unproved=unproved, no_wait=no_wait)


def maintain(
    node: NodeArgument,
    begin: Annotated[str, typer.Option("--begin", "--from", metavar="TIME", show_default=False, help="Start, as an ISO time or from now: 2h.")],
    until: Annotated[str, typer.Option("--until", metavar="TIME", show_default=False, help="End, as an ISO time or from the start: 4h.")],
    drain_by: Annotated[
        str | None,
        typer.Option("--drain-by", metavar="TIME", show_default=False, help="Stop running jobs by then; default: the start."),
    ] = None,
    store: StoreOption = None,
    no_wait: NowOption = False,
) -> None:  # fmt: skip
    """Plan maintenance of a node. No job is placed there that would overlap with it. The node is drained
    before, and checked and returned to service after it.
    """
    now_ns = time.time_ns()
    from_ns = moment("--begin", begin, now_ns, ahead=True)
    until_ns = moment("--until", until, from_ns, ahead=True)
    by_ns = from_ns if drain_by is None else moment("--drain-by", drain_by, now_ns, ahead=True)
    if until_ns <= max(from_ns, now_ns):
        raise BadInput(
            "is over before it begins",
            field="--until",
            value=until,
            remedy="name a later time, for instance 4h",
        )
    if by_ns > from_ns:
        raise BadInput(
            "is after the maintenance begins",
            field="--drain-by",
            value=drain_by,
            remedy="name an earlier time",
        )
    _ask(store, "maintain", node, from_ns=from_ns, until_ns=until_ns, deadline_ns=by_ns, no_wait=no_wait)


def cordon(
    node: NodeArgument, because: WhyOption = "", store: StoreOption = None, no_wait: NowOption = False
) -> None:
    """Keep new jobs off a node. Running jobs continue. unidle never lifts a cordon by itself."""
    _ask(store, "cordon", node, text=because, no_wait=no_wait)


def uncordon(node: NodeArgument, store: StoreOption = None, no_wait: NowOption = False) -> None:
    """Allow new jobs on a cordoned node again."""
    _ask(store, "uncordon", node, no_wait=no_wait)


def report(
    node: TargetArgument,
    action: Annotated[str, typer.Option("--action", metavar="|".join(_ACTIONS), help="Remedy.")] = "drain",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kind of fault, in one word.")
    ] = "reported",
    because: WhyOption = "",
    store: StoreOption = None,
    no_wait: NowOption = False,
) -> None:
    """Report a fault that another monitor has detected."""
    if action not in _ACTIONS:
        raise BadInput(
            "no such action", field="--action", value=action, remedy=f"one of {', '.join(_ACTIONS)}"
        )
    _ask(store, "report", node, text=because, action=action, kind=kind, no_wait=no_wait)


def _ask(store: str | None, verb: str, target: str, *, no_wait: bool, **more: Any) -> None:
    """Put the request into the store's inbox, and say what came of it."""
    import msgspec

    from unidle.control.nodes.remedies import GuardRequest

    opened = read_store(store, requests=True)
    view = read_view(opened)
    _need_target(view, verb, target)
    by = login_name()
    number = opened.request("guard", msgspec.json.encode(GuardRequest(verb, target, by, **more)))
    if no_wait or not _taken(opened, number):
        more_text = "" if view.running else "; is `unidle up` running on this store?"
        say(f"{target}: {verb} requested" + ("" if no_wait else f", not carried out yet{more_text}"))
        return
    _say_result(opened, view, target)


def _need_target(view: View, verb: str, target: str) -> None:
    known = [node.id for node in view.fleet.nodes]
    if not known:
        raise BadInput(
            "the store has no fleet yet: no controller has run on it",
            field="NODE",
            value=target,
            remedy="start one with `unidle up`",
        )
    devices = [] if verb in ("maintain", "cordon", "uncordon") else [d.id for d in view.fleet.devices()]
    if target not in known and target not in devices:
        raise BadInput(
            f"the fleet has no such node; it has {counted(len(known), 'node')}", field="NODE", value=target,
            remedy=f"for instance {known[0]}",
        )  # fmt: skip


def _taken(store: Store, number: int) -> bool:
    until = time.monotonic() + _TAKEN_WITHIN_S
    while time.monotonic() < until:
        if not store.is_waiting(number):
            return True
        time.sleep(_ASK_EVERY_S)
    return False


def _say_result(store: Store, before: View, target: str) -> None:
    """The events of it in the log since: the target's state, or that it was refused."""
    from unidle.events import types as ev

    for event in store.read(after=before.seq):
        if event.kind == "request_refused":
            said = ev.decode(event.kind, event.body, event.seq)
            if (
                isinstance(said, ev.RequestRefused)
                and said.request == "guard"
                and target in said.because.text
            ):
                raise BadInput(said.because.text, field="NODE", value=target)
    line = _line(read_view(store), target)
    cordoned = f", cordoned by {line['cordoned_by']}" if line["cordoned_by"] else ""
    say(f"{target}: {line['state']}{cordoned}" + (f": {line['because']}" if line["because"] else ""))
