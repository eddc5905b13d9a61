"""``unidle fleet``: devices, who holds idle ones, what a decision of placement needs, and how links are measured."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    JsonOption,
    StoreOption,
    age,
    clock_time,
    need_fleet,
    not_both,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    say_unwatched,
    show_table,
    warn,
)
from unidle.cli.help import Commands
from unidle.cli.tables import without_empty
from unidle.errors import BadInput
from unidle.fleet import WHOLE_PPM, Device, Fleet, device_of, slices_of
from unidle.fleet.spares import Spares
from unidle.words import US_PER_HOUR, counted, device_time

if TYPE_CHECKING:
    from unidle.fleet import Link


_WAYS_SHOWN: Final = 8


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    fleet_app.add_typer(probe_app, name="probe")
    app.add_typer(fleet_app, name="fleet")


fleet_app = Commands(no_args_is_help=False)


@fleet_app.callback(invoke_without_command=True)
def fleet(
    context: typer.Context,
    store: StoreOption = None,
    fleet_file: FleetOption = None,
    cpu_devices: CpuDevicesOption = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Show the jobs of a store that hold idle devices instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the devices of a store, a fleet file or this machine."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    if idle:
        _refuse_with_idle(fleet=fleet_file, cpu_devices=cpu_devices)
        _show_idle(store, as_json)
        return
    not_both(context, "store", fleet=fleet_file, cpu_devices=cpu_devices)
    if store is not None and fleet_file is None:
        _show_fleet(_of_store(store), as_json)
    else:
        from unidle.api.fleets import find_fleet

        declared = find_fleet(fleet_file, cpu_devices)
        _show_fleet(_Shown(declared, Spares(declared).of()), as_json)


def _refuse_with_idle(**others: object) -> None:
    option = next((name for name, value in others.items() if value is not None), None)
    if option is not None:
        raise BadInput(
            "cannot be used with --idle, which reads a store", field=f"--{option.replace('_', '-')}",
            remedy="use --store PATH_OR_URL instead",
        )  # fmt: skip


def _show_fleet(shown: _Shown, as_json: bool) -> None:
    found, lines = shown.fleet, _device_lines(shown)
    if as_json:
        tiers = [{"id": t.id, "kind": t.kind, "parent": t.parent} for t in found.tiers]
        links = {name: asdict(one) for name, one in found.gpu_links.items()}
        print_json(
            {
                "source": found.source,
                "sources": list(found.sources),
                "tiers": tiers,
                "devices": lines,
                "gpu_links": links,
            }
        )
        return
    _say_devices(lines)
    for name, one in found.gpu_links.items():
        from unidle.fleet.links import describe

        alike = sum(node.gpu_links == name for node in found.nodes)
        say(f"links {name}: {describe(one)} ({counted(alike, 'node')})")
    _say_sources(found)
    say(f"{counted(len(lines), 'device')} on {counted(len(found.nodes), 'node')} ({found.source})")


def _say_sources(found: Fleet) -> None:
    """Where a cluster's fleet was read: what is declared, and each way that nodes were read in, most nodes first."""
    for source in found.sources:
        say(source)
    alike = Counter(node.sources for node in found.nodes if node.sources)
    for sources, count in alike.most_common(_WAYS_SHOWN):
        say(f"{counted(count, 'node')}, read from: {'; '.join(sources)}")
    if len(alike) > _WAYS_SHOWN:
        say(f"{counted(len(alike) - _WAYS_SHOWN, 'more way')} of reading nodes: --json has those of each")


@dataclass(frozen=True, slots=True)
class _Shown:
    """A fleet, and what is known of its nodes and devices. ``holders``: jobs by device; ``told``: idle ones."""

    fleet: Fleet
    spares: Collection[str]
    health: dict[str, str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    blind: dict[str, str] | None = None  # by node, why nobody watches it; None: nobody has looked yet


def _of_store(store: str) -> _Shown:
    """The fleet as the controller of a store sees it."""
    from unidle.view.spares import on_trial
    from unidle.view.watching import not_watched

    opened = read_store(store)
    view = need_fleet(read_view(opened), store)
    holders: dict[str, set[str]] = {}
    told = {job for job in view.live if view.jobs[job].attempts[-1].notice is not None}
    for job in view.live:
        for slice_id in (s for place in view.jobs[job].attempts[-1].places for s in place.slices):
            holders.setdefault(device_of(slice_id), set()).add(job)
    others = dict.fromkeys(view.taken_devices, "taken")
    health = {**others, **view.health, **dict.fromkeys(on_trial(view), "quarantine")}
    blind = {node.id: not_watched(view, node.id) for node in view.fleet.nodes}
    return _Shown(view.fleet, view.spares, health, holders, told, blind)


def _device_lines(shown: _Shown) -> list[dict[str, Any]]:
    """The data of each device, as ``--json`` prints it."""
    health, holders, blind = shown.health, shown.holders, shown.blind
    lines: list[dict[str, Any]] = []
    for node in shown.fleet.nodes:
        for device in node.devices:
            state = health.get(device.id) or health.get(node.id) or "healthy"
            lines.append(
                {"device": device.id, "node": node.id, "tier": node.parent, "kind": device.kind, "model": device.model,
                 "vendor": device.vendor if device.kind == "gpu" else None, "gpu_links": node.gpu_links or None, "memory_bytes": device.memory_bytes, "slices_ppm": [s.share_ppm for s in slices_of(device)], "health": state, "spare": node.id in shown.spares,
                 "sources": list(node.sources), "share": _sharing(device), "cut": _cut(device),
                 "watched": blind is not None and not blind[node.id], "not_watched": None if blind is None else blind[node.id] or None,
                 "jobs": sorted(holders.get(device.id, ())), "idle": sorted(shown.told.intersection(holders.get(device.id, ())))}
            )  # fmt: skip
    return lines


def _say_devices(lines: list[dict[str, Any]]) -> None:
    rows = [
        [
            line["device"],
            line["node"],
            line["kind"],
            line["model"] or "-",
            _health(line),
            _watched(line),
            _parts(line),
            (" ".join(job + " (idle)" * (job in line["idle"]) for job in line["jobs"]) or "free")
            + " (spare)" * line["spare"],
        ]
        for line in lines
    ]
    heads = ["device", "node", "kind", "model", "health", "watched", "parts", "job"]
    for column in (6, 5):  # the usual case: nothing is cut, or nobody has looked yet
        if not any(row[column] for row in rows):
            heads, rows = _without(heads, column), [_without(row, column) for row in rows]
    show_table(heads, rows)
    say_unwatched({line["node"]: line["not_watched"] for line in lines})


def _without(cells: list[str], column: int) -> list[str]:
    return cells[:column] + cells[column + 1 :]


def _health(line: dict[str, Any]) -> str:
    """The health of a node that is not monitored is unknown."""
    return "not known" if line["health"] == "healthy" and line["not_watched"] else str(line["health"])


def _watched(line: dict[str, Any]) -> str:
    return "yes" if line["watched"] else "not watched" if line["not_watched"] else ""


def _sharing(device: Device) -> dict[str, Any] | None:
    """How the device may be cut on demand."""
    sharing = device.sharing
    if sharing is None:
        return None
    return {
        "modes": list(sharing.modes), "compute_ppm": sharing.compute_ppm, "memory_ppm": sharing.memory_ppm,
        "why_not": dict(sharing.why_not),
    }  # fmt: skip


def _cut(device: Device) -> dict[str, Any] | None:
    """How it is cut on demand now."""
    if device.cut is None:
        return None
    parts = [
        {"slice": piece.id, "share_ppm": part.share_ppm, "job": part.job or None, "compute_ppm": part.compute_ppm,
         "memory_bytes": part.memory_bytes, "profile": part.profile or None}
        for piece, part in zip(slices_of(device), device.cut.parts, strict=True)
    ]  # fmt: skip
    return {"mode": device.cut.mode, "parts": parts}


def _parts(line: dict[str, Any]) -> str:
    """``mps 30 % 30 %, 40 % left``; ``25 % 75 %`` where the fleet file cut it; ``-`` for a whole one that may be cut."""
    if line["cut"] is None:
        shares = line["slices_ppm"]
        whole = "-" if line["share"] else ""
        return " ".join(map(_percent, shares)) if len(shares) > 1 else whole
    used = [part["profile"] or _percent(part["compute_ppm"]) for part in line["cut"]["parts"] if part["job"]]
    left = sum(part["share_ppm"] for part in line["cut"]["parts"] if not part["job"])
    if line["cut"]["mode"] != "mig":  # as much as may still be promised, as the others show what was
        left = left * line["share"]["compute_ppm"] // WHOLE_PPM
    return f"{line['cut']['mode']} {' '.join(used)}" + (f", {_percent(left)} left" if left else "")


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:.3g} %"


@fleet_app.command("snapshot")
def fleet_snapshot(context: typer.Context, store: StoreOption = None) -> None:
    """Write the input of a placement decision as JSON. It has the fleet, its health, and running and waiting jobs.

    `unidle place --snapshot FILE` repeats the decision anywhere.
    """
    from unidle.control.forecast import Forecaster
    from unidle.files.snapshot import write_snapshot
    from unidle.view.placement_input import freeze

    opened = read_store(store or context.obj)
    view = need_fleet(read_view(opened), store or context.obj)
    write_snapshot(freeze(view, Forecaster.of(view).recall()), sys.stdout.buffer)
    sys.stdout.buffer.flush()


@fleet_app.command("summary")
def fleet_summary(context: typer.Context, store: StoreOption = None) -> None:
    """Write what is free in each network domain, for `unidle clusters`."""
    from unidle.files.clusters import summary_as_json
    from unidle.place.summary import summary_of

    opened = read_store(store or context.obj)
    view = need_fleet(read_view(opened), store or context.obj)
    sys.stdout.buffer.write(summary_as_json(summary_of(view, now_of(view))) + b"\n")
    sys.stdout.buffer.flush()


# -- jobs that hold idle devices


def _show_idle(store: str | None, as_json: bool) -> None:
    """Print the idle holders of a store."""
    from unidle.control.queries.idle_holders import idle_holders

    opened = read_store(store)
    view = read_view(opened)
    now = now_of(view)
    lines = idle_holders(view, now)
    if as_json:
        print_json(lines)
        return
    if not lines:
        say("no job holds idle devices")
        return
    header = [
        "job",
        "queue",
        "user",
        "devices",
        "quiet since",
        "device time",
        "cost",
        "evidence",
        "what follows",
    ]
    rows = [
        [line["job"], line["queue"], line["user"] or "-", f"{line['devices']:g}", clock_time(line["since_ns"]),
         device_time(line['device_hours'] * US_PER_HOUR), _cost(line), line["evidence"], _what_follows(line, now)]
        for line in lines
    ]  # fmt: skip
    show_table(*without_empty(header, rows, "cost"))
    hours = sum(line["device_hours"] for line in lines)
    say(f"{device_time(hours * US_PER_HOUR)} held without work" + _total_cost(lines))


def _cost(line: dict[str, Any]) -> str:
    return "-" if line["cost"] is None else f"{line['cost']:.2f} {line['currency']}"


def _total_cost(lines: list[dict[str, Any]]) -> str:
    priced = [line["cost"] for line in lines if line["cost"] is not None]
    return f", {sum(priced):.2f} {lines[0]['currency']}" if priced else ""


def _what_follows(line: dict[str, Any], now_ns: int) -> str:
    if line["policy"] == "left alone":
        return "excluded by the policy"
    if line["release_ns"] is not None:
        return f"released at {clock_time(line['release_ns'])}"
    if line["notice_ns"] is None:
        return "no notice sent yet"
    return f"notice sent {age(max(now_ns - line['notice_ns'], 0))} ago; not released"


# -- links between nodes


probe_app = Commands(help="Measure the links between nodes.")
_FleetFile = Annotated[str, typer.Option("--fleet", metavar="FILE", help="Fleet file.")]


@probe_app.command("plan")
def plan(fleet: _FleetFile) -> None:
    """Print the plan of a measurement. `python -m unidle.rank.probe` on each node carries it out."""
    from unidle.files.fleet import load_fleet
    from unidle.files.probe import plan_as_json
    from unidle.fleet.probing import phases

    found = load_fleet(fleet)
    planned = phases(found)
    if not planned:
        raise BadInput(
            "has no two nodes with a link to measure", field="--fleet", value=fleet,
            remedy="use a fleet file with two or more nodes",
        )  # fmt: skip
    sys.stdout.write(plan_as_json(planned) + "\n")


@probe_app.command("links")
def links(
    result: Annotated[str, typer.Argument(metavar="RESULT", show_default=False, help="Output of the probe.")],
    fleet: _FleetFile,
) -> None:
    """Print the fleet file with the measured links. Links without a measurement stay as declared."""
    from unidle.files.fleet import fleet_to_yaml, load_fleet
    from unidle.files.probe import load_result
    from unidle.fleet.probing import links_of

    found = load_fleet(fleet)
    measured = links_of(found, load_result(result, found))
    sys.stdout.write(fleet_to_yaml(replace(found, links=(*measured, *_others(found, measured)))))
    if not measured:
        warn("the result has no measured link")


def _others(fleet: Fleet, measured: tuple[Link, ...]) -> list[Link]:
    """Declared links that no measured one replaces."""
    kinds = {link.tier for link in measured if link.tier}
    ends = {link.a for link in measured if link.a}
    kind_of = {tier.id: tier.kind for tier in fleet.tiers} | {node.id: "node" for node in fleet.nodes}
    return [
        link
        for link in fleet.links
        if not (link.tier in kinds if link.tier else link.a in ends or kind_of.get(link.a) in kinds)
    ]
