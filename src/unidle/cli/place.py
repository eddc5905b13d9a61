"""``unidle place``: what a decision would be, on a fleet file, a snapshot or a store, without carrying it out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    FleetOption,
    JsonOption,
    StoreOption,
    need_fleet,
    not_both,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
)
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.forecast import Forecaster
    from unidle.control.queries.dry_run import DryRun
    from unidle.jobs import JobSpec
    from unidle.place.explain import GangRefusal
    from unidle.place.network.rank_order import GroupTime
    from unidle.place.scheduler import Placed
    from unidle.view.jobs import JobView
    from unidle.view.state import View

_NODES_SHOWN = 20
_WAITS = "name a job file, or a job that waits: `unidle list` shows them"


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("place")(place)


def place(
    context: typer.Context,
    job: Annotated[
        str,
        typer.Option(
            "--job",
            metavar="FILE|JOB",
            help="Job file, or with --snapshot or --store a waiting job.",
        ),
    ],
    fleet: FleetOption = None,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="FILE", show_default=False, help="Output of `unidle fleet snapshot`."),
    ] = None,
    store: StoreOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the cost of each parallel group, and each obstacle.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where a job would be placed now, and why. Nothing is started or stored.

    The exit code is 0 in both cases; scripts read `placed` from the output of --json.
    """
    from unidle.control.queries.dry_run import next_decision
    from unidle.place.scheduler import Placed

    not_both(context, "store", fleet=fleet, snapshot=snapshot)
    view, forecaster = _view(fleet, snapshot, store)
    asked = _job(view, job, forecaster)
    decision = next_decision(view, asked)
    answer = _in_full(view, asked.spec, decision)
    if as_json:
        print_json(_plain(answer) | {"stops": _stops(decision)})
    elif isinstance(answer, Placed):
        _say_placed(answer, explain)
    else:
        _say_refused(answer, explain)
        for stop in decision.stops:
            say(f"  stops for it: {stop.job}: {stop.because.text}")


def _in_full(view: View, spec: JobSpec, decision: DryRun) -> Placed | GangRefusal:
    """The decision with what the groups cost there, or with each thing in the way on the network."""
    from unidle.jobs import NEVER_BY_QUEUE
    from unidle.place.explain import GangRefusal
    from unidle.place.network.rank_order import priced
    from unidle.place.scheduler import Placed, Scheduler

    if decision.place is not None:
        places = decision.place.places
        return Placed(places, decision.because, priced(view.fleet, places, spec.layout))
    if decision.because.code in NEVER_BY_QUEUE:
        return GangRefusal(decision.because)  # what is free or in the way does not matter
    alone = Scheduler().try_one(view, spec)
    return GangRefusal(decision.because, alone.barriers if isinstance(alone, GangRefusal) else ())


def _stops(decision: DryRun) -> list[dict[str, Any]]:
    return [{"job": stop.job, "because": stop.because.text} for stop in decision.stops]


def _view(fleet: str | None, snapshot: str | None, store: str | None) -> tuple[View, Forecaster | None]:
    """What is decided on, and what is known of run times where the view does not say it."""
    from unidle.view.placement_input import thaw, view_of

    if fleet is not None and snapshot is not None:
        raise BadInput("a snapshot has its own fleet", field="--fleet", value=fleet, remedy="leave one out")
    if snapshot is not None:
        from unidle.control.forecast import Forecaster
        from unidle.files.snapshot import load_snapshot

        frozen = load_snapshot(snapshot)
        return thaw(frozen), Forecaster.recalled(frozen.history)
    if fleet is not None or store is None:
        from unidle.api.fleets import find_fleet

        return view_of(find_fleet(fleet, None), time.time_ns()), None
    opened = read_store(store)
    return need_fleet(read_view(opened), store), None


def _job(view: View, name: str, forecaster: Forecaster | None) -> JobView:
    """A job that waits there, or one that is submitted now."""
    from unidle.control.queries.dry_run import submitted
    from unidle.control.queries.find import find_job
    from unidle.files.job import load_job

    found = view.jobs.open.get(name)
    if found is None and (name == "-" or Path(name).exists()):
        return submitted(view, load_job(name), forecaster)
    if found is None and not len(view.jobs):
        return submitted(view, load_job(name), forecaster)  # which reports that there is no such file
    try:
        found = found or find_job(view, name)
    except BadInput as error:
        known = not error.problem.startswith("no such")
        problem, remedy = (
            (error.problem, error.remedy)
            if known
            else ("no such file, and no such job in this store", _WAITS)
        )
        raise BadInput(problem, field="--job", value=name, remedy=remedy) from None
    if found.live is not None or found.terminal:
        state = "has ended" if found.terminal else "runs already"
        raise BadInput(f"the job {state}", field="--job", value=found.id, remedy=_WAITS)
    return found


def _plain(answer: Placed | GangRefusal) -> dict[str, Any]:
    from unidle.place.explain import GangRefusal

    if isinstance(answer, GangRefusal):
        return {
            "placed": False,
            "ranks": [],
            "groups": {},
            "because": [],
            "blocked_by": _blocked_by(answer),
        }
    ranks = [
        {"rank": p.rank, "node": p.node, "device": next(iter(p.slices), None), "devices": list(p.slices)}
        for p in answer.places
    ]
    groups = {name: _group(group) for name, group in answer.mapping.groups.items()}
    return {
        "placed": True,
        "ranks": ranks,
        "groups": groups,
        "because": [answer.because.text],
        "blocked_by": [],
    }


def _group(group: GroupTime) -> dict[str, Any]:
    return {
        "groups": group.groups, "ranks": group.ranks, "bytes": group.bytes, "time_ns": group.time_ns,
        "tier": group.tier, "tier_name": group.tier_name, "spread": group.spread, "how": group.how,
    }  # fmt: skip


def _blocked_by(refused: GangRefusal) -> list[dict[str, Any]]:
    from unidle.control.queries.waiting import barrier_line

    whole = {"code": refused.because.code, "text": refused.because.text, **refused.because.figures}
    return [whole, *(barrier_line(barrier) for barrier in refused.barriers)]


def _say_placed(answer: Placed, explain: bool) -> None:
    say(f"placed: {answer.because.text}")
    ranks: dict[str, list[int]] = {}
    for rank in answer.places:
        ranks.setdefault(rank.node, []).append(rank.rank)
    rows = [[node, str(len(held)), _ranges(held)] for node, held in ranks.items()]
    show_table(["node", "ranks", "which"], rows[:_NODES_SHOWN], indent="  ")
    if len(rows) > _NODES_SHOWN:
        say(f"  and {counted(len(rows) - _NODES_SHOWN, 'more node')} (--json has all)")
    if explain:
        _say_groups(answer)


def _say_groups(answer: Placed) -> None:
    rows = [
        [name, str(g.groups), str(g.ranks), f"{g.bytes / 1e6:.1f}", f"{g.time_ns / 1e6:.3f}",
         f"{g.tier} {g.tier_name}".strip(), str(g.spread.get("node", 1))]
        for name, g in answer.mapping.groups.items()
    ]  # fmt: skip
    say("modelled for one step of a dense transformer:")
    show_table(["group", "groups", "ranks", "MB", "ms", "bound by", "nodes at most"], rows, indent="  ")


def _say_refused(answer: GangRefusal, explain: bool) -> None:
    say(f"not placed: {answer.because.text}")
    if not explain:
        return
    for barrier in answer.barriers:
        say(f"  in the way: {barrier.text()}")
        say(f"  what would help: {barrier.unblock}")


def _ranges(numbers: list[int]) -> str:
    """``0-3 8 10-11``"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:8])
    return shown + (" ..." if len(runs) > 8 else "")
