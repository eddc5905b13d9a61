"""``fleet``, ``schema`` and ``doctor``: what there is, what files look like, what this machine can do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    JsonOption,
    StoreOption,
    data_dir,
    need_fleet,
    not_both,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    say_unwatched,
    show_table,
    store_address,
)
from unidle.cli.help import Commands
from unidle.cli.probe import probe_app
from unidle.cli.span import of_span
from unidle.errors import BadInput
from unidle.fleet import WHOLE_PPM, Device, Fleet, device_of, slices_of
from unidle.fleet.spares import Spares
from unidle.words import counted


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    fleet_app.add_typer(probe_app, name="probe")
    app.add_typer(fleet_app, name="fleet")
    app.command("schema")(schema)
    app.command("doctor")(doctor)


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
        from unidle.cli.idle import show_idle

        if fleet_file is not None or cpu_devices is not None:
            option = "--fleet" if fleet_file is not None else "--cpu-devices"
            raise BadInput(
                "cannot be used with --idle, which reads a store",
                field=option,
                remedy="use --store PATH_OR_URL instead",
            )
        show_idle(store, as_json)
        return
    not_both(context, "store", fleet=fleet_file, cpu_devices=cpu_devices)
    if store is not None and fleet_file is None:
        shown = _of_store(store)
    else:
        from unidle.api.fleets import find_fleet

        declared = find_fleet(fleet_file, cpu_devices)
        shown = _Shown(declared, Spares(declared).of())
    found, lines = shown.fleet, _device_lines(shown)
    if as_json:
        tiers = [{"id": t.id, "kind": t.kind, "parent": t.parent} for t in found.tiers]
        links = {name: asdict(one) for name, one in found.gpu_links.items()}
        print_json({"source": found.source, "tiers": tiers, "devices": lines, "gpu_links": links})
        return
    _say_devices(lines)
    for name, one in found.gpu_links.items():
        from unidle.fleet.links import describe

        alike = sum(node.gpu_links == name for node in found.nodes)
        say(f"links {name}: {describe(one)} ({counted(alike, 'node')})")
    say(f"{counted(len(lines), 'device')} on {counted(len(found.nodes), 'node')} ({found.source})")


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
    from unidle.view.kept import on_trial
    from unidle.view.watching import not_watched

    opened = read_store(store)
    view = need_fleet(read_view(opened), store)
    holders: dict[str, set[str]] = {}
    told = {job for job in view.live if view.jobs[job].attempts[-1].notice is not None}
    for job in view.live:
        for slice_id in (s for place in view.jobs[job].attempts[-1].places for s in place.slices):
            holders.setdefault(device_of(slice_id), set()).add(job)
    health = {**view.health, **dict.fromkeys(on_trial(view), "quarantine")}
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
                 "share": _sharing(device), "cut": _cut(device),
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
    from unidle.view.frozen import freeze

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


def schema(
    file: Annotated[
        str,
        typer.Argument(metavar="job|fleet|clusters|drill|span", show_default=False, help="Kind of file."),
    ],
) -> None:
    """Print the JSON Schema of an input file. Editors use it to check and complete the file."""
    import json

    from unidle.files import schema as schemas

    makers: dict[str, Callable[[], Any]] = {
        "job": schemas.job_schema, "fleet": schemas.fleet_schema, "clusters": schemas.clusters_schema,
        "drill": schemas.drill_schema, "span": lambda: of_span("files.schema").span_schema(),
    }  # fmt: skip
    if file not in makers:
        raise BadInput("has no schema", field="FILE", value=file, remedy=f"use one of {', '.join(makers)}")
    sys.stdout.write(json.dumps(makers[file](), indent=2, ensure_ascii=False) + "\n")


def doctor(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what this machine can do, and what is missing."""
    from unidle.doctor import checks

    address = store_address(store)
    found = checks(data_dir() if "://" in address else address)
    if as_json:
        print_json(
            [{"name": c.name, "state": c.state, "detail": c.detail, "needed_for": c.needed_for, "remedy": c.remedy}
             for c in found]
        )  # fmt: skip
        return
    for check in found:
        say(f"{check.state:<8} {check.name:<20} {check.detail}", hang=30)
        if check.state != "ok":
            say(
                f"{'':<8} {'':<20} needed for {check.needed_for}"
                + (f"; {check.remedy}" if check.remedy else ""),
                hang=30,
            )
