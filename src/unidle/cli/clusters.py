"""``unidle clusters``: several clusters side by side, which of them gets a job, and jobs that should move."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, age, print_json, say, show_table, warn
from unidle.errors import BadInput, CannotRun
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.dispatch import ClusterMove, ClusterSight
    from unidle.files.clusters import Clusters
    from unidle.jobs import JobSpec
    from unidle.place.dispatch import ClusterVerdict


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("clusters")(clusters)


def clusters(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", show_default=False, help="Clusters file; see `unidle schema clusters`."
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="FILE",
            show_default=False,
            help="Job file: show the cluster that could start it first.",
        ),
    ] = None,
    rebalance: Annotated[
        bool,
        typer.Option("--rebalance", help="List waiting jobs that another cluster could start now."),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="With --rebalance: move these jobs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is free in several clusters, or the cluster for a job. With --rebalance, show which jobs should move."""
    from unidle.control.dispatch import look
    from unidle.files.clusters import load_clusters

    if job is not None and rebalance:
        raise BadInput("cannot be used together", field="--job, --rebalance", remedy="leave one out")
    if apply and not rebalance:
        raise BadInput("belongs to --rebalance", field="--apply", remedy="add --rebalance")
    listed = load_clusters(file)
    if job is not None:
        from unidle.files.job import load_job

        _show_verdicts(listed, load_job(job), as_json)
    elif rebalance:
        _rebalance(listed, apply, as_json)
    else:
        seen = look(listed.clusters, time.time_ns())
        _show(seen, as_json)


def dispatch(file: str, spec: JobSpec) -> tuple[ClusterSight, ClusterVerdict]:
    """The cluster that gets the job, and why. :class:`CannotRun` where none holds it."""
    from unidle.control.dispatch import chosen, look, verdicts
    from unidle.files.clusters import load_clusters

    listed = load_clusters(file)
    seen = look(listed.clusters, time.time_ns())
    _warn_of(seen)
    found = verdicts(seen, spec, listed.prefer)
    target = chosen(seen, found)
    if target is None:
        why = "; ".join(f"{v.cluster} {v.because.text}" for v in found) or "none can be reached"
        raise CannotRun(
            f"no cluster can take the job: {why}", field="--clusters", value=file,
            remedy="`unidle clusters {file}` shows the fleet of each",
        )  # fmt: skip
    return target, next(v for v in found if v.cluster == target.name)


def _warn_of(seen: Sequence[ClusterSight]) -> None:
    for one in seen:
        if one.summary is None:
            warn(f"cluster {one.name} is left out: {one.problem}")


def _show(seen: Sequence[ClusterSight], as_json: bool) -> None:
    lines = [_line(one) for one in seen]
    if as_json:
        print_json(lines)
        return
    rows = [
        [line["cluster"], kind["kind"], str(kind["devices"]), str(kind["free"]),
         " ".join(f"{tier['tier']}:{tier['free']}" for tier in kind["largest"]), str(line["waiting_devices"]),
         age(time.time_ns() - line["time_ns"])]
        for line in lines
        for kind in line["kinds"]
    ]  # fmt: skip
    show_table(["cluster", "of", "devices", "free", "largest free domain", "waited for", "seen"], rows)
    _warn_of(seen)


def _line(one: ClusterSight) -> dict[str, Any]:
    summary = one.summary
    line: dict[str, Any] = {
        "cluster": one.name,
        "reached": summary is not None,
        "problem": one.problem or None,
    }
    if summary is None:
        return line | {"time_ns": None, "kinds": [], "waiting_devices": None}
    kinds = []
    for kind in dict.fromkeys(c.kind for c in summary.classes):
        codes = {k for k, c in enumerate(summary.classes) if c.kind == kind and not c.rest}
        cuts = {k for k, c in enumerate(summary.classes) if c.kind == kind and c.cut is not None}
        tiers = [
            {
                "tier": tier.kind,
                "free": max(
                    (sum(s.free * s.nodes for s in d.stock if s.of in codes) for d in tier.domains), default=0
                ),
            }
            for tier in summary.tiers
        ]
        stock = [s for d in summary.tiers[-1].domains for s in d.stock if s.of in codes]
        kinds.append(
            {"kind": kind, "devices": sum(s.slices * s.nodes for s in stock),
             "free": sum(s.free * s.nodes for s in stock), "largest": tiers[:-1],
             "may_be_cut": sum(s.slices * s.nodes for s in stock if s.of in cuts),
             "models": sorted({summary.classes[c].model for c in codes})}
        )  # fmt: skip
    waiting = sum(summary.waiting.values()) + sum(summary.pending.values())
    return line | {"time_ns": summary.time_ns, "kinds": kinds, "waiting_devices": waiting}


def _show_verdicts(listed: Clusters, spec: JobSpec, as_json: bool) -> None:
    from unidle.control.dispatch import chosen, look, verdicts

    seen = look(listed.clusters, time.time_ns())
    found = verdicts(seen, spec, listed.prefer)
    target = chosen(seen, found)
    if as_json:
        lost = [{"cluster": one.name, "problem": one.problem} for one in seen if one.summary is None]
        print_json(
            {"chosen": target.name if target else None, "clusters": [verdict_as_json(v) for v in found], "unreached": lost}
        )  # fmt: skip
        return
    say(f"goes to {target.name}" if target else "no cluster can take it")
    for verdict in found:
        say(f"  {verdict.cluster:<16} {verdict.state:<6} {verdict.because.text}{_price(verdict)}")
    _warn_of(seen)


def verdict_as_json(verdict: ClusterVerdict) -> dict[str, Any]:
    """One cluster's verdict."""
    return {
        "cluster": verdict.cluster, "state": verdict.state, "tier": verdict.tier or None,
        "start_in_ns": verdict.start_in_ns, "cost_per_hour": verdict.cost, "currency": verdict.currency or None,
        "because": {"code": verdict.because.code, "text": verdict.because.text, "figures": verdict.because.figures},
    }  # fmt: skip


def _price(verdict: ClusterVerdict) -> str:
    return "" if verdict.cost is None else f"; {verdict.cost:g} {verdict.currency} an hour"


def _rebalance(listed: Clusters, apply: bool, as_json: bool) -> None:
    from unidle.control.dispatch import look, moves

    done: list[ClusterMove] = []
    tried: set[str] = set()
    while True:
        with ExitStack() as stores:
            seen = look(listed.clusters, time.time_ns(), stores)
            found = [move for move in moves(seen, listed.prefer) if move.job not in tried]
        tried.update(move.job for move in found)
        done += _carried_out(found) if apply else found
        if not apply or not found:
            break
    if as_json:
        print_json(
            [{"job": m.job, "from": m.source.name, "to": m.target.name, "moved": apply, "because": m.because.text}
             for m in done]
        )  # fmt: skip
        return
    for move in done:
        say(
            f"{move.job} {'moved' if apply else 'could move'} from {move.source.name} to {move.target.name}: {move.because.text}"
        )
    if not done:
        say("no job that waits could start in another cluster now")
    elif not apply:
        say(f"{counted(len(done), 'job')}; --apply moves them")
    _warn_of(seen)


def _carried_out(found: Sequence[ClusterMove]) -> list[ClusterMove]:
    from unidle.cli.drive import settle
    from unidle.control.dispatch import carry_out

    done = []
    for move in found:
        if carry_out(move, settle):
            done.append(move)
        else:
            warn(f"{move.job} started in {move.source.name} meanwhile, and stays there")
    return done
